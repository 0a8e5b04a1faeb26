"""Files are whole or not there, and damage is noticed whatever byte it hits."""

from __future__ import annotations

import gc
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedapm.runs import files
from fedapm.runs.files import read_json, read_tensors, write_atomic, write_json, write_tensors
from fedapm.runs.records import JsonLines, find_runs, load_run
from tests.helpers.unit import few, refused, unless_refused


def test_a_file_is_written_and_replaced_without_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "note.txt"
    write_atomic(path, "first")
    write_atomic(path, "zweitens: ü")
    assert path.read_text("utf-8") == "zweitens: ü"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    path = tmp_path / "note.txt"
    write_atomic(path, "old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    if step == "replace":
        monkeypatch.setattr(Path, step, fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_first_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "note.txt", "new")
    assert list(tmp_path.iterdir()) == []


def test_results_are_as_readable_as_any_other_file(tmp_path: Path) -> None:
    write_atomic(tmp_path / "ours", "x")
    (tmp_path / "theirs").write_text("x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "theirs").stat().st_mode


def test_json_round_trip_and_its_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"name": "ü", "value": [1, None]})
    assert read_json(path) == {"name": "ü", "value": [1, None]}
    for content, says in {b"{": "not valid JSON", b"\xff\xfe": "not valid JSON", b"[1]": "JSON object"}.items():
        path.write_bytes(content)
        with refused(str(path), says):
            read_json(path)
    with refused(str(tmp_path / "none.json"), "missing"):
        read_json(tmp_path / "none.json")


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any of the kinds a checkpoint holds, also of no dimension or of no element."""
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    stream = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    values = 1e3 * torch.randn(shape, generator=stream, dtype=torch.float64)
    made = values.to(draw(st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool])))
    return made.T if made.ndim == 2 and draw(st.booleans()) else made


notes = st.dictionaries(
    st.text(max_size=5), st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), max_size=3
)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(t.dtype == b[n].dtype and torch.equal(t, b[n]) for n, t in a.items())


@few
@given(st.dictionaries(st.text("abc./_ü", min_size=1, max_size=6), tensors(), max_size=4), notes)
def test_tensors_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, stored: dict[str, torch.Tensor], about: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("round") / "a.safetensors"
    write_tensors(path, stored, about)
    found, note = read_tensors(path)
    assert same(found, stored)
    assert note == about


@pytest.mark.parametrize("whole", [True, False])
def test_large_files_are_read_as_small_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    monkeypatch.setattr(files, "WHOLE", 1 << 26 if whole else 0)
    tensors = {"w": torch.randn(3, 2), "half": torch.ones(2, dtype=torch.bfloat16), "none": torch.zeros(0, 4)}
    write_tensors(tmp_path / "t", tensors, {"round": 3})
    found, about = read_tensors(tmp_path / "t")
    assert about == {"round": 3}
    assert all(
        torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in tensors.items()
    )
    found["w"].add_(1.0)


def test_reading_again_and_again_takes_no_more_memory(tmp_path: Path) -> None:
    write_tensors(tmp_path / "t", {str(k): torch.ones(3, 2) for k in range(8)})
    for _ in range(10):
        read_tensors(tmp_path / "t")
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(200):
        read_tensors(tmp_path / "t")
    gc.collect()
    # not one a tensor
    assert sys.getallocatedblocks() - before < 800


def test_equal_content_is_equal_bytes(tmp_path: Path) -> None:
    for name in "abcde":
        write_tensors(tmp_path / name, {"w": torch.ones(2), "b": torch.zeros(1)}, {"round": 1, "client": "x"})
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_numbers_that_are_not_finite_come_back_bit_by_bit(tmp_path: Path) -> None:
    odd = torch.tensor([float("nan"), float("inf"), -0.0])
    write_tensors(tmp_path / "a", {"odd": odd})
    found, _ = read_tensors(tmp_path / "a")
    assert torch.equal(found["odd"].view(torch.int32), odd.view(torch.int32))


def test_tensors_that_share_memory_are_stored_one_by_one(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    write_tensors(tmp_path / "a", {"all": base, "again": base, "half": base[:3]})
    found, _ = read_tensors(tmp_path / "a")
    assert same(found, {"all": base, "again": base, "half": base[:3]})


STORED = {
    "server/u/body.weight": torch.arange(6, dtype=torch.float64).reshape(2, 3),
    "steps": torch.tensor(3),
    "mask": torch.tensor([True, False]),
    "none": torch.zeros(0, 3),
}
ABOUT = {"round": 987654, "clients": {"0": ["u", "v"]}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_tensors(tmp_path / "c.safetensors", STORED, ABOUT)
    return tmp_path / "c.safetensors"


def is_refused(path: Path) -> bool:
    """Whether reading is refused in one line that names the file; if it is not, all must be as it was written."""
    found = unless_refused(lambda: read_tensors(path), str(path))
    if found is None:
        return True
    assert same(found[0], STORED)
    assert found[1] == ABOUT
    return False


def test_no_single_damaged_byte_goes_unnoticed(file: Path) -> None:
    whole = file.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    luck = random.Random(0)
    places = [*range(8), *luck.sample(range(8, header), 40), *luck.sample(range(header, len(whole)), 20)]
    refusals = 0
    for place in places:
        for flip in (0x01, 0x20, 0x80, luck.randrange(1, 256)):
            damaged = bytearray(whole)
            damaged[place] ^= flip
            file.write_bytes(damaged)
            refusals += is_refused(file)
    assert refusals >= 4 * len(places) - 8, "hardly any byte may be without meaning"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"shape":[2,3]', b'"shape":[3,2]'),
        (b'"shape":[0,3]', b'"shape":[0,2]'),
        (b'"dtype":"F64"', b'"dtype":"I64"'),
        (b'"steps"', b'"stops"'),
        (b"987654", b"987653"),
    ],
)
def test_a_description_that_was_changed_is_noticed_though_it_is_well_formed(file: Path, old: bytes, new: bytes) -> None:
    assert file.read_bytes().count(old) == 1
    file.write_bytes(file.read_bytes().replace(old, new))
    assert is_refused(file)


def test_no_truncation_goes_unnoticed(file: Path) -> None:
    whole = file.read_bytes()
    for length in [0, 1, 7, 8, 9, 50, len(whole) // 2, len(whole) - 8, len(whole) - 1]:
        file.write_bytes(whole[:length])
        assert is_refused(file), f"cut to {length} bytes"
    file.write_bytes(whole + b"\0")
    assert is_refused(file), "one byte too many"


def test_a_file_without_a_checksum_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(2)}, tmp_path / "plain.safetensors")
    with refused("plain.safetensors", "checksum"):
        read_tensors(tmp_path / "plain.safetensors")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with refused(str(tmp_path / "no.safetensors"), "missing"):
        read_tensors(tmp_path / "no.safetensors")
    with refused(str(tmp_path)):
        read_tensors(tmp_path)


def test_other_peoples_software_reads_our_files(file: Path) -> None:
    from safetensors.torch import load_file

    assert same(load_file(file), STORED)


ROWS = [{"round": k, "loss": 0.1 * k, "what": None} for k in range(4)]


@pytest.fixture
def lines(tmp_path: Path) -> JsonLines:
    log = JsonLines(tmp_path / "run" / "rounds.jsonl")
    for row in ROWS:
        log.append(row)
    return log


def test_lines_come_back_in_order(lines: JsonLines) -> None:
    assert list(lines) == ROWS
    assert lines.path.read_text().count("\n") == len(ROWS)
    assert list(JsonLines(lines.path.parent / "none.jsonl")) == []


def test_numbers_that_json_lacks_are_refused_before_anything_is_written(lines: JsonLines) -> None:
    before = lines.path.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        lines.append({"round": 4, "loss": float("nan")})
    assert lines.path.read_bytes() == before


@pytest.mark.parametrize(("last", "left"), [(-1, 0), (0, 1), (2, 3), (99, 4)])
def test_rewind_forgets_later_rounds_and_keeps_the_others_byte_for_byte(lines: JsonLines, last: int, left: int) -> None:
    before = lines.path.read_bytes()
    lines.rewind(last)
    assert list(lines) == ROWS[:left]
    assert before.startswith(lines.path.read_bytes())


def test_rewind_of_nothing_is_nothing(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "rounds.jsonl")
    log.rewind(5)
    assert list(log) == []


def test_a_last_line_that_was_cut_off_is_left_out_and_can_be_continued(lines: JsonLines) -> None:
    text = lines.path.read_text()
    for cut in (1, 5, len(text.splitlines()[-1])):
        lines.path.write_text(text[:-cut])
        assert list(lines) == ROWS[:3]
    lines.rewind(2)
    lines.append(ROWS[3])
    assert lines.path.read_text() == text


@pytest.mark.parametrize("bad", ["nonsense", "[1]", "3", '{"loss": 1}', "", '"round"'])
def test_a_bad_line_is_named_by_its_number(lines: JsonLines, bad: str) -> None:
    rows = lines.path.read_text().splitlines()
    lines.path.write_text("\n".join([rows[0], bad, *rows[1:]]) + "\n")
    with refused(str(lines.path), "line 2"):
        list(lines)


def test_a_run_folder_that_lacks_a_field_says_which(tmp_path: Path) -> None:
    with refused("not a run folder", "run.json"):
        load_run(tmp_path)
    write_json(tmp_path / "run.json", {"method": "fedapm", "seed": 0, "status": "complete"})
    with refused("run.json", "'clients'"):
        load_run(tmp_path)


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with refused(str(tmp_path), "holds no run"):
        find_runs(tmp_path)
    with refused("not a folder"):
        find_runs(tmp_path / "none")


def test_runs_are_found_below_a_folder_in_the_order_of_their_paths(tmp_path: Path) -> None:
    info = {"method": "fedapm", "status": "complete", "clients": []}
    for place, seed in {"b/seed-0": 0, "a/seed-1": 1, "a/seed-0": 0}.items():
        write_json(tmp_path / place / "run.json", info | {"seed": seed})
    found = find_runs(tmp_path)
    assert [str(run.path.relative_to(tmp_path)) for run in found] == ["a/seed-0", "a/seed-1", "b/seed-0"]
    assert [run.seed for run in found] == [0, 1, 0]
