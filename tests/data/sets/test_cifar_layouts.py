"""CIFAR-10 and CIFAR-100 in small: both published layouts give the same pictures, and damage is named."""

from __future__ import annotations

import pickle
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedapm.data.dataset import Source
from fedapm.data.sets.cifar import CIFAR, PIXELS
from fedapm.data.sets.cifar10 import CIFAR10
from fedapm.data.sets.cifar100 import CIFAR100
from fedapm.data.sets.images import ImageSet
from fedapm.data.sets.tinyimagenet import TinyImageNet
from fedapm.experiments.settings import Experiment
from tests.helpers.unit import refused

FINE = [f"kind_{k}" for k in range(100)]


class Small10(CIFAR10):
    """CIFAR-10 with twelve pictures a file."""

    files = dict.fromkeys(CIFAR10.files, 12)


class Small100(CIFAR100):
    """CIFAR-100 with 120 and 110 pictures."""

    files = {"train": 120, "test": 110}  # noqa: RUF012


KINDS = [Small10(), Small100()]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=["10", "100"])


def rows(kind: CIFAR, place: int) -> tuple[np.ndarray, np.ndarray]:
    """The pictures and classes of a file."""
    stream, count = np.random.default_rng(place), [*kind.files.values()][place]
    return stream.integers(0, 256, (count, PIXELS), np.uint8), (np.arange(count) * 7 + place) % kind.count


def write_binary(kind: CIFAR, root: Path, names: bool = True) -> Path:
    """The binary version."""
    folder = root / kind.binary.folder
    folder.mkdir(parents=True)
    for place, name in enumerate(kind.files):
        pixels, classes = rows(kind, place)
        label_bytes = [classes // 5, classes] if kind.label_bytes == 2 else [classes]
        (folder / f"{name}.bin").write_bytes(np.column_stack([*label_bytes, pixels]).astype(np.uint8).tobytes())
    if names and kind.count == 100:
        (folder / "fine_label_names.txt").write_text("\n".join(FINE) + "\n\n")
        (folder / "coarse_label_names.txt").write_text("\n".join(FINE[:20]) + "\n")
    return folder


def table(kind: CIFAR, place: int) -> dict[str, Any]:
    """What a file of the python version holds."""
    pixels, classes = rows(kind, place)
    coarse = {"coarse_labels": (classes // 5).tolist()} if kind.count == 100 else {}
    names = [f"picture_{k}.png" for k in range(len(classes))]
    return {"filenames": names, "batch_label": "some", kind.label_key: classes.tolist(), **coarse, "data": pixels}


def write_python(kind: CIFAR, root: Path, dump: Any, names: bool = True) -> Path:
    """The python version, its pickles made by a function."""
    folder = root / kind.python.folder
    folder.mkdir(parents=True)
    for place, name in enumerate(kind.files):
        (folder / name).write_bytes(dump(table(kind, place)))
    if names and kind.count == 100:
        (folder / "meta").write_bytes(dump({"fine_label_names": FINE, "coarse_label_names": FINE[:20]}))
    return folder


def python_2(value: Any) -> bytes:
    """A pickle as Python 2 wrote the published ones: text is bytes, arrays of numpy.core hold theirs as text."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    def item(value: Any) -> bytes:
        match value:
            case dict():
                return b"}(" + b"".join(item(k) + item(v) for k, v in value.items()) + b"u"
            case list():
                return b"](" + b"".join(map(item, value)) + b"e"
            case int():
                return b"J" + struct.pack("<i", value)
            case str():
                return text(value.encode())
            case _:
                kind = b"cnumpy\ndtype\n(" + text(b"u1") + item(0) + item(1) + b"tR"
                state = b"(" + item(3) + text(b"|") + b"NNN" + item(-1) + item(-1) + item(0) + b"tb"
                empty = (
                    b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(" + item(0) + b"t" + text(b"b") + b"tR"
                )
                shape = b"(" + b"".join(map(item, value.shape)) + b"t"
                return empty + b"(" + item(1) + shape + kind + state + b"\x89" + text(value.tobytes()) + b"tb"

    return b"\x80\x02" + item(value) + b"."


def python_3(value: Any) -> bytes:
    """A pickle of the same that Python 3 wrote."""
    return pickle.dumps(value, protocol=2)


def newer(value: Any) -> bytes:
    """A pickle of the same as Python 3 writes it for itself, its arrays column by column."""
    return pickle.dumps({k: np.asfortranarray(v) if k == "data" else v for k, v in value.items()}, protocol=4)


def older_numpy(value: Any) -> bytes:
    """A pickle that a numpy before version 2 wrote."""
    return python_3(value).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


@pytest.mark.filterwarnings("ignore:numpy.core:DeprecationWarning")
def test_the_python_2_pickles_of_these_tests_are_real_pickles() -> None:
    wanted = table(KINDS[0], 0)
    found = pickle.loads(python_2(wanted), encoding="latin1")
    assert np.array_equal(found.pop("data"), wanted.pop("data"))
    assert found == wanted


@each_kind
def test_the_binary_version_holds_what_was_written(tmp_path: Path, kind: CIFAR) -> None:
    write_binary(kind, tmp_path)
    pool = kind.read(Source(tmp_path))
    parts = [rows(kind, place) for place in range(len(kind.files))]
    pixels, classes = (np.concatenate(part) for part in zip(*parts, strict=True))
    assert pool.targets.tolist() == classes.tolist()
    assert pool.targets.dtype == torch.int64
    assert pool.modalities == ("image",)
    assert pool.inputs[0].shape == (len(classes), 3, 32, 32)
    assert pool.inputs[0].is_contiguous(memory_format=torch.channels_last)
    mean, std = np.reshape(kind.mean, (3, 1, 1)), np.reshape(kind.std, (3, 1, 1))
    assert np.allclose(pool.inputs[0].numpy(), (pixels.reshape(-1, 3, 32, 32) / 255 - mean) / std, atol=1e-5)


@each_kind
@pytest.mark.parametrize("dump", [python_2, python_3, newer, older_numpy])
def test_both_layouts_give_the_same(tmp_path: Path, kind: CIFAR, dump: Any) -> None:
    write_binary(kind, tmp_path / "a")
    write_python(kind, tmp_path / "b", dump)
    one, other = kind.read(Source(tmp_path / "a")), kind.read(Source(tmp_path / "b"))
    assert torch.equal(one.inputs[0], other.inputs[0])
    assert torch.equal(one.targets, other.targets)
    assert one.targets.dtype == other.targets.dtype
    assert one.classes == other.classes


@each_kind
@pytest.mark.parametrize("write", [write_binary, lambda kind, root: write_python(kind, root, python_2)])
def test_the_root_may_be_the_folder_or_its_parent_whatever_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: CIFAR, write: Any
) -> None:
    folder = write(kind, tmp_path)
    wanted = kind.labels(Source(tmp_path))
    assert torch.equal(kind.labels(Source(folder)).targets, wanted.targets)
    monkeypatch.chdir(folder)
    assert torch.equal(kind.labels(Source(Path())).targets, wanted.targets)
    monkeypatch.chdir(tmp_path)
    folder.rename("my pictures")
    assert torch.equal(kind.labels(Source(tmp_path / "my pictures")).targets, wanted.targets)


@each_kind
def test_labels_are_those_of_the_samples(tmp_path: Path, kind: CIFAR) -> None:
    write_binary(kind, tmp_path)
    labels, pool = kind.labels(Source(tmp_path)), kind.read(Source(tmp_path))
    assert torch.equal(labels.targets, pool.targets)
    assert (labels.classes, labels.modalities) == (pool.classes, pool.modalities)


def test_names_of_the_hundred_classes(tmp_path: Path) -> None:
    kind = KINDS[1]
    write_binary(kind, tmp_path / "a")
    write_python(kind, tmp_path / "b", python_2)
    write_binary(kind, tmp_path / "c", names=False)
    write_python(kind, tmp_path / "d", python_2, names=False)
    assert kind.labels(Source(tmp_path / "a")).classes == tuple(FINE)
    assert kind.labels(Source(tmp_path / "b")).classes == tuple(FINE)
    assert kind.labels(Source(tmp_path / "c")).classes == tuple(map(str, range(100)))
    assert kind.labels(Source(tmp_path / "d")).classes == tuple(map(str, range(100)))


def test_too_few_names_are_refused(tmp_path: Path) -> None:
    (write_binary(KINDS[1], tmp_path / "a") / "fine_label_names.txt").write_text("apple\nbaby\n")
    with refused("fine_label_names.txt", "100 classes"):
        KINDS[1].read(Source(tmp_path / "a"))
    folder = write_python(KINDS[1], tmp_path / "b", python_2)
    for wrong in ({"fine_label_names": FINE[1:]}, {"fine_label_names": [*range(100)]}, {"names": FINE}):
        (folder / "meta").write_bytes(python_2(wrong))
        with refused("meta", "100 classes"):
            KINDS[1].read(Source(tmp_path / "b"))


def test_a_complete_layout_is_taken_where_the_other_is_not_complete(tmp_path: Path) -> None:
    kind = KINDS[0]
    write_python(kind, tmp_path, python_2)
    (tmp_path / kind.binary.folder).mkdir()
    assert len(kind.labels(Source(tmp_path)).targets) == 72


@each_kind
def test_a_missing_file_is_named_with_its_archive(tmp_path: Path, kind: CIFAR) -> None:
    first, last = next(iter(kind.files)), [*kind.files][-1]
    with refused(str(tmp_path / kind.binary.folder / f"{first}.bin"), "missing", kind.binary.archive):
        kind.read(Source(tmp_path))
    folder = write_binary(kind, tmp_path / "a")
    (folder / f"{last}.bin").unlink()
    for root in (folder, folder.parent):
        with refused(str(folder / f"{last}.bin"), "missing", kind.binary.archive):
            kind.read(Source(root))
    folder = write_python(kind, tmp_path / "b", python_2)
    for name in (last, first):
        (folder / name).unlink()
        for root in (folder, folder.parent):
            with refused(str(folder / name), "missing", kind.python.archive):
                kind.read(Source(root))


@each_kind
def test_without_a_root_the_data_set_says_what_it_needs(kind: CIFAR) -> None:
    with refused(kind.name, "--data-root"):
        kind.read(Source())


@each_kind
@pytest.mark.parametrize("lost", [1, 1000, "row", "all"])
def test_a_binary_file_that_is_cut_off_is_refused(tmp_path: Path, kind: CIFAR, lost: int | str) -> None:
    path = write_binary(kind, tmp_path) / f"{[*kind.files][1]}.bin"
    content = path.read_bytes()
    whole = len(content)
    gone = {"row": kind.label_bytes + PIXELS, "all": whole}.get(str(lost), lost)
    path.write_bytes(content[: whole - int(gone)])
    with refused(str(path), str(whole), str(whole - int(gone)), "cut off"):
        kind.read(Source(tmp_path))


def test_the_published_files_have_as_many_pictures_as_are_published(tmp_path: Path) -> None:
    assert sum(CIFAR10.files.values()) == sum(CIFAR100.files.values()) == 60_000
    (tmp_path / "cifar-100-binary").mkdir()
    path = tmp_path / "cifar-100-binary" / "train.bin"
    with path.open("wb") as file:
        file.truncate(49_999 * 3074)
    with refused(str(path), str(49_999 * 3074), str(50_000 * 3074)):
        CIFAR100().labels(Source(tmp_path))


@each_kind
def test_a_class_out_of_range_is_refused(tmp_path: Path, kind: CIFAR) -> None:
    name, above = next(iter(kind.files)), f"class above {kind.count - 1}"
    path = write_binary(kind, tmp_path / "a") / f"{name}.bin"
    content = bytearray(path.read_bytes())
    content[kind.label_bytes - 1] = kind.count
    path.write_bytes(content)
    with refused(str(path), above):
        kind.read(Source(tmp_path / "a"))
    path = write_python(kind, tmp_path / "b", python_2) / name
    for wrong, words in ((kind.count, above), (10**30, above), (-1, "class below 0"), (-(10**30), "class below 0")):
        content_ = table(kind, 0)
        content_[kind.label_key][3] = wrong
        path.write_bytes(python_3(content_))
        with refused(str(path), words):
            kind.read(Source(tmp_path / "b"))


def test_the_coarse_class_is_not_looked_at(tmp_path: Path) -> None:
    kind = KINDS[1]
    path = write_binary(kind, tmp_path) / "train.bin"
    wanted = kind.labels(Source(tmp_path)).targets
    content = bytearray(path.read_bytes())
    content[0] = 255
    path.write_bytes(content)
    assert torch.equal(kind.labels(Source(tmp_path)).targets, wanted)


@each_kind
@pytest.mark.parametrize("dump", [python_2, python_3, newer])
def test_a_pickle_that_is_cut_off_is_refused(tmp_path: Path, kind: CIFAR, dump: Any) -> None:
    path = write_python(kind, tmp_path, dump) / next(iter(kind.files))
    content = path.read_bytes()
    for length in (0, 1, 2, 50, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with refused(str(path), kind.python.archive):
            kind.read(Source(tmp_path))


@each_kind
def test_a_pickle_of_something_else_is_refused(tmp_path: Path, kind: CIFAR) -> None:
    path = write_python(kind, tmp_path, python_2) / next(iter(kind.files))
    good = table(kind, 0)
    for wrong in (
        [1, 2, 3],
        {},
        {**good, "data": [1, 2]},
        {**good, kind.label_key: "none"},
        {**good, kind.label_key: ["cat"] * len(good[kind.label_key])},
        {**good, kind.label_key: good[kind.label_key][1:]},
        {**good, "data": good["data"][1:]},
        {**good, "data": good["data"][:, 1:]},
        {**good, "data": good["data"].astype(np.float32)},
        {**good, "data": np.array([None, {}])},
        {k: v for k, v in good.items() if k != kind.label_key},
    ):
        path.write_bytes(python_3(wrong))
        with refused(str(path)):
            kind.read(Source(tmp_path))
    # an array that is named but never filled, and one whose content is no text of bytes
    bare = b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\n)RU\x06labelsU\x0bfine_labelsu."
    for wrong_bytes in (bare, python_3(good).replace(b"latin1", b"utf-16"), b"hello", bytes(100)):
        path.write_bytes(wrong_bytes)
        with refused(str(path)):
            kind.read(Source(tmp_path))


def test_a_file_far_too_large_is_refused_unread(tmp_path: Path) -> None:
    path = write_python(KINDS[0], tmp_path, python_2) / "data_batch_1"
    with path.open("r+b") as file:
        file.truncate(10**12)
    with refused(str(path), str(10**12), "another file"):
        KINDS[0].read(Source(tmp_path))


class Harm:
    """Does something when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@each_kind
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_harmful_pickle_is_refused_and_does_nothing(tmp_path: Path, kind: CIFAR, protocol: int) -> None:
    path, trace = write_python(kind, tmp_path, python_2) / next(iter(kind.files)), tmp_path / "trace"
    harm = Harm(exec, f"import pathlib; pathlib.Path({str(trace)!r}).touch()")
    for content in (harm, {**table(kind, 0), "filenames": harm}):
        path.write_bytes(pickle.dumps(content, protocol=protocol))
        with refused(str(path), "exec", "not opened"):
            kind.read(Source(tmp_path))
        assert not trace.exists()
    pickle.loads(path.read_bytes())
    assert trace.exists(), "an ordinary reader would have fallen for it"


def test_a_harmful_list_of_names_is_refused_and_does_nothing(tmp_path: Path) -> None:
    path, trace = write_python(KINDS[1], tmp_path, python_2) / "meta", tmp_path / "trace"
    path.write_bytes(pickle.dumps(Harm(exec, f"import pathlib; pathlib.Path({str(trace)!r}).touch()")))
    with refused(str(path), "exec", "not opened"):
        KINDS[1].labels(Source(tmp_path))
    assert not trace.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04\x8c\x05numpy\x8c\x04load\x93.",
        b"\x80\x04\x8c\x05numpy\x8c\x15ndarray.__subclasses__\x93.",
        b"\x80\x04\x8c\x0cnumpy\x00\nndarr\x8c\x02x\ny\x93.",
        b"cos\nsystem\n(S'true'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x02\x82\x01.",
        b"Panything\n.",
        b"\x80\x02r\xff\xff\xff\xff.",
        b"cnumpy\nndarray\n(N}X\x0c\x00\x00\x00__setstate__Nstb.",
    ],
    ids=["numpy.load", "dotted", "control characters", "global", "inst", "extension", "persistent", "memo", "class"],
)
def test_other_ways_out_of_a_pickle_are_closed(tmp_path: Path, content: bytes) -> None:
    path = write_python(KINDS[0], tmp_path, python_2) / "data_batch_1"
    whole = path.read_bytes()
    path.write_bytes(content)
    with refused(str(path)):
        KINDS[0].read(Source(tmp_path))
    path.write_bytes(whole)
    assert len(KINDS[0].read(Source(tmp_path)).targets) == 72, "and nothing of it is left behind"


@pytest.mark.parametrize("kind", [CIFAR10(), CIFAR100(), TinyImageNet()], ids=lambda kind: kind.name)
def test_the_settings_and_the_origin_are_complete(kind: ImageSet) -> None:
    experiment = Experiment.from_tables(kind.defaults)
    assert experiment.model.preset == "output"
    assert (experiment.data.partition, experiment.data.concentration) == ("dirichlet", 0.5)
    assert experiment.solver.lr == 0.1
    assert kind.origin is not None
    (archive,) = kind.origin.archives
    assert archive.url.startswith("https://")
    assert re.fullmatch("md5:[0-9a-f]{32}", archive.checksum or "")
    with refused(archive.creates, archive.url.rpartition("/")[2], "missing"):
        kind.labels(Source(Path("nowhere")))
