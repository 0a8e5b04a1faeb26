"""What CIFAR-10 and CIFAR-100 share: 32×32 images, published as rows of bytes and as pickles."""

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
from fedapm.data.sets.files import Array, read_bytes
from fedapm.data.sets.images import ImageSet
from fedapm.errors import FedapmError

SIDE = 32
PIXELS = 3 * SIDE * SIDE


@dataclass(frozen=True)
class Layout:
    """One of the two ways in which a set is published."""

    version: str
    folder: str
    archive: str
    suffix: str
    """The suffix of its files."""


class CIFAR(ImageSet):
    """Reads either layout, in the original order."""

    title: ClassVar[str]
    binary: ClassVar[Layout]
    python: ClassVar[Layout]
    files: ClassVar[Mapping[str, int]]
    """The files without their suffixes, in order, and the number of images in each."""
    label_bytes: ClassVar[int]
    """Bytes before each image of the binary version; the last of them is the class."""
    label_key: ClassVar[str]
    """The key of the classes in the python version."""
    count: ClassVar[int]
    """The number of classes."""

    @abstractmethod
    def class_names(self, folder: Path, layout: Layout) -> tuple[str, ...]:
        """The names of the classes, in order."""

    def read_images(self, source: Source) -> Pool:
        """All images as bytes."""
        folder, layout = self._locate(source.folder(self.name))
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
        """The classes of all images."""
        folder, layout = self._locate(source.folder(self.name))
        targets = [classes for classes, _ in self._parts(folder, layout)]
        return Labels(torch.from_numpy(np.concatenate(targets)), self.class_names(folder, layout), ("image",))

    def unpickle(self, path: Path, max_bytes: int) -> dict[Any, Any]:
        """The content of a file of the python version; its arrays are :class:`ByteArray`."""
        if (size := path.stat().st_size) > max_bytes:
            raise FedapmError(f"{path} has {size} bytes, too many for {self.title}; it is another file.")
        try:
            content = RestrictedUnpickler(read_bytes(path, self._advice(self.python))).load()
            if isinstance(content, dict):
                return content
        except ForbiddenName as error:
            raise FedapmError(
                f"{path} asks to run {error}, which no file of {self.title} does; it was not opened. Fetch "
                f"{self.python.archive} again."
            ) from None
        except FedapmError:
            raise
        except Exception:  # bytes that are no pickle raise almost any exception
            pass
        raise FedapmError(f"{path} is damaged or another file; unpack {self.python.archive} again.")

    def _locate(self, root: Path) -> tuple[Path, Layout]:
        layouts, first = (self.binary, self.python), next(iter(self.files))
        for layout in layouts:
            for folder in (root, root / layout.folder):
                if (folder / (first + layout.suffix)).is_file():
                    return folder, layout
        # neither layout has its first file; reading fails and names it in the most likely folder
        for layout in layouts:
            if root.resolve().name == layout.folder:
                return root, layout
        present = [layout for layout in layouts if (root / layout.folder).is_dir()]
        layout = (present or layouts)[0]
        return root / layout.folder, layout

    def _parts(self, folder: Path, layout: Layout) -> Iterator[tuple[Array, Array]]:
        read = self._read_binary if layout is self.binary else self._read_pickle
        for name, count in self.files.items():
            path = folder / (name + layout.suffix)
            if not path.is_file():
                raise FedapmError(f"{path} is missing; {self._advice(layout)}.")
            classes, rows = read(path, count)
            if classes.max() >= self.count or classes.min() < 0:
                where = "below 0" if classes.min() < 0 else f"above {self.count - 1}"
                raise FedapmError(
                    f"{path} holds a class {where}, so it is not {self.title}'s {layout.version} version."
                )
            yield classes, rows

    def _advice(self, layout: Layout) -> str:
        return (
            f"unpack {self.title}'s {layout.version} version ({layout.archive}) so that {layout.folder} is in the data "
            f"root, or run: fedapm data get {self.name}"
        )

    def _read_binary(self, path: Path, count: int) -> tuple[Array, Array]:
        width = self.label_bytes + PIXELS
        if (size := path.stat().st_size) != count * width:
            raise FedapmError(f"{path} has {size} bytes instead of {count * width}; it is cut off or another file.")
        rows = np.frombuffer(read_bytes(path, self._advice(self.binary)), np.uint8).reshape(count, width)
        return rows[:, self.label_bytes - 1].astype(np.int64), rows[:, self.label_bytes :]

    def _read_pickle(self, path: Path, count: int) -> tuple[Array, Array]:
        content = self.unpickle(path, max_bytes=2 * count * PIXELS + 2**20)
        data, classes = content.get("data"), content.get(self.label_key)
        if not isinstance(data, ByteArray) or not isinstance(classes, list) or {type(k) for k in classes} != {int}:
            raise FedapmError(f"{path} lacks images ('data') or classes ('{self.label_key}'); it is another file.")
        if data.values.shape != (count, PIXELS) or len(classes) != count:
            raise FedapmError(
                f"{path} holds {' × '.join(map(str, data.values.shape))} bytes and {len(classes)} classes instead of "
                f"{count} × {PIXELS} and {count}; it is cut off or another file."
            )
        # a pickle may hold numbers of any size; clamped, those out of range stay out of range
        return np.array([min(max(k, -1), self.count) for k in classes], np.int64), data.values


# A pickle can call any function of any module, so no other file is unpickled. Here nothing is ever imported: the names
# that occur in CIFAR's files stand for the three classes below, which only hold bytes, and any other name is an error.


class ForbiddenName(Exception):
    """A pickle contains a name that CIFAR's files do not."""


class DType:
    """In place of numpy's dtype: holds its code."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Ignore the rest, such as the byte order."""


class ByteArray:
    """In place of numpy's array: bytes in some shape."""

    def __init__(self, *_: Any) -> None:
        self.values: Array = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        """Restore the state that numpy writes: version, shape, dtype, Fortran order, content."""
        _, shape, dtype, fortran_order, content = state
        if not isinstance(dtype, DType) or dtype.code != "u1":
            raise ValueError("not bytes")
        raw = content.encode("latin1") if isinstance(content, str) else content
        self.values = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran_order else "C")


class EncodedBytes(bytes):
    """In place of _codecs.encode, by which Python 3 pickles bytes for Python 2."""

    def __new__(cls, text: str, encoding: str) -> EncodedBytes:
        """Encode text as bytes."""
        if encoding != "latin1":
            raise ValueError("not the encoding of bytes")
        return super().__new__(cls, text.encode("latin1"))

    def __setstate__(self, state: Any) -> None:
        """Ignore any state."""


ALLOWED_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): ByteArray,
    ("numpy._core.multiarray", "_reconstruct"): ByteArray,
    ("numpy", "ndarray"): ByteArray,
    ("numpy", "dtype"): DType,
    ("_codecs", "encode"): EncodedBytes,
}


class RestrictedUnpickler(pickle.Unpickler):
    """Reads numbers, strings, lists, dictionaries and arrays of bytes, and nothing else."""

    def __init__(self, content: bytes) -> None:
        # Python 2 wrote text and bytes alike; latin1 maps every byte to one character
        super().__init__(io.BytesIO(content), encoding="latin1")

    def find_class(self, module: str, name: str) -> Any:
        """The class in place of a name; no module is imported."""
        if (module, name) not in ALLOWED_NAMES:
            raise ForbiddenName(repr(f"{module}.{name}"[:80]))
        return ALLOWED_NAMES[module, name]
