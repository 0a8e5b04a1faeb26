"""Runs side by side: the records of one after the other, whatever happens to the processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedapm.experiments import compare
from fedapm.experiments.compare import About, plans
from fedapm.runs.records import find_runs
from tests.helpers.cli import assert_refused, fedapm
from tests.helpers.forked import Forked

TINY = {
    "data": {"clients": 4},
    "solver": {"batch_size": 200, "epochs": 1},
    "engine": {"rounds": 3, "fraction": 0.5, "checkpoint_every": 1, "save_models": False},
}
METHODS, SEEDS = ("fedapm", "fedavg"), (0, 1)


def records(folder: Path) -> dict[str, bytes]:
    found = [*folder.rglob("rounds.jsonl"), *folder.rglob("config.toml"), *folder.rglob("run.json")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("straight") / "out"
    compare.run_all(plans(METHODS, SEEDS, TINY), out, progress=False, about=About(METHODS, SEEDS))
    return out


def test_two_at_a_time_leave_the_records_of_one_at_a_time(straight: Path, tmp_path: Path) -> None:
    folders = compare.run_all(plans(METHODS, SEEDS, TINY), tmp_path, about=About(METHODS, SEEDS), workers=2)
    assert records(tmp_path) == records(straight)
    assert len(folders) == 4
    assert json.loads((tmp_path / "compare.json").read_text()) == json.loads((straight / "compare.json").read_text())
    engines = {json.loads((folder / "engine.json").read_text())["engine"] for folder in folders}
    assert "processes" not in engines, "a worker has no workers of its own"


def test_a_run_that_diverges_stops_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wild = {"fedavg": {"solver": {"lr": 1e30}}}
    compare.run_all(plans(METHODS, SEEDS, TINY, wild), tmp_path, progress=False, workers=2)
    assert {(run.info["method"], run.complete) for run in find_runs(tmp_path)} == {("fedapm", True), ("fedavg", False)}
    assert "goes on without this run" in caplog.text


def test_killed_in_the_middle_it_goes_on_to_the_same_records(straight: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def work() -> None:
        compare.run_all(plans(METHODS, SEEDS, TINY), out, progress=False, workers=2)

    Forked(work, tmp_path / "said").until(lambda: list(out.rglob("rounds.jsonl"))).end()
    work()
    assert records(out) == records(straight)


def test_what_a_worker_refuses_is_one_line(tmp_path: Path) -> None:
    sets = ["--set", "data.clients=4", "--set", "engine.fraction=0.5", "--rounds", "1"]
    spoiled = tmp_path / "out" / "fedavg" / "seed-0"
    spoiled.mkdir(parents=True)
    (spoiled / "mine.txt").write_text("not a run")
    done = fedapm(
        "compare", "--methods", "fedavg", "--seeds", "0,1", "--workers", "2", *sets, "--out", tmp_path / "out"
    )
    assert_refused(done, "fedavg/seed-0", "is not empty")
