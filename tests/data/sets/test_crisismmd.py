"""CrisisMMD: a small archive in the published layout, every kind of damage to it, and the real one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedapm.data import Dirichlet, Source
from fedapm.data.features.images import EfficientNetLite0
from fedapm.data.features.text import MiniLM
from fedapm.data.sets.crisismmd import CLASSES, FILES, FOLDER, SPLIT, CrisisMMD, rows, without_links
from tests.helpers.realdata import unpacked
from tests.helpers.unit import refused

HEADER = [
    "event_name", "tweet_id", "image_id", "tweet_text", "image", "label", "label_text", "label_image",
    "label_text_image",
]  # fmt: skip

TWEETS = [
    ('"Pray for #Mexico" https://t.co/abc', "not_humanitarian"),
    (
        "Flood \u2028 water in the \"streets https://t.co/abc and 'more https://t.co/d",
        "infrastructure_and_utility_damage",
    ),
    ("https://t.co/xyz", "vehicle_damage"),
    ('5" of rain; #Harvey &amp; help', "affected_individuals"),
    ("RT @x: donate \U0001f64f", "rescue_volunteering_or_donation_effort"),
    ("¿Dónde están? 地震", "missing_or_found_people"),
]


def write(folder: Path, name: str, some: list[dict[str, str]]) -> None:
    lines = ["\t".join(HEADER), *("\t".join(row[column] for column in HEADER) for row in some)]
    (folder / SPLIT / name).write_text("\n".join(lines) + "\n", "utf-8", newline="")


def archive(root: Path) -> Path:
    """Three tables of six tweets and their pictures."""
    folder = root / FOLDER
    (folder / SPLIT).mkdir(parents=True)
    stream = np.random.default_rng(3)
    for part, name in enumerate(FILES):
        some = []
        for k, (text, label) in enumerate(TWEETS):
            kind = "png" if k == 2 else "jpg"
            key = f"{part}{k}_0"
            image = f"data_image/some_event/1_9_2017/{key}.{kind}"
            (folder / image).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(stream.integers(0, 256, (40, 50 + k, 3), np.uint8)).save(folder / image)
            some.append(
                dict(
                    zip(
                        HEADER, ("some_event", f"{part}{k}", key, text, image, "x", "x", label, "Negative"), strict=True
                    )
                )
            )
        write(folder, name, some)
    return root


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive whose features are there."""
    root = archive(tmp_path_factory.mktemp("crisis"))
    CrisisMMD().prepare(Source(root))
    return root


@pytest.fixture
def root(prepared: Path, tmp_path: Path) -> Path:
    """A copy of it that may be changed."""
    return Path(shutil.copytree(prepared, tmp_path / "data"))


def table(root: Path, part: int = 1) -> Path:
    return root / FOLDER / SPLIT / FILES[part]


def edit(path: Path, line: int, change: Callable[[str], str]) -> None:
    lines = path.read_text("utf-8").split("\n")
    lines[line - 1] = change(lines[line - 1])
    path.write_text("\n".join(lines), "utf-8", newline="")


def shards(root: Path) -> dict[str, set[tuple[str, int]]]:
    """The files of each modality's features, which are other files when they have been made anew."""
    base = Source(root).feature_folder("crisismmd")
    return {
        kind: {(path.name, path.stat().st_ino) for path in (base / kind).rglob("*.safetensors")}
        for kind in ("image", "text")
    }


def test_rows_are_pooled_in_order(prepared: Path) -> None:
    known = rows(prepared)
    assert [row.id for row in known] == [f"{part}{k}_0" for part in range(3) for k in range(6)]
    assert [row.text for row in known[:4]] == [
        '"Pray for #Mexico"',
        "Flood water in the \"streets and 'more",
        "",
        '5" of rain; #Harvey &amp; help',
    ]
    labels = CrisisMMD().labels(Source(prepared))
    assert labels.targets.tolist() == [CLASSES.index(label) for _, label in TWEETS] * 3
    assert labels.classes == CLASSES == tuple(sorted(CLASSES))
    assert labels.modalities == ("image", "text")
    assert labels.owners is not None
    assert set(labels.owners) == {"some_event"}, "the natural partition is by disaster"


def test_the_root_may_be_the_data_sets_own_folder(prepared: Path) -> None:
    assert [row.id for row in rows(prepared / FOLDER)] == [row.id for row in rows(prepared)]


@pytest.mark.parametrize(
    ("tweet", "text"),
    [
        ("https://t.co/a", ""),
        ("see https://t.co/a, HTTP://x.org/b?c=d#e  now", "see now"),
        ("  two\u00a0 spaces ", "two spaces"),
        ("cut off https://", "cut off"),
        ("no link: https", "no link: https"),
    ],
)
def test_links_are_stripped(tweet: str, text: str) -> None:
    assert without_links(tweet) == text


def test_labels_need_neither_pictures_nor_features(root: Path) -> None:
    shutil.rmtree(root / FOLDER / "data_image")
    shutil.rmtree(root / "fedapm-features")
    assert len(CrisisMMD().labels(Source(root)).targets) == 18


def test_a_pair_is_the_features_of_its_picture_and_its_text(prepared: Path) -> None:
    pool = CrisisMMD().read(Source(prepared))
    image, text, image_length, text_length = pool.inputs
    assert image.shape == (18, 1280)
    assert image.dtype == text.dtype == torch.float16
    assert text.shape[::2] == (18, 384)
    assert image_length.tolist() == [1] * 18
    assert image_length.dtype == text_length.dtype == torch.int64
    assert pool.modalities == ("image", "text")
    assert pool.targets.tolist() == CrisisMMD().labels(Source(prepared)).targets.tolist()
    known = rows(prepared)
    assert [row.id for row, length in zip(known, text_length, strict=True) if length == 0] == ["02_0", "12_0", "22_0"]
    assert not text[2].any(), "a tweet that is only a link has no text"
    some = [0, 7, 17]
    seen = EfficientNetLite0().files([prepared / FOLDER / known[k].image for k in some])
    assert torch.allclose(image[some].float(), seen.float(), atol=5e-3)
    understood = MiniLM()([known[k].text for k in some])
    assert text_length[some].tolist() == understood["length"].tolist()
    longest = understood["text"].shape[1]
    assert torch.allclose(text[some, :longest].float(), understood["text"].float(), atol=5e-3)


def test_pairs_are_dealt_out_to_clients(prepared: Path) -> None:
    dealt = CrisisMMD().federation(Source(prepared), Dirichlet(2, 1.0, minimum=4), test_fraction=0.25, seed=1)
    assert sum(len(client.train) + len(client.test) for client in dealt.clients) == 18
    assert dealt.has_lengths
    assert dealt.classes == 8
    assert dealt.has(0, "text")


def test_preparing_twice_computes_nothing(root: Path) -> None:
    CrisisMMD().prepare(Source(root))
    before = shards(root)
    reports: list[tuple[str, int, int]] = []
    assert (
        CrisisMMD().prepare(Source(root, progress=lambda *a: reports.append(a)))
        == root / "fedapm-features" / "crisismmd"
    )
    assert shards(root) == before
    assert reports[-1] == ("texts of crisismmd", 18, 18)


def test_a_changed_picture_leaves_the_texts_alone(root: Path) -> None:
    before, source = shards(root), Source(root)
    path = root / FOLDER / rows(root)[4].image
    Image.fromarray(np.zeros((30, 30, 3), np.uint8)).save(path)
    with refused("images of crisismmd", "out of date", path.name, f"fedapm data prepare crisismmd --data-root {root}"):
        CrisisMMD().read(source)
    CrisisMMD().prepare(source)
    after = shards(root)
    assert after["text"] == before["text"]
    assert after["image"] != before["image"]
    assert len(after["image"]) == len(before["image"])
    black = EfficientNetLite0()([np.zeros((30, 30, 3), np.uint8)])
    assert torch.allclose(CrisisMMD().read(source).inputs[0][4].float(), black[0].float(), atol=5e-3)


def test_a_changed_text_leaves_the_pictures_alone(root: Path) -> None:
    before = shards(root)
    edit(table(root), 2, lambda line: line.replace("Pray", "Hope"))
    with refused("texts of crisismmd", "out of date"):
        CrisisMMD().read(Source(root))
    CrisisMMD().prepare(Source(root))
    assert shards(root)["image"] == before["image"]
    assert shards(root)["text"] != before["text"]


def test_features_that_are_not_there_are_asked_for(root: Path, tmp_path: Path) -> None:
    with refused("images of crisismmd", "no features", "--image-encoder mobilenet-v2"):
        CrisisMMD().read(Source(root, image_encoder="mobilenet-v2"))
    with refused("texts of crisismmd", "no features", "--text-encoder mobilebert"):
        CrisisMMD().read(Source(root, text_encoder="mobilebert"))
    with refused("no features", f"--cache {tmp_path / 'other'}"):
        CrisisMMD().read(Source(root, cache=tmp_path / "other"))
    with refused("'minilmm'", "did you mean 'minilm'"):
        CrisisMMD().read(Source(root, text_encoder="minilmm"))


def test_missing_weights_are_said_before_anything_is_computed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    shutil.rmtree(root / "fedapm-features")
    with refused("google/mobilebert-uncased", "--fetch-weights", "minilm"):
        CrisisMMD().prepare(Source(root, text_encoder="mobilebert"))
    assert not (root / "fedapm-features").exists()


def fields(place: int, value: str | None) -> Callable[[str], str]:
    def change(line: str) -> str:
        values = line.split("\t")
        values[place : place + 1] = [] if value is None else [value]
        return "\t".join(values)

    return change


@pytest.mark.parametrize(
    ("line", "change", "mentions"),
    [
        (1, fields(7, "label_picture"), ["line 1", "label_image"]),
        (1, lambda line: line.replace("\t", ","), ["line 1", "image_id"]),
        (3, fields(2, None), ["line 3", "8 columns instead of 9"]),
        (3, fields(3, "a tab\tin a tweet"), ["line 3", "10 columns instead of 9"]),
        (7, lambda line: line[:40], ["line 7", "columns instead of 9"]),
        (4, fields(7, ""), ["line 4", "label_image is empty"]),
        (4, fields(7, "  "), ["line 4", "label_image is empty"]),
        (4, fields(7, "vehicle_damages"), ["line 4", "'vehicle_damages'", "did you mean 'vehicle_damage'"]),
        (5, fields(4, ""), ["line 5", "image ''"]),
        (5, fields(4, "/etc/passwd"), ["line 5", "/etc/passwd"]),
        (5, fields(4, "data_image/../../x.jpg"), ["line 5", "x.jpg"]),
    ],
)
def test_a_broken_row_is_named(root: Path, line: int, change: Callable[[str], str], mentions: list[str]) -> None:
    edit(table(root), line, change)
    with refused(FILES[1], *mentions):
        CrisisMMD().labels(Source(root))
    with refused(FILES[1], *mentions):
        CrisisMMD().read(Source(root))
    with refused(FILES[1], *mentions):
        CrisisMMD().prepare(Source(root))


@pytest.mark.parametrize(
    ("damage", "mentions"),
    [
        (lambda path: path.unlink(), ["missing", "crisismmd_datasplit_all.zip", "fedapm data get crisismmd"]),
        (lambda path: path.write_bytes(b""), ["line 1"]),
        (lambda path: path.write_text("\t".join(HEADER) + "\n\n"), ["no rows"]),
        (lambda path: path.write_bytes(path.read_text("utf-8").encode("utf-16")), ["line 1", "UTF-8"]),
        (lambda path: path.write_bytes(path.read_bytes().replace(b"\xc2\xbf", b"\xbf")), ["line 7", "UTF-8"]),
        (lambda path: (path.unlink(), path.mkdir()), ["cannot be read"]),
    ],
    ids=["missing", "empty", "header alone", "utf-16", "latin-1", "folder"],
)
def test_a_broken_table_is_named(root: Path, damage: Callable[[Path], Any], mentions: list[str]) -> None:
    damage(table(root))
    with refused(FILES[1], *mentions):
        CrisisMMD().labels(Source(root))


def test_tables_saved_on_windows_are_read(root: Path) -> None:
    before = [(row.id, row.text, row.label) for row in rows(root)]
    for part in range(3):
        raw = table(root, part).read_bytes()
        table(root, part).write_bytes(b"\xef\xbb\xbf" + raw.replace(b"\n", b"\r\n") + b"\r\n")
    assert [(row.id, row.text, row.label) for row in rows(root)] == before


def test_another_order_of_columns_is_read(root: Path) -> None:
    before = [(row.id, row.text, row.label) for row in rows(root)]
    for part in range(3):
        for line in range(1, 8):
            edit(table(root, part), line, lambda text: "\t".join(text.split("\t")[::-1]))
    assert [(row.id, row.text, row.label) for row in rows(root)] == before


def test_a_root_without_the_data_set_is_said(tmp_path: Path) -> None:
    with refused("--data-root", "fedapm data get crisismmd"):
        CrisisMMD().labels(Source())
    with refused(str(tmp_path / FOLDER), "missing"):
        CrisisMMD().labels(Source(tmp_path))


def test_a_missing_picture_is_named_with_its_row(root: Path) -> None:
    path = root / FOLDER / rows(root)[8].image
    path.unlink()
    for action in (CrisisMMD().read, CrisisMMD().prepare):
        with refused(FILES[1], "line 4", str(path), "missing", "CrisisMMD_v2.0.tar.gz"):
            action(Source(root))


@pytest.mark.parametrize("content", [lambda raw: raw[: len(raw) // 2], lambda raw: b"", lambda raw: b"<html>no</html>"])
def test_a_broken_picture_is_named_with_its_row(root: Path, content: Callable[[bytes], bytes]) -> None:
    path = root / FOLDER / rows(root)[8].image
    path.write_bytes(content(path.read_bytes()))
    with refused(FILES[1], "line 4", str(path)):
        CrisisMMD().prepare(Source(root))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("crisismmd", tmp_path_factory)


@pytest.mark.real_data
def test_the_real_labels(real: Path) -> None:
    labels = CrisisMMD().labels(Source(real))
    assert len(labels.targets) == 18_082
    counts = dict(zip(labels.classes, torch.bincount(labels.targets, minlength=8).tolist(), strict=True))
    assert counts == {
        "affected_individuals": 562,
        "infrastructure_and_utility_damage": 3624,
        "injured_or_dead_people": 110,
        "missing_or_found_people": 14,
        "not_humanitarian": 8708,
        "other_relevant_information": 2529,
        "rescue_volunteering_or_donation_effort": 2231,
        "vehicle_damage": 304,
    }


@pytest.mark.real_data
def test_the_real_rows(real: Path) -> None:
    known = rows(real)
    assert len({row.id for row in known}) == len({row.image for row in known}) == 18_082
    assert not any("http" in row.text for row in known)
    assert all(row.text for row in known)
    assert all((real / FOLDER / row.image).is_file() for row in known[::100])


@pytest.mark.real_data
def test_features_of_the_first_real_rows(real: Path, tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    (folder / SPLIT).mkdir(parents=True)
    (folder / "data_image").symlink_to(real / FOLDER / "data_image")
    for name in FILES:
        lines = (real / FOLDER / SPLIT / name).read_text("utf-8").split("\n")
        (folder / SPLIT / name).write_text("\n".join(lines[:15]) + "\n", "utf-8", newline="")
    source = Source(tmp_path)
    CrisisMMD().prepare(source)
    image, text, image_length, text_length = CrisisMMD().read(source).inputs
    assert image.shape == (42, 1280)
    assert text.shape == (42, int(text_length.max()), 384)
    assert text_length.min() > 0
    assert image_length.min() == 1
    assert len(image.float().unique(dim=0)) > 35, "hardly any two pictures are the same"
    for row, length in zip(text, text_length, strict=True):
        assert row[:length].any(1).all()
        assert not row[length:].any()
