"""TinyImageNet: a small one that the test makes in the published layout, and the real one where it is at hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedapm import IID, Dirichlet
from fedapm.data.dataset import Pool, Source
from fedapm.data.partition import Partitioner
from fedapm.data.sets import tinyimagenet
from fedapm.data.sets.images import read_image, standardize
from fedapm.data.sets.tinyimagenet import TinyImageNet
from tests.helpers.realdata import unpacked
from tests.helpers.unit import refused

WNIDS = ["n03000000", "n01000000", "n02000000"]
WORDS = {"n01000000": "goldfish, Carassius auratus", "n02000000": "tench", "n09999999": "owl", "n03000000": "reel"}
EACH, VALIDATION = 12, 8


def picture(seed: int) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((64, 64))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of twelve training pictures, and eight validation pictures."""
    folder = tmp_path / "tiny-imagenet-200"
    for position, wnid in enumerate(WNIDS):
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        (images.parent / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t62\t62\n")
        for number in range(EACH):
            picture(100 * position + number).save(images / f"{wnid}_{number}.JPEG", "JPEG")
    (folder / "val" / "images").mkdir(parents=True)
    for number in range(VALIDATION):
        picture(1000 + number).save(folder / "val" / "images" / f"val_{number}.JPEG", "JPEG")
    lines = [f"val_{number}.JPEG\t{WNIDS[number % 2]}\t0\t0\t63\t63" for number in range(VALIDATION)]
    annotations(folder).write_text("\n".join(lines) + "\n")
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (folder / "words.txt").write_text("".join(f"{wnid}\t{word}\n" for wnid, word in WORDS.items()))
    (folder / "test" / "images").mkdir(parents=True)
    return folder


def annotations(folder: Path) -> Path:
    return folder / "val" / "val_annotations.txt"


def images(folder: Path, wnid: str) -> Path:
    return folder / "train" / wnid / "images"


def read(folder: Path) -> Pool:
    return TinyImageNet().read(Source(folder))


def test_order_and_classes(folder: Path) -> None:
    pool = read(folder)
    assert pool.classes == ("reel", "goldfish", "tench"), "the order of wnids.txt, the first of several words"
    assert pool.targets.tolist() == [0] * 12 + [1] * 12 + [2] * 12 + [0] * 4 + [1] * 4
    assert pool.targets.dtype == torch.int64
    assert pool.modalities == ("image",)
    paths = [images(folder, wnid) / f"{wnid}_{number}.JPEG" for wnid in WNIDS for number in range(EACH)]
    paths += [folder / "val" / "images" / f"val_{number}.JPEG" for number in (0, 2, 4, 6, 1, 3, 5, 7)]
    pixels = np.stack([read_image(path) for path in paths]).transpose(0, 3, 1, 2)
    mean, std = np.reshape([0.485, 0.456, 0.406], (3, 1, 1)), np.reshape([0.229, 0.224, 0.225], (3, 1, 1))
    assert np.allclose(pool.inputs[0].numpy(), (pixels / 255 - mean) / std, atol=1e-5)
    assert pool.inputs[0].is_contiguous(memory_format=torch.channels_last)


def test_labels_are_those_of_the_samples_and_open_no_picture(folder: Path) -> None:
    wanted = read(folder)
    for path in folder.rglob("*.JPEG"):
        path.write_bytes(b"")
    labels = TinyImageNet().labels(Source(folder))
    assert torch.equal(labels.targets, wanted.targets)
    assert (labels.classes, labels.modalities) == (wanted.classes, wanted.modalities)


def test_the_order_of_lines_and_how_they_end_do_not_matter(folder: Path) -> None:
    wanted = read(folder)
    lines = annotations(folder).read_text().split("\n")[:-1]
    annotations(folder).write_bytes("\r\n".join([*lines[::-1], "", ""]).encode())
    (folder / "wnids.txt").write_bytes(("\ufeff" + "\r\n".join(WNIDS)).encode())
    found = read(folder)
    assert torch.equal(found.targets, wanted.targets)
    assert torch.equal(found.inputs[0], wanted.inputs[0])
    assert found.classes == wanted.classes


def test_the_root_may_be_the_folder_or_its_parent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = read(folder.parent).targets
    assert torch.equal(read(folder).targets, wanted)
    monkeypatch.chdir(folder)
    assert torch.equal(read(Path()).targets, wanted)
    folder.rename(folder.parent / "other")
    assert torch.equal(read(folder.parent / "other").targets, wanted)


def test_what_file_managers_leave_behind_is_passed_over(folder: Path) -> None:
    wanted = read(folder).targets
    for name in (".DS_Store", f"._{WNIDS[0]}_0.JPEG", "Thumbs.db"):
        (images(folder, WNIDS[0]) / name).write_bytes(b"no picture")
        (folder / "val" / "images" / name).write_bytes(b"no picture")
    assert torch.equal(read(folder).targets, wanted)


def test_a_grey_picture_has_three_channels_all_the_same(folder: Path) -> None:
    picture(5).convert("L").save(images(folder, WNIDS[0]) / f"{WNIDS[0]}_0.JPEG", "JPEG")
    red, green, blue = TinyImageNet().read_images(Source(folder)).inputs[0][0]
    assert torch.equal(red, green)
    assert torch.equal(green, blue)


def test_a_class_without_a_word_is_called_by_its_id(folder: Path) -> None:
    (folder / "words.txt").write_text("n02000000\ttench\nn01000000\n")
    assert read(folder).classes == ("n03000000", "n01000000", "tench")
    (folder / "words.txt").unlink()
    assert read(folder).classes == tuple(WNIDS)


def test_progress_is_told_to_the_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tinyimagenet, "BLOCK", 20)
    reports: list[tuple[str, int, int]] = []
    TinyImageNet().read(Source(folder, progress=lambda *report: reports.append(report)))
    assert reports == [("images", 20, 44), ("images", 40, 44), ("images", 44, 44)]


def test_without_a_root_it_says_what_it_needs() -> None:
    with refused("tinyimagenet", "--data-root"):
        TinyImageNet().labels(Source())


def test_a_missing_folder_or_list_is_named(folder: Path, tmp_path: Path) -> None:
    with refused(str(tmp_path / "none" / "tiny-imagenet-200" / "wnids.txt"), "missing", "tiny-imagenet-200.zip"):
        read(tmp_path / "none")
    annotations(folder).unlink()
    with refused(str(annotations(folder)), "missing"):
        read(folder)
    (folder / "val").rename(folder / "validation")
    with refused(str(folder / "val" / "images"), "missing"):
        read(folder)
    (folder / "wnids.txt").unlink()
    with refused(str(folder / "wnids.txt"), "missing"):
        read(folder)


def test_a_listed_class_without_a_folder_is_named(folder: Path) -> None:
    images(folder, WNIDS[1]).parent.rename(folder / "train" / "elsewhere")
    with refused(WNIDS[1], str(images(folder, WNIDS[1])), "missing"):
        read(folder)


def test_a_class_without_pictures_is_named(folder: Path) -> None:
    for path in images(folder, WNIDS[2]).iterdir():
        path.unlink()
    with refused(WNIDS[2], str(images(folder, WNIDS[2])), "empty"):
        TinyImageNet().labels(Source(folder))


@pytest.mark.parametrize(
    ("content", "mentions"),
    [
        (b"", ["no class"]),
        (b"\n \n", ["no class"]),
        (b"n03000000\nn01000000\nn03000000\n", ["line 3", "n03000000", "twice"]),
        (b"n03000000\n../../secret\n", ["line 2", "'../../secret'"]),
        (b"n03000000, n01000000\n", ["line 1", "n03000000, n01000000"]),
        (b"\xff\xfe\x00\x81", ["not UTF-8"]),
    ],
)
def test_a_broken_list_of_classes_is_refused(folder: Path, content: bytes, mentions: list[str]) -> None:
    (folder / "wnids.txt").write_bytes(content)
    with refused(str(folder / "wnids.txt"), *mentions):
        read(folder)


@pytest.mark.parametrize(
    ("line", "mentions"),
    [
        ("val_99.JPEG\tn01000000\t0\t0\t63\t63", ["val_99.JPEG", "missing"]),
        ("../wnids.txt\tn01000000\t0\t0\t63\t63", ["../wnids.txt", "missing"]),
        ("val_3.JPEG\tn77777777\t0\t0\t63\t63", ["n77777777", "wnids.txt"]),
        ("val_3.JPEG", ["val_3.JPEG", "a tab and a class"]),
        ("val_3.JPEG n01000000 0 0 63 63", ["a tab and a class"]),
        ("val_3.JPEG\t\t0\t0", ["a tab and a class"]),
        ("val_2.JPEG\tn01000000\t0\t0\t63\t63", ["val_2.JPEG", "already"]),
        ("val_3\x0b\x85\u2028.JPEG\tn01000000", ["missing"]),
    ],
)
def test_a_broken_line_of_annotations_is_named(folder: Path, line: str, mentions: list[str]) -> None:
    lines = annotations(folder).read_text().split("\n")
    lines[3] = line
    annotations(folder).write_text("\n".join(lines), encoding="utf-8")
    for use in (read, lambda root: TinyImageNet().labels(Source(root))):
        with refused(str(annotations(folder)), "line 4", *mentions):
            use(folder)


def test_annotations_that_are_cut_off_are_refused(folder: Path) -> None:
    lines = annotations(folder).read_text().split("\n")
    annotations(folder).write_text("\n".join(lines[:5]))
    with refused(str(annotations(folder)), "val_5.JPEG", "cut off"):
        read(folder)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


@pytest.mark.parametrize(
    ("damage", "mention"),
    [
        (cut, "truncated"),
        (lambda path: path.write_bytes(b""), "empty"),
        (lambda path: path.write_text("moved"), "not an image"),
        (lambda path: picture(1).resize((32, 48)).save(path), "32×48 pixels instead of 64×64"),
    ],
    ids=["cut off", "empty", "text", "size"],
)
def test_a_picture_that_is_damaged_is_named(folder: Path, damage: Callable[[Path], object], mention: str) -> None:
    for path in (images(folder, WNIDS[1]) / f"{WNIDS[1]}_7.JPEG", folder / "val" / "images" / "val_6.JPEG"):
        whole = path.read_bytes()
        damage(path)
        with refused(str(path), mention):
            read(folder)
        path.write_bytes(whole)
    read(folder)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Twenty of the two hundred classes, as they are published."""
    return Source(unpacked("tinyimagenet", tmp_path_factory))


@pytest.fixture(scope="module")
def pool(real: Source) -> Pool:
    return TinyImageNet().read_images(real)


@pytest.mark.real_data
def test_all_real_pictures_are_there(pool: Pool) -> None:
    assert pool.inputs[0].shape == (11_000, 3, 64, 64)
    assert pool.inputs[0].dtype == torch.uint8
    assert torch.bincount(pool.targets).tolist() == [550] * 20
    assert torch.bincount(pool.targets[10_000:]).tolist() == [50] * 20


@pytest.mark.real_data
def test_real_labels_agree(real: Source, pool: Pool) -> None:
    labels = TinyImageNet().labels(real)
    assert torch.equal(labels.targets, pool.targets)
    assert labels.classes == pool.classes
    assert labels.classes[:3] == ("Egyptian cat", "reel", "volleyball")


@pytest.mark.real_data
def test_real_pictures_and_classes_belong_together(pool: Pool) -> None:
    """A class's mean picture is nearer to that of its other half than to any other class's."""
    x, y = pool.inputs[0][:10_000], pool.targets[:10_000]
    first, second = (
        torch.stack([x[half][y[half] == k].float().mean(0) for k in range(20)]).flatten(1)
        for half in (slice(0, None, 2), slice(1, None, 2))
    )
    assert torch.cdist(first, second).argmin(1).tolist() == list(range(20))


@pytest.mark.real_data
def test_real_channels_are_nearly_standard(pool: Pool) -> None:
    values = standardize(pool.inputs[0][::10], TinyImageNet.mean, TinyImageNet.std)
    assert values.mean((0, 2, 3)).abs().max() < 0.2, "they are standardised as all of ImageNet is"
    assert (values.std((0, 2, 3)) - 1).abs().max() < 0.3


@pytest.mark.parametrize("partitioner", [IID(3), Dirichlet(3, 0.5, 2)])
def test_pictures_are_dealt_out_once(folder: Path, partitioner: Partitioner) -> None:
    federation = TinyImageNet().federation(Source(folder), partitioner, test_fraction=0.2, seed=0)
    assert (federation.classes, federation.shapes, federation.modalities) == (3, ((3, 64, 64),), ("image",))
    found = [one for c in federation.clients for part in (c.train, c.test) for one in part.inputs[0]]
    wanted = read(folder).inputs[0]
    places = [next(k for k, other in enumerate(wanted) if torch.equal(one, other)) for one in found]
    assert sorted(places) == list(range(44))
