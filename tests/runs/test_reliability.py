"""What a kill, a full disk, a second command or an edited file may do to a run folder: nothing that goes unnoticed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fedapm import Callback, FedapmError, train
from fedapm.runs import folder as folders
from fedapm.runs.config import read_config
from fedapm.runs.files import read_json, read_toml, write_atomic, write_json
from fedapm.runs.folder import clear_beginning, entered, is_nothing_yet, locked, refuse_to_overwrite
from fedapm.runs.provenance import command_times
from fedapm.runs.records import JsonLines, chained, load_run
from fedapm.simulation.early_stopping import EarlyStopping
from tests.helpers.unit import blob_clients, refused, two_layers

SOME = {"rounds": 2, "personal": ["head.*"], "engine": "sequential", "fraction": 1.0}


def run(out: Path, **options: Any) -> Any:
    clients = options.pop("clients", None) or blob_clients()
    model = options.pop("model", two_layers)
    return train(clients, model, out=out, **{**SOME, **options})


def content(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("straight") / "run"
    run(out)
    return out


@pytest.fixture
def done(straight: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(straight, tmp_path / "run"))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "PATIENCE", 0.05)


# one command at a time


def test_a_lock_that_was_left_behind_is_taken_over_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom fedapm.runs.folder import locked\n"
        "with locked(Path(sys.argv[1])):\n    print(os.getpid(), flush=True)\n    os._exit(9)"
    )
    left = subprocess.run([sys.executable, "-c", script, str(tmp_path / "run")], check=False, capture_output=True)
    with locked(tmp_path / "run"):
        pass
    assert f"process {int(left.stdout)} ended without giving {tmp_path / 'run'} back" in caplog.text
    caplog.clear()
    with locked(tmp_path / "run"):
        pass
    assert caplog.text == "", "a lock that was given back is nobody's"


def test_a_command_may_lock_its_own_folder_again_but_nobody_else(tmp_path: Path) -> None:
    said: list[str] = []

    def other() -> None:
        try:
            with locked(tmp_path / "run"):
                said.append("not alone")
        except FedapmError as error:
            said.append(str(error))

    with entered(tmp_path / "run"):
        with locked(tmp_path / "run"):
            pass
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert "another fedapm command is at work" in said[0]


# a start that was cut off


@pytest.mark.parametrize(
    "left", [["run.json"], ["run.json", "config.toml"], ["run.json", "config.toml", "engine.json"]]
)
@pytest.mark.parametrize("resume", [False, True])
def test_what_a_killed_start_leaves_is_nothing_done_yet(
    straight: Path, tmp_path: Path, left: list[str], resume: bool
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    for name in left:
        shutil.copy(straight / name, out / name)
    write_json(out / "run.json", read_json(out / "run.json") | {"status": "running"})
    (out / ".config.toml.abc.tmp").write_text("half")
    (out / "rounds.jsonl").write_text('{"round":0,"sel')
    run(out, resume=resume)
    same = [name for name in content(straight) if name != "timings.jsonl"]
    assert {name: content(out)[name] for name in same} == {name: content(straight)[name] for name in same}
    assert {*content(out)} == {*content(straight)}


@pytest.mark.parametrize("name", ["config.toml", "checkpoints/best.pt", "logs/mine.txt", "rounds.jsonl", "models/a.pt"])
def test_what_may_be_somebody_elses_is_not_taken_for_a_start(tmp_path: Path, name: str) -> None:
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("precious")
    assert not is_nothing_yet(tmp_path / "out")
    with refused("not empty"):
        refuse_to_overwrite(tmp_path / "out")


def test_a_run_with_a_checkpoint_or_a_record_is_not_nothing(done: Path) -> None:
    assert not is_nothing_yet(done)
    shutil.rmtree(done / "checkpoints")
    shutil.rmtree(done / "models")
    (done / "classes.json").unlink()
    assert not is_nothing_yet(done)
    (done / "rounds.jsonl").unlink()
    assert not is_nothing_yet(done), "it says that it is complete"
    write_json(done / "run.json", read_json(done / "run.json") | {"status": "running"})
    assert is_nothing_yet(done)
    clear_beginning(done)
    assert list(done.iterdir()) == []


# records


def test_a_complete_run_that_lacks_rounds_is_refused(done: Path) -> None:
    lines = (done / "rounds.jsonl").read_text().splitlines(keepends=True)
    for kept in (lines[:2], [], lines[1:], [*lines, lines[-1]], [lines[0], lines[2], lines[1]]):
        (done / "rounds.jsonl").write_text("".join(kept))
        with refused(str(done / "rounds.jsonl"), "does not hold"):
            load_run(done)


def test_a_run_under_way_may_lack_the_last_rounds_but_none_between(done: Path) -> None:
    write_json(done / "run.json", read_json(done / "run.json") | {"status": "running"})
    lines = (done / "rounds.jsonl").read_text().splitlines(keepends=True)
    (done / "rounds.jsonl").write_text("".join(lines[:2]))
    assert len(load_run(done).rounds) == 2
    (done / "rounds.jsonl").write_text(lines[0] + lines[2])
    with refused("one line for each round in order"):
        load_run(done)


def test_a_run_that_stopped_early_is_whole(tmp_path: Path) -> None:
    stops = EarlyStopping("train_loss", patience=1, min_delta=1e9)
    run(tmp_path / "run", rounds=9, callbacks=[stops])
    assert len(load_run(tmp_path / "run").rounds) < 10


def test_an_edited_record_is_found_before_anything_is_touched(done: Path) -> None:
    text = (done / "rounds.jsonl").read_text()
    (done / "rounds.jsonl").write_text(text.replace('"bytes_up":', '"bytes_up":1', 1))
    before = content(done)
    with refused("rounds.jsonl", "does not hold what was recorded", "checkpoint of round 2"):
        run(done, rounds=4, resume=True)
    assert content(done) == before


def test_the_digest_of_records_knows_order_and_number() -> None:
    rows = [{"round": k, "loss": 0.5 * k} for k in range(3)]
    whole = chained("", rows)
    assert whole == chained(chained("", rows[:2]), rows[2:])
    assert len({whole, chained("", rows[:2]), chained("", rows[::-1]), chained("", rows[1:])}) == 4


class Meddler(Callback):
    """Removes the records in the middle of a run."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def on_server_update(self, state: Any, record: Any) -> None:
        if state.round == 2:
            (self.out / "rounds.jsonl").unlink()


def test_a_run_whose_records_vanish_does_not_end_complete(tmp_path: Path) -> None:
    with refused("rounds.jsonl", "changed or removed while the run was under way"):
        run(tmp_path / "run", rounds=3, callbacks=[Meddler(tmp_path / "run")])
    assert read_json(tmp_path / "run" / "run.json")["status"] != "complete"


# resuming something else


def other_ids() -> Any:
    from fedapm import Federation
    from tests.helpers.unit import blobs

    return Federation.from_clients({name: blobs(20, seed=k) for k, name in enumerate("xyz")}, name="blobs")


@pytest.mark.parametrize(
    ("says", "options"),
    [
        ("another network", {"model": lambda: two_layers(width=7)}),
        ("other clients", {"clients": other_ids()}),
        ("other data", {"clients": blob_clients(each=25)}),
        ("other data", {"clients": blob_clients(seed=5)}),
    ],
)
def test_another_run_is_refused_in_one_line_and_nothing_is_touched(
    done: Path, says: str, options: dict[str, Any]
) -> None:
    before = content(done)
    with refused(f"{done} was run with {says}"):
        run(done, rounds=4, resume=True, **options)
    assert content(done) == before


def test_a_run_of_an_earlier_version_without_digests_goes_on(done: Path, straight: Path) -> None:
    info = read_json(done / "run.json")
    write_json(done / "run.json", {k: v for k, v in info.items() if k != "digests"})
    run(done, rounds=3, resume=True)
    assert len(load_run(done).rounds) == 4


# the disk


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for write in (lambda p: write_atomic(p, "x"), lambda p: JsonLines(p).append({"round": 0})):
        with pytest.raises(OSError, match="No space left") as caught:
            write(tmp_path / "rounds.jsonl")
        assert caught.value.filename == str(tmp_path / "rounds.jsonl")


def test_a_folder_is_synced_after_a_file_in_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    sync = os.fsync

    def fsync(handle: int) -> None:
        synced.append(os.path.samestat(os.fstat(handle), tmp_path.stat()) and (tmp_path / "a").exists())
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomic(tmp_path / "a", "x")
    assert synced == [False, True]
    JsonLines(tmp_path / "b").append({"round": 0})
    JsonLines(tmp_path / "b").append({"round": 1})
    assert synced == [False, True, False, True, False], "a new name is synced once"


# readers


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "text", ["{", "[]", "3", '{"a":' * 100_000, '{"a": ' + "1" * 5000 + "}", "\x00", '{"a": "\ud800"}']
)
def test_a_json_file_that_is_none_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with refused("a.json"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("text", [f"a = {DEEP}", "a = 1\na = 2", "\x00", "a = " + "1" * 5000])
def test_a_toml_file_that_is_none_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with refused("config.toml"):
        read_toml(tmp_path / "config.toml")
    with refused("config.toml"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seed": "zero"}, "seed"),
        ({"clients": [3]}, "clients"),
        ({"clients": [{"train": 3}]}, "clients.0.id"),
        ({"rounds": "many"}, "rounds"),
        ({"views": {}}, "views"),
        ({"parameters": [1]}, "parameters"),
        ({"finished": -1}, "finished"),
        ({"label": None}, "label"),
    ],
)
def test_a_description_of_another_form_says_which_field(done: Path, change: dict[str, Any], says: str) -> None:
    write_json(done / "run.json", read_json(done / "run.json") | change)
    with refused("run.json", says):
        load_run(done)


@pytest.mark.parametrize(
    "change",
    [
        {"evaluations": 3},
        {"evaluations": {"model": [1]}},
        {"evaluations": {"model": {"accuracy": {"mean": "high"}}}},
        {"selected": "all"},
        {"total_bytes_up": None},
        {"round": True},
        {"round": -1},
        {"drift": "NaN"},
    ],
)
def test_a_record_of_another_form_says_which_line(done: Path, change: dict[str, Any]) -> None:
    lines = (done / "rounds.jsonl").read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | change)
    (done / "rounds.jsonl").write_text("\n".join([*lines, ""]))
    with refused("rounds.jsonl", "line 2"):
        load_run(done)


def test_lines_about_time_that_are_none_are_passed_over(tmp_path: Path) -> None:
    good = '{"began": "a", "ended": "b", "wall_seconds": 1, "processor_seconds": 2}'
    bad = [
        b"\xff\xfe",
        DEEP.encode(),
        b'{"wall_seconds": 1e999, "processor_seconds": 1, "began": "", "ended": ""}',
        b"3",
    ]
    (tmp_path / "sessions.jsonl").write_bytes(b"\n".join([*bad, good.encode(), b""]))
    assert [entry.wall_seconds for entry in command_times(tmp_path)] == [1.0]
