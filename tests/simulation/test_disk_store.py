"""Clients kept in files: the same as in memory, whole whenever the process ends, and never silently wrong."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedapm import FedAPM, FedapmError, Interrupted
from fedapm.core.algorithm import State
from fedapm.core.messages import collect_messages
from fedapm.core.solver import SGDConfig
from fedapm.core.split import SplitRule
from fedapm.core.vec import Vec
from fedapm.data import Dirichlet
from fedapm.data.sets.digits import federation
from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.models import DigitsNet
from fedapm.runs.files import remove_leftovers
from fedapm.simulation import checkpoint, stores
from fedapm.simulation.callbacks import Checkpointer, History
from fedapm.simulation.engines import sequential
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.loop import Callback, Loop, Schedule
from fedapm.simulation.problem import Problem
from fedapm.simulation.sampling import Sampling
from fedapm.simulation.state import RunState
from fedapm.simulation.stores import open_store, rows
from fedapm.simulation.stores.base import ClientState, Store
from fedapm.simulation.stores.disk import KEEP_LAST, ROWS, DiskStore, Index, checkpoint_files
from fedapm.simulation.stores.layout import ALIGNED, Layout, unpack
from fedapm.simulation.stores.memory import MemoryStore
from tests.helpers.unit import few, refused

POPULATION = 7
SERVER = State(u=Vec({"w": torch.arange(3.0)}))

LAYOUTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"u": {"w": (torch.float32, (3, 4)), "b": (torch.float32, (4,))}, "xi": None}, {}),
    ({"v": {"w": (torch.bfloat16, (5,))}, "xi": None, "n": None}, {"steps": (torch.int64, ())}),
    ({"u": {"none": (torch.float64, (0, 3)), "one": (torch.float64, ())}}, {"mask": (torch.bool, (3,))}),
    ({"u": {"z": (torch.complex64, (2, 2))}, "v": {}}, {"u8": (torch.uint8, (1, 65)), "f16": (torch.float16, (1,))}),
    ({}, {}),
    # larger than a page of the file
    ({"u": {"w": (torch.float32, (1200,))}}, {"mean": (torch.float32, (7,))}),
]


def tensor(dtype: torch.dtype, shape: tuple[int, ...], stream: torch.Generator) -> torch.Tensor:
    """Any bits the type has, also those of NaN and infinity."""
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=stream).bool()
    count = int(np.prod(shape)) * dtype.itemsize
    return torch.randint(0, 256, (count,), generator=stream, dtype=torch.uint8).view(dtype).reshape(shape)


def kept(seed: int, layout: int | None = None) -> ClientState:
    """A client's memory, decided by a seed."""
    fields, buffers = LAYOUTS[seed % len(LAYOUTS) if layout is None else layout]
    stream = torch.Generator().manual_seed(seed)
    state = {
        name: seed / 3 if part is None else Vec({n: tensor(*about, stream) for n, about in part.items()})
        for name, part in fields.items()
    }
    return ClientState(State(**state), Vec({n: tensor(*about, stream) for n, about in buffers.items()}))


def start(client: int) -> ClientState:
    return kept(1000 + client)


def bits(vector: Vec) -> list[tuple[str, torch.dtype, tuple[int, ...], bytes]]:
    return [
        (n, t.dtype, tuple(t.shape), t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        for n, t in vector.items()
    ]


def picture(memory: ClientState) -> list[Any]:
    """All there is to a memory: names in their order, types, shapes and bits."""
    state = [(n, bits(v) if isinstance(v, Vec) else float(v)) for n, v in memory.state.items()]
    return [state, bits(memory.buffers)]


def pictures(store: Store, population: int = POPULATION) -> list[Any]:
    return [picture(store.get(k)) for k in range(population)]


def touched(store: Store) -> list[Any]:
    return [(k, picture(memory)) for k, memory in store.touched()]


def fresh(folder: Path, population: int = POPULATION) -> DiskStore:
    return DiskStore(folder / ROWS, start, population)


def save(folder: Path, store: Store, round: int) -> Path:
    return checkpoint.save(folder, RunState(round, SERVER, 10 * round, round), store)


def resume(folder: Path, store: Store, warn: Callable[[str], None] | None = None) -> RunState | None:
    with collect_messages() as messages:
        state = checkpoint.load_latest(folder, RunState(0, SERVER), store)
    for message in messages:
        assert warn is not None, message
        warn(message)
    return state


def row_file(folder: Path) -> Path:
    (path,) = (folder / ROWS).iterdir()
    return path


@pytest.mark.parametrize("layout", range(len(LAYOUTS)))
def test_every_kind_of_memory_comes_back_to_the_bit(tmp_path: Path, layout: int) -> None:
    store = fresh(tmp_path)
    memories = {k: kept(k, layout) for k in range(POPULATION)}
    store.commit(memories)
    assert touched(store) == [(k, picture(memory)) for k, memory in memories.items()]
    key = unpack(memories[0]).key
    assert Layout.of_note(Layout(key).note).key == key


def test_tensors_begin_where_torch_would_let_them_begin(tmp_path: Path) -> None:
    store = fresh(tmp_path)
    store.commit({k: kept(k) for k in range(POPULATION)})
    for _, memory in store.touched():
        tensors = [t for v in (*memory.state.vectors.values(), memory.buffers) for t in v.values()]
        assert all(t.is_contiguous() and t.data_ptr() % ALIGNED == 0 for t in tensors if t.numel())


def test_tensors_that_are_not_contiguous_or_have_a_graph_are_stored_by_value(tmp_path: Path) -> None:
    weight = torch.arange(6.0, requires_grad=True)
    odd = Vec({"t": weight.reshape(2, 3).T, "e": torch.ones(1).expand(3), "part": weight[::2] * 2})
    store = fresh(tmp_path)
    store.commit({0: ClientState(State(u=odd), Vec())})
    found = store.get(0).state.u
    assert found.equal(odd)
    assert not any(t.requires_grad for t in found.values())


def test_nothing_is_touched_before_the_first_commit(tmp_path: Path) -> None:
    store = fresh(tmp_path)
    assert pictures(store) == [picture(start(k)) for k in range(POPULATION)]
    assert touched(store) == []
    assert not list(tmp_path.iterdir())


def test_what_was_handed_out_does_not_change(tmp_path: Path) -> None:
    store = fresh(tmp_path)
    store.commit({0: kept(0, 0)})
    before = store.get(0)
    seen = picture(before)
    for seed in range(1, 5):
        store.commit({0: kept(seed, 0), 1: kept(seed, 0)})
        save(tmp_path, store, seed)
    assert picture(before) == seen
    before.state.u["w"].fill_(3)
    assert picture(store.get(0)) == picture(kept(4, 0))


def test_what_was_given_may_change(tmp_path: Path) -> None:
    store = fresh(tmp_path)
    memory = kept(0, 0)
    seen = picture(memory)
    store.commit({0: memory})
    memory.state.u["w"].zero_()
    assert picture(store.get(0)) == seen


memories = st.dictionaries(st.integers(0, POPULATION - 1), st.integers(0, 40), max_size=POPULATION)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), memories),
        st.tuples(st.just("rolled back"), memories),
        st.tuples(st.sampled_from(["save", "save", "resume", "resume in memory", "resume elsewhere"]), st.just({})),
    ),
    max_size=25,
)


@few
@given(steps)
def test_it_does_what_a_store_in_memory_does(
    tmp_path_factory: pytest.TempPathFactory, todo: list[tuple[str, dict[int, int]]]
) -> None:
    folder = tmp_path_factory.mktemp("store")
    store: Store = fresh(folder)
    twin: dict[int, ClientState] = {}
    saved: dict[int, ClientState] | None = None
    for round, (what, seeds) in enumerate(todo, start=1):
        updates = {k: kept(seed) for k, seed in seeds.items()}
        if what == "commit":
            store.commit(updates)
            twin |= updates
        elif what == "rolled back":
            previous = {k: store.get(k) for k in updates}
            store.commit(updates)
            store.commit(previous)
            twin |= {k: twin.get(k, start(k)) for k in updates}
        elif what == "save":
            save(folder, store, round)
            saved = dict(twin)
        elif what != "resume elsewhere":
            store = MemoryStore(start) if what == "resume in memory" else fresh(folder)
            assert (resume(folder, store) is None) == (saved is None)
            twin = dict(saved or {})
        else:
            # rows may also come from another run's folder
            folder, old = tmp_path_factory.mktemp("store"), folder
            store = fresh(folder)
            assert (resume(old, store) is None) == (saved is None)
            twin, saved = dict(saved or {}), None
        expected = MemoryStore(start)
        expected.commit(twin)
        assert touched(store) == touched(expected)
        assert pictures(store) == pictures(expected)


def test_both_kept_checkpoints_stay_whole_whatever_is_committed_later(tmp_path: Path) -> None:
    store = fresh(tmp_path)
    luck = random.Random(0)
    seen = {}
    for round in range(30):
        for _ in range(luck.randrange(4)):
            clients = luck.sample(range(POPULATION), luck.randrange(POPULATION + 1))
            store.commit({k: kept(luck.randrange(99)) for k in clients})
            for path in checkpoint_files(tmp_path):
                older = fresh(tmp_path)
                checkpoint.load(path, RunState(0, SERVER), older)
                assert pictures(older) == seen[path.name]
        seen[save(tmp_path, store, round).name] = pictures(store)
        assert len(checkpoint_files(tmp_path)) == min(round + 1, KEEP_LAST)


def test_going_back_to_an_older_checkpoint_leaves_it_whole(tmp_path: Path) -> None:
    store = fresh(tmp_path)
    for round in range(4):
        store.commit({k: kept(7 * round + k) for k in range(POPULATION)})
        save(tmp_path, store, 10 * round)
    newest, older = checkpoint_files(tmp_path)
    newest.write_bytes(newest.read_bytes()[:-1])
    for attempt in range(3):
        store, said = fresh(tmp_path), []
        progress = resume(tmp_path, store, said.append)
        assert progress is not None
        assert progress.round == 20
        assert str(newest) in said[0]
        assert pictures(store) == [picture(kept(14 + k)) for k in range(POPULATION)]
        for seed in range(5):
            store.commit({k: kept(100 * attempt + 10 * seed + k) for k in range(POPULATION)})
    save(tmp_path, store, 25)
    assert [p.name for p in checkpoint_files(tmp_path)] == ["round-000025.safetensors", older.name]
    last = fresh(tmp_path)
    resume(tmp_path, last)
    assert pictures(last) == pictures(store)


@pytest.mark.parametrize("kinds", list(itertools.product(["memory", "mapped"], repeat=2)), ids="-".join)
def test_a_run_goes_on_with_either_kind_of_store(tmp_path: Path, kinds: tuple[str, str]) -> None:
    stores = [MemoryStore(start) if kind == "memory" else fresh(tmp_path) for kind in kinds]
    stores[0].commit({k: kept(k) for k in range(0, POPULATION, 2)})
    save(tmp_path, stores[0], 3)
    progress = resume(tmp_path, stores[1])
    assert progress is not None
    assert (progress.round, progress.bytes_up, progress.bytes_down) == (3, 30, 3)
    assert progress.server.u.equal(SERVER.u)
    assert pictures(stores[1]) == pictures(stores[0])
    for round in (4, 5):
        stores[1].commit({0: kept(round)})
        save(tmp_path, stores[1], round)
    assert (tmp_path / ROWS).is_dir() == (kinds[1] == "mapped"), "rows that no checkpoint needs are removed"
    last = fresh(tmp_path)
    resume(tmp_path, last)
    assert pictures(last) == pictures(stores[1])


def test_a_checkpoint_in_another_folder_takes_its_rows_with_it(tmp_path: Path) -> None:
    store = fresh(tmp_path / "a")
    for round in range(3):
        store.commit({k: kept(10 * round + k) for k in range(5)})
        save(tmp_path / "b", store, round)
    store.commit({0: kept(99)})
    for path, round in zip(checkpoint_files(tmp_path / "b"), (2, 1), strict=True):
        other = fresh(tmp_path / "b")
        checkpoint.load(path, RunState(0, SERVER), other)
        assert pictures(other)[:5] == [picture(kept(10 * round + k)) for k in range(5)]
    assert not checkpoint_files(tmp_path / "a")


def used(folder: Path) -> tuple[int, int]:
    files = [p.stat() for p in folder.rglob("*") if p.is_file()]
    return sum(f.st_size for f in files), 512 * sum(f.st_blocks for f in files)


def test_what_few_clients_take_does_not_depend_on_how_many_there_are(tmp_path: Path) -> None:
    found = []
    for population in (1_000, 1_000_000):
        folder = tmp_path / str(population)
        store = fresh(folder, population)
        store.commit({population - k: kept(k, 5) for k in range(1, 11)})
        save(folder, store, 1)
        found.append(used(folder))
    # the number of clients is written down, in three digits more
    assert found[0][0] <= found[1][0] <= found[0][0] + 64
    assert found[1][1] <= found[0][1] + 4096


def test_files_do_not_grow_with_the_rounds(tmp_path: Path) -> None:
    store = fresh(tmp_path, 40)
    luck = random.Random(1)
    sizes = []
    for round in range(60):
        store.commit({k: kept(round, 5) for k in luck.sample(range(40), 4)})
        if round % 3 == 0:
            save(tmp_path, store, round)
        sizes.append(row_file(tmp_path).stat().st_size if round else 0)
    stride = sizes[1] // 8
    # each client's row, those of the cohorts since the older checkpoint, and one cohort's on its way
    assert max(sizes) <= stride * (40 + 6 * 4 + 4)


def test_without_checkpoints_there_are_never_more_than_two_rows_a_client(tmp_path: Path) -> None:
    store = fresh(tmp_path)
    store.commit({0: kept(0, 5)})
    stride = row_file(tmp_path).stat().st_size
    for seed in range(20):
        store.commit({0: kept(seed, 5)})
    assert row_file(tmp_path).stat().st_size <= 2 * stride


def test_the_system_may_read_and_write_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.preadv, os.pwrite
    monkeypatch.setattr(os, "preadv", lambda handle, into, place: read(handle, [into[0][:1000]], place))
    monkeypatch.setattr(os, "pwrite", lambda handle, data, place: write(handle, data[:1000], place))
    store = fresh(tmp_path)
    store.commit({k: kept(k, 5) for k in range(3)})
    assert pictures(store)[:3] == [picture(kept(k, 5)) for k in range(3)]


def open_files() -> int:
    """How many this process has open, where the system tells."""
    handles = Path("/proc/self/fd")
    return len(list(handles.iterdir())) if handles.is_dir() else 0


def test_more_layouts_than_files_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "OPEN_FILES", 3)
    before = open_files()
    store = fresh(tmp_path, 30)
    made = {k: ClientState(State(v=Vec({"head": torch.full((k,), float(k))})), Vec()) for k in range(30)}
    for _ in range(2):
        store.commit(made)
        save(tmp_path, store, 1)
    assert pictures(store, 30) == [picture(memory) for memory in made.values()]
    again = fresh(tmp_path, 30)
    resume(tmp_path, again)
    assert pictures(again, 30) == pictures(store, 30)
    assert open_files() <= before + 6
    del store, again
    assert open_files() == before


class Killed(BaseException):
    """The process ends here; nothing that was in its memory counts any more."""


def dying(monkeypatch: pytest.MonkeyPatch, last: int, how: str) -> Callable[[], int]:
    """End at one of the calls that change the disk; returns what counts them."""
    calls = 0

    def mortal(call: Callable[..., Any], half: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls != last:
                return call(*arguments, **named)
            if how != "before":
                (half if how == "in the middle" else call)(*arguments, **named)
            raise Killed

        return wrapped

    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", mortal(write, lambda handle, data, place: write(handle, data[:70], place)))
    for name in ("fsync", "replace", "unlink", "chmod", "mkdir"):
        monkeypatch.setattr(os, name, mortal(getattr(os, name), lambda *_, **__: None))
    return lambda: calls


def life(folder: Path, rounds: int) -> Iterator[int]:
    """A run whose every commit is decided by its round, from wherever it stands."""
    store = fresh(folder)
    progress = resume(folder, store)
    for round in range(progress.round + 1 if progress else 1, rounds + 1):
        store.commit(cohort(round))
        if round % 2 == 0:
            save(folder, store, round)
            yield round


def cohort(round: int) -> dict[int, ClientState]:
    luck = random.Random(round)
    return {k: kept(luck.randrange(10**6), luck.choice([0, 1, 5])) for k in luck.sample(range(POPULATION), 3)}


def after(round: int) -> Store:
    twin = MemoryStore(start)
    for r in range(1, round + 1):
        twin.commit(cohort(r))
    return twin


@pytest.mark.parametrize("how", ["before", "in the middle", "after"])
def test_the_process_may_end_at_any_change_of_the_disk(tmp_path: Path, how: str) -> None:
    rounds = 6
    for call in itertools.count(1):
        folder = tmp_path / str(call)
        saved = [0]
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
            calls = dying(patch, call, how)
            saved.extend(life(folder, rounds))
        if calls() < call:
            break
        remove_leftovers(folder)
        store = fresh(folder)
        progress = resume(folder, store)
        round = progress.round if progress else 0
        # the checkpoint that was being written is whole or not there
        assert round in (saved[-1], saved[-1] + 2)
        assert pictures(store) == pictures(after(round))
        list(life(folder, rounds))
        last = fresh(folder)
        resume(folder, last)
        assert pictures(last) == pictures(after(rounds))
    assert call > 40, "there were that many moments"


CHILD = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path[:0] = sys.argv[2:]
from tests.simulation.test_disk_store import life
for round in life(Path(sys.argv[1]), 10**9):
    print(round, flush=True)
"""


def test_kill_9_again_and_again_in_real_processes(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    for more in (3, 10):
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), str(root)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert process.stdout is not None
        told = [int(line) for line in itertools.islice(process.stdout, more)]
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        remove_leftovers(tmp_path)
        store = fresh(tmp_path)
        progress = resume(tmp_path, store)
        assert progress is not None
        assert progress.round >= told[-1]
        assert pictures(store) == pictures(after(progress.round))


def test_rows_are_on_the_disk_before_a_checkpoint_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: set[tuple[int, int]] = set()
    order = []
    write, sync, rename, remove = os.pwrite, os.fsync, os.replace, os.unlink

    def which(handle: int) -> tuple[int, int]:
        found = os.fstat(handle)
        return found.st_dev, found.st_ino

    def pwrite(handle: int, data: Any, place: int) -> int:
        waiting.add(which(handle))
        return write(handle, data, place)

    def fsync(handle: int) -> None:
        waiting.discard(which(handle))
        order.append("sync")
        sync(handle)

    def replaced(*names: Any) -> None:
        assert not waiting
        order.append("checkpoint")
        rename(*names)

    def unlink(*names: Any, **options: Any) -> None:
        # the name of the new one first, or a crash might leave neither
        assert order[-2:] in (["checkpoint", "sync"], ["sync", "removed"])
        order.append("removed")
        remove(*names, **options)

    for name, function in {"pwrite": pwrite, "fsync": fsync, "replace": replaced, "unlink": unlink}.items():
        monkeypatch.setattr(os, name, function)
    list(life(tmp_path, 8))
    assert order.count("checkpoint") == 4
    assert order.count("removed") == 2


def two_checkpoints(folder: Path) -> DiskStore:
    """Client 0 takes part only before the first of them, client 1 before both, client 2 between them."""
    store = fresh(folder)
    store.commit({0: kept(0, 5), 1: kept(1, 5)})
    save(folder, store, 1)
    store.commit({1: kept(11, 5), 2: kept(12, 5)})
    save(folder, store, 2)
    return store


def damage(folder: Path, content: bytes, change: Callable[[bytearray, int], None]) -> None:
    """Change the file at the place where this stands."""
    path = row_file(folder)
    whole = bytearray(path.read_bytes())
    change(whole, whole.index(content))
    path.write_bytes(whole)


def content(memory: ClientState) -> bytes:
    return bits(memory.state.u)[0][3]


def flip(whole: bytearray, at: int) -> None:
    whole[at + 17] ^= 0x10


def cut(whole: bytearray, at: int) -> None:
    del whole[at + 100 :]


@pytest.mark.parametrize("change", [flip, cut])
def test_damage_is_found_when_a_row_is_read(tmp_path: Path, change: Callable[[bytearray, int], None]) -> None:
    store = two_checkpoints(tmp_path)
    damage(tmp_path, content(kept(12, 5)), change)
    assert picture(store.get(1)) == picture(kept(11, 5)) if change is flip else True
    with refused(str(row_file(tmp_path)), "position 2", "checksum" if change is flip else "cut off", "resume the run"):
        store.get(2)
    with refused(str(tmp_path / ROWS), "lost"):
        save(tmp_path, store, 3)
    problem = Problem(federation(Dirichlet(2), test_fraction=0.2, seed=0), DigitsNet)
    engine = SequentialEngine(problem, FedAPM(), store)
    Checkpointer(engine, tmp_path, 1, 9).on_run_end(RunState(3, SERVER), "interrupted")
    assert [p.name for p in checkpoint_files(tmp_path)] == ["round-000002.safetensors", "round-000001.safetensors"]


@pytest.mark.parametrize("change", [flip, cut])
@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_a_checkpoint_with_a_damaged_row_is_passed_over(
    tmp_path: Path, change: Callable[[bytearray, int], None], kind: str
) -> None:
    two_checkpoints(tmp_path)
    damage(tmp_path, content(kept(12, 5)), change)
    said: list[str] = []
    store: Store = fresh(tmp_path) if kind == "disk" else MemoryStore(start)
    progress = resume(tmp_path, store, said.append)
    assert progress is not None
    assert progress.round == 1
    assert touched(store) == [(k, picture(kept(k, 5))) for k in (0, 1)]
    (warning,) = said
    for words in ("round-000002.safetensors", row_file(tmp_path).name, "position 2"):
        assert words in warning
    store.commit({2: kept(3, 5)})
    save(tmp_path, store, 2)
    last = fresh(tmp_path)
    resume(tmp_path, last)
    assert pictures(last) == pictures(store)


def test_any_damaged_byte_of_a_row_is_noticed(tmp_path: Path) -> None:
    store = fresh(tmp_path)
    store.commit({0: kept(1, 1), 1: kept(7, 1)})
    path = row_file(tmp_path)
    whole = path.read_bytes()
    half = len(whole) // 2
    for place in range(half):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with refused(str(path), "position 0"):
            store.get(0)
    path.write_bytes(whole)
    assert picture(store.get(0)) == picture(kept(1, 1))


def test_without_the_file_of_rows_there_is_no_checkpoint(tmp_path: Path) -> None:
    store = two_checkpoints(tmp_path)
    path = row_file(tmp_path)
    path.unlink()
    said: list[str] = []
    assert resume(tmp_path, fresh(tmp_path), said.append) is None
    assert len(said) == 2
    assert all(str(path) in warning and "missing" in warning for warning in said)
    store.commit({0: kept(5, 5)})
    with pytest.raises(FileNotFoundError, match=path.name):
        save(tmp_path, store, 3)
    with refused(str(tmp_path / ROWS), "lost"):
        save(tmp_path, store, 3)


def test_rows_that_cannot_be_read_now_are_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a run on a disk that is away for a moment would start again and lose what it has."""
    store = two_checkpoints(tmp_path)

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    for failing in (lambda: store.get(1), lambda: resume(tmp_path, fresh(tmp_path))):
        with pytest.raises(OSError, match="Input/output error") as caught:
            failing()
        assert caught.value.filename == str(row_file(tmp_path))
    assert store.damaged, "what cannot be read does not push older checkpoints out"


def test_a_checkpoint_of_another_population_is_refused(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    (newest, _) = checkpoint_files(tmp_path)
    with refused(str(newest), f"{POPULATION} clients", "has 8"):
        checkpoint.load(newest, RunState(0, SERVER), fresh(tmp_path, 8))


@pytest.mark.parametrize(
    ("change", "place"),
    [(lambda e: e[::-1], None), (-1, (0, 0)), (POPULATION, (0, -1)), (1, (1, 0)), (-1, (1, 0)), (-1, (2, 1))],
)
def test_an_index_that_makes_no_sense_is_refused(tmp_path: Path, change: Any, place: tuple[int, int] | None) -> None:
    index = two_checkpoints(tmp_path).index()
    entries = index.entries.copy()
    if place is None:
        entries[0] = change(entries[0])
    else:
        entries[place] = change
    with pytest.raises(ValueError, match="rows"):
        Index.of(index.note, torch.from_numpy(entries))
    about = {"round": 2, "bytes_up": 0, "bytes_down": 0, "server": {}, "rows": index.note}
    path = tmp_path / "round-000009.safetensors"
    checkpoint.write_tensors(path, {"rows": torch.from_numpy(entries)}, about)
    with refused(str(path), "not a checkpoint"):
        checkpoint.load(path, RunState(0, SERVER), fresh(tmp_path))


@pytest.mark.parametrize("note", [{}, {"state": [["u", [["w", "nonsense", [2]]]]], "buffers": []}, {"state": 3}])
def test_a_layout_that_makes_no_sense_is_refused(tmp_path: Path, note: dict[str, Any]) -> None:
    about = {"round": 2, "bytes_up": 0, "bytes_down": 0, "server": {}, "rows": {"population": 7, "layouts": [note]}}
    path = tmp_path / "round-000009.safetensors"
    checkpoint.write_tensors(path, {"rows": torch.zeros(4, 0, dtype=torch.int64)}, about)
    with refused(str(path), "not a checkpoint"):
        checkpoint.load(path, RunState(0, SERVER), fresh(tmp_path))


def failing(write: Callable[..., int], after: int) -> Callable[..., int]:
    """The disk is full after so many calls; one more is written as far as there is room."""
    calls = itertools.count()

    def full(handle: int, data: Any, place: int) -> int:
        call = next(calls)
        if call > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data if call < after else data[:10], place)

    return full


def test_a_commit_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = two_checkpoints(tmp_path)
    before = pictures(store)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", failing(os.pwrite, after=2))
        with pytest.raises(OSError, match="No space left") as caught:
            store.commit({k: kept(50 + k, 5) for k in range(4)})
    assert caught.value.filename == str(row_file(tmp_path))
    assert pictures(store) == before
    save(tmp_path, store, 3)
    store.commit({k: kept(50 + k, 5) for k in range(4)})
    again = fresh(tmp_path)
    resume(tmp_path, again)
    assert pictures(again) == before


@pytest.mark.parametrize("kind", ["memory", "mapped"])
def test_a_disk_that_is_full_when_a_run_is_resumed_does_not_start_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    source: Store = MemoryStore(start) if kind == "memory" else fresh(tmp_path / "a")
    for round in (1, 2):
        source.commit({k: kept(round + k) for k in range(4)})
        save(tmp_path / "a", source, round)
    store = fresh(tmp_path / ("a" if kind == "memory" else "b"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", failing(os.pwrite, after=2))
        with pytest.raises(OSError, match="No space left"):
            resume(tmp_path / "a", store)
    assert touched(store) == []
    resume(tmp_path / "a", store)
    assert pictures(store) == pictures(source)


def test_a_temporary_folder_goes_with_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = DiskStore.temporary(start, POPULATION)
    store.commit({3: kept(3)})
    assert picture(store.get(3)) == picture(kept(3))
    assert any(store.folder.iterdir())
    del store
    assert not list(tmp_path.iterdir())


def test_a_temporary_folder_stays_when_a_forked_process_drops_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = DiskStore.temporary(start, POPULATION)
    store.commit({3: kept(3)})
    folder, mine = store.folder, os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: mine + 1)
    del store
    assert any(folder.iterdir())


def test_the_kind_of_store_follows_from_the_size_unless_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(client: int) -> ClientState:
        return kept(client, 1)

    monkeypatch.setattr(stores, "LARGE", 10 * start(0).nbytes)
    for kind, population, expected in [
        ("auto", 10, MemoryStore),
        ("auto", 11, DiskStore),
        ("memory", 11, MemoryStore),
        ("disk", 1, DiskStore),
    ]:
        assert type(open_store(kind, tmp_path, start, population)) is expected  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
    made = open_store("disk", None, start, 3)
    assert isinstance(made, DiskStore)
    assert made.folder.parent == Path(tempfile.gettempdir())


def test_a_system_that_cannot_read_at_a_place_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "preadv")
    with refused("engine.store"):
        fresh(tmp_path)
    assert isinstance(open_store("auto", tmp_path, start, 10**12), MemoryStore)


@pytest.fixture(scope="module")
def clients() -> Any:
    return federation(Dirichlet(6, 1.0, 30), test_fraction=0.2, seed=0)


def loop(clients: Any, folder: Path | None, *callbacks: Any, rounds: int = 6) -> tuple[Loop, History]:
    """A run on digits, in memory or in a folder, which then also holds its checkpoints."""
    method, history = FedAPM(), History()
    solver = SGDConfig(lr=0.1, epochs=1, batch_size=20)
    problem = Problem(clients, DigitsNet, SplitRule(preset="output"), adapt=method.adapt, solver=solver, rounds=rounds)
    engine = SequentialEngine(problem, method)
    saves = []
    if folder is not None:
        engine.open_store("disk", folder / ROWS)
        saves = [Checkpointer(engine, folder, 2, 6)]
    return Loop(problem, method, Schedule(rounds, Sampling(0.5)), engine, [history, *saves, *callbacks]), history


def same(a: Loop, b: Loop) -> bool:
    stores = [run.engine.store for run in (a, b)]  # type: ignore[attr-defined]
    return picture(ClientState(a.state.server, Vec())) == picture(ClientState(b.state.server, Vec())) and (
        pictures(stores[0], len(a.problem)) == pictures(stores[1], len(b.problem))
    )


def test_a_run_in_files_is_the_run_in_memory(tmp_path: Path, clients: Any) -> None:
    straight, expected = loop(clients, None)
    inside, found = loop(clients, tmp_path)
    straight.run()
    inside.run()
    assert same(inside, straight)
    assert found.records == expected.records


@pytest.mark.parametrize("moment", ["train_client", "evaluate_client"])
def test_a_round_that_is_broken_off_leaves_the_round_before(
    tmp_path: Path, clients: Any, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    straight, expected = loop(clients, None)
    straight.run()
    shorter, _ = loop(clients, None)
    shorter.schedule = replace(shorter.schedule, rounds=3)
    shorter.run()
    original, calls = getattr(sequential, moment), itertools.count(1)
    # round 0 is evaluated and not trained; three clients train in a round, six are evaluated
    broken_call = 3 * 3 + 2 if moment == "train_client" else 4 * 6 + 2

    def broken(*arguments: Any) -> Any:
        if next(calls) == broken_call:
            raise KeyboardInterrupt
        return original(*arguments)

    inside, first = loop(clients, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(sequential, moment, broken)
        with pytest.raises(Interrupted, match="after round 3 of 6"):
            inside.run()
    assert same(inside, shorter)
    again, second = loop(clients, tmp_path)
    resumed = again.engine.load(tmp_path, again.state)
    assert resumed is not None
    assert resumed.state.round == 3
    again.run(resumed)
    assert same(again, straight)
    assert first.records + second.records == expected.records


def test_damage_in_the_middle_of_a_run_ends_it_and_the_run_goes_on_from_a_whole_checkpoint(
    tmp_path: Path, clients: Any
) -> None:
    straight, _ = loop(clients, None)
    straight.run()

    class Vandal(Callback):
        def on_round_end(self, state: RunState, record: Any, seconds: float) -> None:
            if state.round == 5:
                path = row_file(tmp_path)
                path.write_bytes(path.read_bytes()[:100])

    broken, _ = loop(clients, tmp_path, Vandal())
    with pytest.raises(FedapmError, match="cut off"):
        broken.run()
    assert [p.name for p in checkpoint_files(tmp_path)] == ["round-000004.safetensors", "round-000002.safetensors"]
    again, _ = loop(clients, tmp_path)
    with collect_messages() as messages:
        assert again.engine.load(tmp_path, again.state) is None, "both need rows that are gone"
    assert len(messages) == 2
    again.run()
    assert same(again, straight)


def test_a_run_folder_does_not_show_where_its_clients_were_kept(tmp_path: Path) -> None:
    tables = {"data": {"name": "digits", "clients": 6}, "solver": {"epochs": 1}, "engine": {"checkpoint_every": 2}}

    def go(name: str, store: str, rounds: int, **options: Any) -> Path:
        given = {"engine": {"store": store, "rounds": rounds}}
        execute(build.plan(build.resolve(tables, given)), tmp_path / name, progress=False, **options)
        return tmp_path / name

    straight = go("straight", "memory", 6)
    go("changing", "mapped", 3)
    go("changing", "memory", 4, resume=True)
    changing = go("changing", "mapped", 6, resume=True)
    assert (changing / "rounds.jsonl").read_bytes() == (straight / "rounds.jsonl").read_bytes()
    for path in (straight / "models").iterdir():
        assert (changing / "models" / path.name).read_bytes() == path.read_bytes()
    assert not (straight / "checkpoints" / ROWS).exists()
    assert row_file(changing / "checkpoints").stat().st_size > 0
