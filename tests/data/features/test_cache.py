"""Features on disk: work goes on where it stopped, and what is old, damaged or half done is never handed out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedapm.data.download import no_progress
from fedapm.data.features.cache import Item, complete, file_item, load, prepare, text_item
from fedapm.errors import FedapmError
from tests.helpers.unit import few, refused

SETTINGS = {"encoder": "counting", "version": 1}
HINT = "run: fedapm data prepare things"


class Numbers:
    """Items that are numbers, features that can be reports from them, and a list of what was computed."""

    def __init__(self, values: Sequence[int]) -> None:
        self.values = list(values)
        self.stamps = ["same"] * len(self.values)
        self.computed: list[list[int]] = []
        self.stop_at: int | None = None

    @property
    def items(self) -> list[Item]:
        return [
            Item(f"item {k}", stamp, lambda value=value: f"digest of {value}")
            for k, (value, stamp) in enumerate(zip(self.values, self.stamps, strict=True))
        ]

    def encode(self, positions: Sequence[int]) -> dict[str, Tensor]:
        if self.stop_at is not None and self.stop_at in positions:
            raise KeyboardInterrupt
        self.computed.append(list(positions))
        values = torch.tensor([self.values[k] for k in positions])
        return {"value": values, "row": torch.stack([values, -values], 1).half()}

    def prepare(self, folder: Path, shard: int = 4, settings: dict[str, Any] = SETTINGS) -> Path:
        self.computed.clear()
        return prepare(folder, self.items, settings, self.encode, what="numbers", progress=no_progress, shard=shard)

    def load(self, folder: Path, settings: dict[str, Any] = SETTINGS) -> dict[str, Tensor]:
        return load(folder, self.items, settings, what="numbers", advice=HINT)

    def are_loaded(self, folder: Path, settings: dict[str, Any] = SETTINGS) -> bool:
        made = self.load(folder, settings)
        values = torch.tensor(self.values)
        assert made["row"].dtype == torch.float16
        assert torch.equal(made["row"], torch.stack([values, -values], 1).half())
        return torch.equal(made["value"], values)


def unusable(numbers: Numbers, folder: Path, *mentions: str) -> None:
    """The features must be refused in a line that says why and ends in what to do."""
    with refused("numbers: ", *mentions):
        numbers.load(folder)
    with pytest.raises(FedapmError, match=f"; {HINT}$"):
        numbers.load(folder)


def shards(home: Path) -> list[Path]:
    return sorted(home.glob("*.safetensors"))


@few
@given(values=st.lists(st.integers(-1000, 1000), min_size=1, max_size=40), shard=st.integers(1, 45))
def test_what_is_prepared_is_loaded_in_order(values: list[int], shard: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        numbers = Numbers(values)
        home = numbers.prepare(Path(folder), shard)
        assert numbers.are_loaded(Path(folder))
        assert len(shards(home)) == -(-len(values) // shard)
        assert [k for part in numbers.computed for k in part] == list(range(len(values)))
        numbers.prepare(Path(folder), shard)
        assert numbers.computed == []


@few
@given(small=st.integers(1, 20), large=st.integers(1, 20), shard=st.integers(1, 7))
def test_the_first_of_a_long_list_are_extended_and_served_by_more(small: int, large: int, shard: int) -> None:
    small, large = sorted((small, large))
    numbers = Numbers(range(large))

    def prepare_first(folder: Path, count: int) -> None:
        numbers.computed.clear()
        items = numbers.items[:count]
        prepare(folder, items, SETTINGS, numbers.encode, what="n", progress=no_progress, shard=shard, prefix=True)

    def first(folder: Path, count: int) -> list[int]:
        made = load(folder, numbers.items[:count], SETTINGS, what="n", advice=HINT, prefix=True)
        return made["value"].tolist()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare_first(folder, small)
        prepare_first(folder, large)
        done = small if small == large else small - small % shard
        assert [k for part in numbers.computed for k in part] == list(range(done, large)), "whole shards are kept"
        assert complete(folder, numbers.items[:small], SETTINGS, prefix=True)
        assert first(folder, small) == list(range(small))
        prepare_first(folder, small)
        assert numbers.computed == []
        assert first(folder, large) == list(range(large)), "nothing was thrown away"


def test_damage_behind_the_first_of_a_long_list_is_repaired(tmp_path: Path) -> None:
    numbers = Numbers(range(12))
    home = numbers.prepare(tmp_path)
    shards(home)[0].write_bytes(b"damaged")
    numbers.computed.clear()
    first = numbers.items[:6]
    prepare(tmp_path, first, SETTINGS, numbers.encode, what="n", progress=no_progress, shard=4, prefix=True)
    assert numbers.computed == [[0, 1, 2, 3], [4, 5]]
    assert load(tmp_path, first, SETTINGS, what="n", advice=HINT, prefix=True)["value"].tolist() == list(range(6))


@few
@given(lengths=st.lists(st.integers(0, 7), min_size=1, max_size=20), shard=st.integers(1, 6))
def test_shards_of_different_lengths_are_padded_with_zeros(lengths: list[int], shard: int) -> None:
    items = [text_item(str(k), str(length)) for k, length in enumerate(lengths)]

    def encode(positions: Sequence[int]) -> dict[str, Tensor]:
        sequences = torch.zeros(len(positions), max(lengths[k] for k in positions), 2)
        for row, k in enumerate(positions):
            sequences[row, : lengths[k]] = k + 1
        return {"sequence": sequences, "length": torch.tensor([lengths[k] for k in positions])}

    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), items, {}, encode, what="sequences", progress=no_progress, shard=shard)
        made = load(Path(folder), items, {}, what="sequences", advice=HINT)
    assert made["sequence"].shape == (len(lengths), max(lengths), 2)
    for k, length in enumerate(lengths):
        assert made["length"][k] == length
        assert (made["sequence"][k, :length] == k + 1).all()
        assert (made["sequence"][k, length:] == 0).all()


def test_progress_is_told(tmp_path: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    numbers = Numbers(range(10))
    prepare(
        tmp_path,
        numbers.items,
        SETTINGS,
        numbers.encode,
        what="numbers",
        progress=lambda *a: reports.append(a),
        shard=4,
    )
    assert reports == [("numbers", 0, 10), ("numbers", 4, 10), ("numbers", 8, 10), ("numbers", 10, 10)]


def test_work_that_was_cut_off_goes_on_where_it_stopped(tmp_path: Path) -> None:
    numbers = Numbers(range(10))
    numbers.stop_at = 9
    with pytest.raises(KeyboardInterrupt):
        numbers.prepare(tmp_path)
    unusable(numbers, tmp_path, "incomplete")
    assert not complete(tmp_path, numbers.items, SETTINGS)
    numbers.stop_at = None
    numbers.prepare(tmp_path)
    assert numbers.computed == [[8, 9]]
    assert numbers.are_loaded(tmp_path)
    assert complete(tmp_path, numbers.items, SETTINGS)


def test_a_changed_item_recomputes_only_its_shard_and_the_old_one_goes(tmp_path: Path) -> None:
    numbers = Numbers(range(10))
    before = shards(numbers.prepare(tmp_path))
    numbers.values[5] = 555
    home = numbers.prepare(tmp_path)
    assert numbers.computed == [[4, 5, 6, 7]]
    assert numbers.are_loaded(tmp_path)
    after = shards(home)
    assert len(after) == 3
    assert len(set(before) & set(after)) == 2


def test_old_features_stay_until_new_ones_are_finished(tmp_path: Path) -> None:
    numbers = Numbers(range(10))
    numbers.prepare(tmp_path)
    numbers.values[1], numbers.stop_at = 111, 3
    with pytest.raises(KeyboardInterrupt):
        numbers.prepare(tmp_path)
    numbers.values[1] = 1
    assert numbers.are_loaded(tmp_path)


def test_an_item_whose_stamp_changed_is_out_of_date(tmp_path: Path) -> None:
    numbers = Numbers(range(10))
    numbers.prepare(tmp_path)
    numbers.stamps[6] = "other"
    unusable(numbers, tmp_path, "out of date", "item 6 has changed")
    # the content is the same after all, so that nothing has to be computed
    numbers.prepare(tmp_path)
    assert numbers.computed == []
    assert numbers.are_loaded(tmp_path)


def test_items_that_came_or_went_are_noticed(tmp_path: Path) -> None:
    numbers = Numbers(range(10))
    numbers.prepare(tmp_path)
    unusable(Numbers(range(9)), tmp_path, "10 samples instead of 9")
    unusable(Numbers(range(11)), tmp_path, "10 samples instead of 11")
    renamed = [Item(f"new {item.key}", item.stamp, item.digest) for item in numbers.items]
    with refused("new item 0 is in the place of item 0", HINT):
        load(tmp_path, renamed, SETTINGS, what="numbers", advice=HINT)


def test_other_settings_live_parallel_map(tmp_path: Path) -> None:
    numbers, other = Numbers(range(10)), {**SETTINGS, "version": 2}
    home = numbers.prepare(tmp_path)
    unusable_with_other = Numbers(range(10))
    with refused("no features", HINT):
        unusable_with_other.load(tmp_path, other)
    assert numbers.prepare(tmp_path, settings=other) != home
    assert len(numbers.computed) == 3
    assert numbers.are_loaded(tmp_path)
    assert numbers.are_loaded(tmp_path, other)


def test_features_that_were_never_made(tmp_path: Path) -> None:
    unusable(Numbers(range(3)), tmp_path, "there are no features")
    unusable(Numbers(range(3)), tmp_path / "nowhere", "there are no features")


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("damage", "mention"),
    [
        (flip, "checksum"),
        (lambda path: path.write_bytes(path.read_bytes()[:-7]), "damaged"),
        (lambda path: path.write_bytes(b""), "damaged"),
        (lambda path: path.write_bytes(b"\xff" * 100), "damaged"),
        (lambda path: path.unlink(), "missing"),
        (
            lambda path: path.write_bytes(sorted(path.parent.glob("*.safetensors"))[0].read_bytes()),
            "not the file that was written",
        ),
    ],
    ids=["flipped bit", "cut off", "empty", "garbage", "gone", "another shard"],
)
def test_a_damaged_shard_is_named_and_made_anew(tmp_path: Path, damage: Callable[[Path], Any], mention: str) -> None:
    numbers = Numbers(range(10))
    broken = shards(numbers.prepare(tmp_path))[1]
    damage(broken)
    unusable(numbers, tmp_path, broken.name, mention)
    numbers.prepare(tmp_path)
    assert numbers.computed == [[4, 5, 6, 7]]
    assert numbers.are_loaded(tmp_path)


def edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        index = json.loads(path.read_text())
        change(index)
        path.write_text(json.dumps(index))

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text("{"),
        lambda path: path.write_text("[1, 2]"),
        lambda path: path.write_bytes(b"\xff\xfe\x00"),
        edited(lambda index: index.pop("items")),
        edited(lambda index: index.pop("tensors")),
        edited(lambda index: index.update(items=[1, 2])),
        edited(lambda index: index["shards"].pop()),
        edited(lambda index: index["shards"][0].update(count="many")),
        edited(lambda index: index["shards"][0].update(count=3)),
        edited(lambda index: index["tensors"]["row"].update(shape=[1])),
        edited(lambda index: index["tensors"]["row"].update(shape=[-1])),
        edited(lambda index: index["tensors"]["row"].update(dtype="float33")),
        edited(lambda index: index["tensors"]["row"].update(dtype="float32")),
        edited(lambda index: index["settings"].update(version=7)),
        edited(lambda index: index.update(format=99)),
    ],
)
def test_a_damaged_index_is_refused_and_made_anew(tmp_path: Path, damage: Callable[[Path], Any]) -> None:
    numbers = Numbers(range(10))
    home = numbers.prepare(tmp_path)
    damage(home / "index.json")
    unusable(numbers, tmp_path, str(home))
    numbers.prepare(tmp_path)
    assert numbers.computed == []
    assert numbers.are_loaded(tmp_path)


def test_numbers_that_are_not_finite_are_refused_by_name(tmp_path: Path) -> None:
    numbers = Numbers(range(10))

    def encode(positions: Sequence[int]) -> dict[str, Tensor]:
        return {"row": torch.tensor([[1.0, float("nan") if k == 6 else 2.0] for k in positions])}

    with refused("numbers", "item 6", "not finite"):
        prepare(tmp_path, numbers.items, SETTINGS, encode, what="numbers", progress=no_progress, shard=4)


def test_an_encoder_that_forgets_items_is_a_mistake(tmp_path: Path) -> None:
    numbers = Numbers(range(10))
    with pytest.raises(ValueError, match="4 items"):
        prepare(
            tmp_path,
            numbers.items,
            SETTINGS,
            lambda some: {"x": torch.zeros(3)},
            what="n",
            progress=no_progress,
            shard=4,
        )
    with pytest.raises(ValueError, match="different kinds"):
        prepare(
            tmp_path, numbers.items, SETTINGS,
            lambda some: {"x": torch.zeros(len(some), dtype=torch.float32 if 0 in some else torch.int64)},
            what="n", progress=no_progress, shard=4,
        )  # fmt: skip


def test_nothing_to_prepare_is_said(tmp_path: Path) -> None:
    with refused("numbers", "nothing"):
        Numbers([]).prepare(tmp_path)


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with refused("numbers", str(tmp_path / "file"), "data.cache"):
        Numbers(range(3)).prepare(tmp_path / "file")


def test_files_are_items_by_size_and_content(tmp_path: Path) -> None:
    path = tmp_path / "picture.jpg"
    path.write_bytes(b"abc")
    before = file_item("picture.jpg", path)
    path.write_bytes(b"abd")
    after = file_item("picture.jpg", path)
    path.write_bytes(b"abcd")
    assert before.stamp == after.stamp != file_item("picture.jpg", path).stamp
    digest = after.digest()
    path.write_bytes(b"abd")
    assert after.digest() != digest
    path.unlink()
    with refused(str(path), "missing"):
        after.digest()
    with refused(str(path), "missing"):
        file_item("picture.jpg", path)
    assert text_item("a", "x").digest() != text_item("a", "y").digest()


def test_who_comes_second_waits_and_finds_the_work_done(tmp_path: Path) -> None:
    numbers, computed = Numbers(range(10)), []
    begun, waiting = threading.Event(), threading.Event()

    def encode(positions: Sequence[int]) -> dict[str, Tensor]:
        begun.set()
        assert waiting.wait(60), "the other one should wait by now"
        computed.append(list(positions))
        return {"value": torch.tensor(positions)}

    def second() -> None:
        assert begun.wait(60)
        prepare(tmp_path, numbers.items, SETTINGS, encode, what="numbers", progress=progress, shard=4)

    def progress(what: str, done: int, total: int) -> None:
        if "waiting" in what:
            waiting.set()

    other = threading.Thread(target=second)
    other.start()
    prepare(tmp_path, numbers.items, SETTINGS, encode, what="numbers", progress=no_progress, shard=4)
    other.join(60)
    assert not other.is_alive()
    assert computed == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert load(tmp_path, numbers.items, SETTINGS, what="numbers", advice=HINT)["value"].tolist() == list(range(10))


PROCESS = """
import sys, time
from pathlib import Path
import torch
from fedapm.data.features.cache import Item, prepare

folder, name, stop_at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def encode(positions):
    if stop_at in positions:
        (folder / f"{name}.stuck").touch()
        time.sleep(600)
    with (folder / f"{name}.log").open("a") as log:
        log.write("".join(f"{k}\\n" for k in positions))
    return {"value": torch.tensor(positions)}

items = [Item(f"item {k}", "same", lambda k=k: f"digest of {k}") for k in range(60)]
(folder / f"{name}.ready").touch()
while not (folder / "go").exists():
    time.sleep(0.01)
prepare(folder / "features", items, {"encoder": "counting", "version": 1}, encode, what="x", progress=print, shard=4)
"""


def process(folder: Path, name: str, stop_at: int = -1) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-c", PROCESS, str(folder), name, str(stop_at)]
    return subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def wait_for(path: Path, running: subprocess.Popen[bytes]) -> None:
    while not path.exists():
        assert running.poll() is None, "the process ended early"
        threading.Event().wait(0.02)


def sixty() -> Numbers:
    return Numbers(range(60))


def test_two_processes_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    running, computed = process(tmp_path, "other"), []

    def encode(positions: Sequence[int]) -> dict[str, Tensor]:
        # this process is in the middle of its work when the other one begins
        if not computed:
            wait_for(tmp_path / "other.ready", running)
            (tmp_path / "go").touch()
        computed.extend(positions)
        return {"value": torch.tensor(positions)}

    prepare(tmp_path / "features", sixty().items, SETTINGS, encode, what="x", progress=no_progress, shard=4)
    assert running.wait(120) == 0
    log = tmp_path / "other.log"
    theirs = [int(line) for line in log.read_text().split()] if log.exists() else []
    assert sorted(computed + theirs) == list(range(60)), "each item is computed once, by either"
    made = load(tmp_path / "features", sixty().items, SETTINGS, what="x", advice=HINT)
    assert made["value"].tolist() == list(range(60))


def test_a_process_that_is_killed_leaves_its_finished_shards(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    running = process(tmp_path, "one", stop_at=21)
    wait_for(tmp_path / "one.stuck", running)
    running.kill()
    assert running.wait(60) != 0
    numbers, computed = sixty(), []

    def encode(positions: Sequence[int]) -> dict[str, Tensor]:
        computed.extend(positions)
        return {"value": torch.tensor(positions)}

    home = prepare(tmp_path / "features", numbers.items, SETTINGS, encode, what="x", progress=no_progress, shard=4)
    assert computed == list(range(20, 60))
    made = load(tmp_path / "features", numbers.items, SETTINGS, what="x", advice=HINT)
    assert made["value"].tolist() == list(range(60))
    (home / ".0000000.safetensors.half.tmp").touch()
    prepare(tmp_path / "features", numbers.items, SETTINGS, encode, what="x", progress=no_progress, shard=4)
    assert not list(home.glob(".*.tmp"))
