"""What CIFAR-10 and CIFAR-100 share: 32×32 pictures, published as rows of bytes and as pickles."""

from __future__ import annotations

import io
import pickle
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from fedapm.data.dataset import Labels, Pool, Source
from fedapm.data.sets.pictures import PictureSet
from fedapm.errors import FedapmError

SIDE = 32
PIXELS = 3 * SIDE * SIDE

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Layout:
    """One of the two ways in which a set is published."""

    version: str
    folder: str
    archive: str
    ending: str
    """What follows the name of a file."""


class CIFAR(PictureSet):
    """Pictures and classes from the files of either layout, in the original order."""

    title: ClassVar[str]
    binary: ClassVar[Layout]
    python: ClassVar[Layout]
    files: ClassVar[Mapping[str, int]]
    """The files without their endings, in order, and how many pictures are published in each."""
    marks: ClassVar[int]
    """Bytes before each picture of the binary version; the last of them is the class."""
    key: ClassVar[str]
    """What the python version calls the classes of the pictures."""
    count: ClassVar[int]
    """The number of classes."""

    @abstractmethod
    def class_names(self, folder: Path, layout: Layout) -> tuple[str, ...]:
        """The names of the classes, in order."""

    def pictures(self, source: Source) -> Pool:
        """All pictures as bytes."""
        folder, layout = self._place(source.folder(self.name))
        names = self.class_names(folder, layout)
        pixels = np.empty((sum(self.files.values()), PIXELS), np.uint8)
        targets, end = [], 0
        for classes, rows in self._parts(folder, layout):
            pixels[end : end + len(rows)] = rows
            end += len(rows)
            targets.append(classes)
        inputs = torch.from_numpy(pixels).view(-1, 3, SIDE, SIDE)
        return Pool(torch.from_numpy(np.concatenate(targets)), names, ("image",), inputs=(inputs,))

    def labels(self, source: Source) -> Labels:
        """The classes of all pictures."""
        folder, layout = self._place(source.folder(self.name))
        targets = [classes for classes, _ in self._parts(folder, layout)]
        return Labels(torch.from_numpy(np.concatenate(targets)), self.class_names(folder, layout), ("image",))

    def unpickled(self, path: Path, largest: int) -> dict[Any, Any]:
        """What a file of the python version holds, where arrays are :class:`Rows`."""
        if (size := path.stat().st_size) > largest:
            raise FedapmError(f"{path} has {size} bytes, too many for {self.title}; it is another file.")
        try:
            content = Unpickler(contents(path)).load()
            if isinstance(content, dict):
                return content
        except Refused as refused:
            raise FedapmError(
                f"{path} asks to run {refused}, which no file of {self.title} does; it was not opened. "
                f"Fetch {self.python.archive} again."
            ) from None
        except FedapmError:
            raise
        except Exception:  # bytes that are no pickle make the reader fail in almost every way there is
            pass
        raise FedapmError(f"{path} is damaged or another file; unpack {self.python.archive} again.")

    def _place(self, root: Path) -> tuple[Path, Layout]:
        layouts, first = (self.binary, self.python), next(iter(self.files))
        for layout in layouts:
            for folder in (root, root / layout.folder):
                if (folder / (first + layout.ending)).is_file():
                    return folder, layout
        # no layout is there with its first file, so the error will name that file in the folder that was meant
        for layout in layouts:
            if root.resolve().name == layout.folder:
                return root, layout
        meant = [layout for layout in layouts if (root / layout.folder).is_dir()]
        layout = (meant or layouts)[0]
        return root / layout.folder, layout

    def _parts(self, folder: Path, layout: Layout) -> Iterator[tuple[Array, Array]]:
        read = self._binary if layout is self.binary else self._pickled
        for name, count in self.files.items():
            path = folder / (name + layout.ending)
            if not path.is_file():
                raise FedapmError(
                    f"{path} is missing; unpack {self.title}'s {layout.version} version ({layout.archive}) so that "
                    f"{layout.folder} is in the data root."
                )
            classes, rows = read(path, count)
            if classes.max() >= self.count or classes.min() < 0:
                where = "below 0" if classes.min() < 0 else f"above {self.count - 1}"
                raise FedapmError(
                    f"{path} holds a class {where}, so it is not {self.title}'s {layout.version} version."
                )
            yield classes, rows

    def _binary(self, path: Path, count: int) -> tuple[Array, Array]:
        width = self.marks + PIXELS
        if (size := path.stat().st_size) != count * width:
            raise FedapmError(f"{path} has {size} bytes instead of {count * width}; it is cut off or another file.")
        rows = np.frombuffer(contents(path), np.uint8).reshape(count, width)
        return rows[:, self.marks - 1].astype(np.int64), rows[:, self.marks :]

    def _pickled(self, path: Path, count: int) -> tuple[Array, Array]:
        content = self.unpickled(path, largest=2 * count * PIXELS + 2**20)
        data, classes = content.get("data"), content.get(self.key)
        if not isinstance(data, Rows) or not isinstance(classes, list) or {type(k) for k in classes} != {int}:
            raise FedapmError(f"{path} lacks pictures ('data') or classes ('{self.key}'); it is another file.")
        if data.values.shape != (count, PIXELS) or len(classes) != count:
            raise FedapmError(
                f"{path} holds {' × '.join(map(str, data.values.shape))} bytes and {len(classes)} classes instead of "
                f"{count} × {PIXELS} and {count}; it is cut off or another file."
            )
        # a number of any size may be in a pickle; one that is out of range only has to stay so
        return np.array([min(max(k, -1), self.count) for k in classes], np.int64), data.values


# Nothing else that is read from a disk is unpickled, because a pickle may name any function of any module and have it
# called. Here it cannot: what a file names is never looked up, let alone imported. The five names that CIFAR's files
# and copies of them hold mean the three classes below, which keep bytes and do nothing else; any other name ends the
# reading before it has had an effect. Not even numpy's own reconstruction sees what the file says.


class Refused(Exception):
    """A pickle names what CIFAR's files never do."""


class Kind:
    """Stands for numpy's dtype: keeps the code of an array's values."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Leave the rest, such as byte order, which single bytes do not have."""


class Rows:
    """Stands for numpy's array: bytes in some shape."""

    def __init__(self, *_: Any) -> None:
        self.values: Array = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        """Take the bytes as numpy writes them: version, shape, kind, whether column by column, content."""
        _, shape, kind, by_columns, content = state
        if not isinstance(kind, Kind) or kind.code != "u1":
            raise ValueError("not bytes")
        raw = content.encode("latin1") if isinstance(content, str) else content
        self.values = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_columns else "C")


class Encoded(bytes):
    """Stands for _codecs.encode, by which Python 3 writes bytes that Python 2 can read."""

    def __new__(cls, text: str, encoding: str) -> Encoded:
        """Encode text to the bytes it stands for."""
        if encoding != "latin1":
            raise ValueError("not the encoding of bytes")
        return super().__new__(cls, text.encode("latin1"))

    def __setstate__(self, state: Any) -> None:
        """Take nothing more."""


ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"): Rows,
    ("numpy._core.multiarray", "_reconstruct"): Rows,
    ("numpy", "ndarray"): Rows,
    ("numpy", "dtype"): Kind,
    ("_codecs", "encode"): Encoded,
}


class Unpickler(pickle.Unpickler):
    """Reads what CIFAR's files hold (numbers, strings, lists, tables, arrays of bytes) and nothing else."""

    def __init__(self, content: bytes) -> None:
        # Python 2 wrote text and bytes alike; latin1 keeps every byte as one character
        super().__init__(io.BytesIO(content), encoding="latin1")

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a name; no module is ever imported."""
        if (module, name) not in ADMITTED:
            raise Refused(repr(f"{module}.{name}"[:80]))
        return ADMITTED[module, name]


def contents(path: Path) -> bytes:
    """The bytes of a file, or one line that says why they cannot be had."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise FedapmError(f"{path} cannot be read ({error.strerror}); check its permissions.") from None
