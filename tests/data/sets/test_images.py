"""Pictures: whatever Pillow reads comes out as RGB bytes, and what it cannot read is refused in one line."""

from __future__ import annotations

import io
import os
import random
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedapm import IID
from fedapm.data.dataset import Pool, Source, federate
from fedapm.data.sets import images as images_module
from fedapm.data.sets.images import ImageSet, read_image, standardize
from tests.helpers.unit import few, refused, unless_refused

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)


def noise(height: int = 9, width: int = 13, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)


def smooth(height: int = 40, width: int = 48) -> np.ndarray:
    down, across = np.mgrid[0:height, 0:width]
    return np.stack([5 * down, 5 * across, 2 * (down + across)], 2).astype(np.uint8)


def encoded(pixels: np.ndarray, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def kept(folder: Path, content: bytes | Image.Image, name: str = "picture.png", **options: Any) -> Path:
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content.save(path, **options)
    return path


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_a_picture_comes_out_as_it_went_in(tmp_path: Path, kind: str) -> None:
    path = kept(tmp_path, encoded(noise(), kind), "picture.of.any.name")
    found = read_image(path)
    assert found.dtype == np.uint8
    assert np.array_equal(found, noise())
    found[0, 0, 0] = 1
    assert torch.from_numpy(found).shape == (9, 13, 3), "it can be written to, so torch takes it without a warning"


def test_a_jpeg_comes_out_nearly_as_it_went_in(tmp_path: Path) -> None:
    found = read_image(kept(tmp_path, encoded(smooth(), "JPEG", quality=95), "p.JPEG"))
    assert np.abs(found.astype(int) - smooth()).mean() < 3


def test_grey_becomes_three_equal_channels(tmp_path: Path) -> None:
    grey = noise()[:, :, 0]
    found = read_image(kept(tmp_path, Image.fromarray(grey)))
    assert np.array_equal(found, np.stack([grey] * 3, 2))


def test_black_and_white_becomes_0_and_255(tmp_path: Path) -> None:
    bits = noise()[:, :, 0] > 128
    found = read_image(kept(tmp_path, Image.fromarray(bits)))
    assert np.array_equal(found, np.stack([bits * 255] * 3, 2))


def test_deep_grey_keeps_its_levels(tmp_path: Path) -> None:
    deep = np.arange(0, 65536, 512, dtype=np.uint16).reshape(8, 16)
    found = read_image(kept(tmp_path, Image.fromarray(deep)))
    assert np.array_equal(found, np.stack([deep // 256] * 3, 2))


@pytest.mark.parametrize("transparency", [None, 3, bytes([0, 128, 255])])
def test_a_palette_becomes_its_colours(tmp_path: Path, transparency: int | bytes | None) -> None:
    palette = noise(1, 4)[0]
    index = noise()[:, :, 0] % 4
    image = Image.frombytes("P", (13, 9), index.tobytes())
    image.putpalette(palette.tobytes())
    options = {} if transparency is None else {"transparency": transparency}
    assert np.array_equal(read_image(kept(tmp_path, image, **options)), palette[index])


def test_transparency_is_dropped(tmp_path: Path) -> None:
    found = read_image(kept(tmp_path, Image.fromarray(noise(channels=4))))
    assert np.array_equal(found, noise(channels=4)[:, :, :3])


def test_printing_colours_become_screen_colours(tmp_path: Path) -> None:
    image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    found = read_image(kept(tmp_path, image, "p.jpg", quality=100))
    assert np.abs(found.astype(int) - [255, 0, 0]).max() <= 3, "no cyan, all magenta and yellow: red"


def test_a_moving_picture_gives_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (5, 4), colour) for colour in ("red", "blue")]
    found = read_image(kept(tmp_path, frames[0], "p.gif", save_all=True, append_images=frames[1:]))
    assert np.array_equal(found, np.broadcast_to([255, 0, 0], (4, 5, 3)))


def test_a_note_on_orientation_is_ignored(tmp_path: Path) -> None:
    notes = Image.Exif()
    notes[0x0112] = 6
    found = read_image(kept(tmp_path, Image.fromarray(noise()), exif=notes))
    assert np.array_equal(found, noise())


def test_a_missing_picture_is_refused(tmp_path: Path) -> None:
    with refused(str(tmp_path / "none.jpg"), "missing"):
        read_image(tmp_path / "none.jpg")
    with refused(str(tmp_path), "not a file"):
        read_image(tmp_path)


def test_an_empty_picture_is_refused(tmp_path: Path) -> None:
    with refused("p.jpg", "empty"):
        read_image(kept(tmp_path, b"", "p.jpg"))


@pytest.mark.parametrize("content", [b"<html>404</html>", b"\0" * 5000, b"%PDF-1.4 nothing", b"\xff\xd8\xff"])
def test_what_is_not_a_picture_is_refused(tmp_path: Path, content: bytes) -> None:
    with refused("p.jpg"):
        read_image(kept(tmp_path, content, "p.jpg"))


def test_a_program_in_postscript_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a Ghostscript that leaves a trace stands first in the path
    trace, program = tmp_path / "trace", tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {trace}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"
    with refused("p.jpg", "PostScript"):
        read_image(kept(tmp_path, content, "p.jpg"))
    assert not trace.exists()


@pytest.mark.parametrize("options", [{"kind": "JPEG"}, {"kind": "JPEG", "progressive": True}, {"kind": "PNG"}])
def test_a_picture_that_is_cut_off_anywhere_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    content = encoded(noise(30, 40), **options)
    whole = read_image(kept(tmp_path, content))
    for length in {*range(1, len(content), 53), *range(len(content) - 30, len(content))}:
        path = kept(tmp_path, content[:length], "cut.jpg")
        found = unless_refused(lambda path=path: read_image(path), str(path), "again")
        # the last bytes are checksums and marks of the end, of which a reader may do without some
        assert found is None or (length > 0.95 * len(content) and np.array_equal(found, whole))


@few
@given(st.sampled_from(["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP"]), st.integers(0, 10**6))
def test_damage_is_refused_in_one_line_or_decoded_but_never_worse(
    tmp_path_factory: pytest.TempPathFactory, kind: str, seed: int
) -> None:
    stream = random.Random(seed)
    content = bytearray(encoded(smooth(), kind))
    for _ in range(stream.randrange(1, 20)):
        content[stream.randrange(len(content))] = stream.randrange(256)
    path = kept(tmp_path_factory.getbasetemp(), bytes(content), "damaged")
    found = unless_refused(lambda: read_image(path), str(path))
    assert found is None or (found.ndim == 3 and found.shape[2] == 3 and found.dtype == np.uint8)


@pytest.mark.parametrize("limit", [80, 20], ids=["where Pillow warns", "where Pillow refuses"])
def test_a_picture_that_would_fill_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    path = kept(tmp_path, encoded(noise(), "PNG"), "huge.png")
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with refused("huge.png", "too large", "117 pixels"):
            read_image(path)
    assert shown == []


def test_threads_leave_the_filters_of_warnings_as_they_were(tmp_path: Path) -> None:
    path, before = kept(tmp_path, encoded(noise(), "PNG")), list(warnings.filters)
    with ThreadPoolExecutor(8) as threads:
        assert all(np.array_equal(found, noise()) for found in threads.map(read_image, [path] * 400))
    assert list(warnings.filters) == before


@pytest.mark.parametrize("count", [0, 1, images_module.BLOCK + 3])
@pytest.mark.parametrize("by_channel", [True, False])
def test_standardising(count: int, by_channel: bool) -> None:
    whole = np.random.default_rng(1).integers(0, 256, (count, 3, 4, 6), dtype=np.uint8)
    values = torch.from_numpy(whole)
    if not by_channel:
        values = values.contiguous(memory_format=torch.channels_last)
    found = standardize(values, MEAN, STD)
    assert found.shape == (count, 3, 4, 6)
    assert found.dtype == torch.float32
    assert found.is_contiguous(memory_format=torch.channels_last)
    wanted = (whole / 255 - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
    assert np.allclose(found.numpy(), wanted, atol=1e-6)
    assert np.array_equal(values.numpy(), whole), "the bytes stay as they were"


class Noise(ImageSet):
    """Sixty pictures of three classes."""

    name = "noise"
    about = "noise"
    defaults: ClassVar[dict[str, Any]] = {}
    mean, std = MEAN, STD

    def read_images(self, source: Source) -> Pool:
        bytes_ = np.random.default_rng(2).integers(0, 256, (60, 3, 5, 5), dtype=np.uint8)
        return Pool(torch.arange(60) % 3, ("a", "b", "c"), ("image",), inputs=(torch.from_numpy(bytes_),))


def test_dealing_bytes_out_gives_what_dealing_numbers_out_gives() -> None:
    found = Noise().federation(Source(), IID(4), test_fraction=0.2, seed=3)
    wanted = federate(Noise().read(Source()), IID(4), test_fraction=0.2, seed=3, name="noise")
    assert [c.id for c in found.clients] == [c.id for c in wanted.clients] == list("0123")
    assert (found.name, found.class_names, found.modalities) == ("noise", ("a", "b", "c"), ("image",))
    for one, other in zip(found.clients, wanted.clients, strict=True):
        for mine, theirs in ((one.train, other.train), (one.test, other.test)):
            assert torch.equal(mine.inputs[0], theirs.inputs[0])
            assert torch.equal(mine.targets, theirs.targets)
            assert mine.inputs[0].is_contiguous(memory_format=torch.channels_last)
