"""Runs side by side: the records of one after the other, whatever happens to the processes."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedapm.experiments import build, compare, side_by_side, sweep
from fedapm.experiments.compare import About, plans
from fedapm.experiments.side_by_side import Demand, runs_at_once
from fedapm.experiments.vary import parse_vary
from fedapm.runs.records import find_runs
from fedapm.simulation.engines.base import client_init
from fedapm.simulation.loop import Callback
from fedapm.simulation.memory import PROCESS, free_memory, run_bytes
from fedapm.simulation.pool import Parent, Pool, serve
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
    compare.run_all(plans(METHODS, SEEDS, TINY), out, progress=False, about=About(METHODS, SEEDS), workers=1)
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
    assert_refused(done, "FedAvg, seed 0", "fedavg/seed-0", "is not empty")


def test_a_sweep_side_by_side_leaves_the_records_of_one_after_the_other(tmp_path: Path) -> None:
    axes = [parse_vary("data.seed=0,1"), parse_vary("solver.lr=0.1,0.2")]
    runs = sweep.members(axes, ["local"], [0], TINY)
    for workers in (1, 2):
        sweep.run_all(axes, runs, tmp_path / str(workers), progress=False, workers=workers)
    assert len(records(tmp_path / "1")) == 3 * len(runs)
    assert records(tmp_path / "2") == records(tmp_path / "1")
    assert (tmp_path / "2" / "sweep.json").read_bytes() == (tmp_path / "1" / "sweep.json").read_bytes()


@pytest.mark.parametrize(
    ("processors", "free", "runs", "asked", "demand", "expected"),
    [
        (8, math.inf, 6, None, Demand("auto", None, 100), 6),
        (4, math.inf, 6, None, Demand("auto", None, 100), 4),
        (4, 250, 6, None, Demand("auto", None, 100), 2),
        (4, 10, 6, None, Demand("auto", None, 100), 1),
        (8, math.inf, 3, None, Demand("auto", None, 100), 1),
        (8, math.inf, 3, None, Demand("sequential", None, 100), 3),
        (1, math.inf, 6, None, Demand("auto", None, 100), 1),
        (1, 10, 6, 2, Demand("auto", None, 100), 2),
        (4, math.inf, 6, 1, Demand("auto", None, 100), 1),
        (4, math.inf, 1, 4, Demand("auto", None, 100), 1),
        (4, math.inf, 6, 4, Demand("processes", None, 100), 1),
        (4, math.inf, 6, None, Demand("ray", None, 100), 1),
        (4, math.inf, 6, 4, Demand("auto", "the device cannot be shared", 0), 1),
    ],
)
def test_as_many_at_a_time_as_there_are_processors_and_memory_for(
    processors: int,
    free: float,
    runs: int,
    asked: int | None,
    demand: Demand,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(side_by_side, "cores", lambda: processors)
    monkeypatch.setattr(side_by_side, "free_memory", lambda: free)
    assert runs_at_once(runs, asked, [Demand("sequential", None, 1), demand]) == expected
    assert ("one after the other" in caplog.text) == (demand.obstacle is not None)


def test_nobody_has_to_ask_for_several_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(side_by_side, "cores", lambda: 3)
    monkeypatch.setattr(compare, "run_side_by_side", lambda members, materials, at_once, **_: asked.append(at_once))
    monkeypatch.setattr(sweep, "run_side_by_side", lambda members, materials, at_once, **_: asked.append(at_once))
    compare.run_all(plans(METHODS, SEEDS, TINY), tmp_path / "compare", progress=False)
    axes = [parse_vary("solver.lr=0.1,0.2,0.3,0.4")]
    sweep.run_all(axes, sweep.members(axes, ["local"], [0], TINY), tmp_path / "sweep", progress=False)
    logged = [lambda *_: Callback()]
    compare.run_all(plans(["local"], SEEDS, TINY), tmp_path / "logged", progress=False, callbacks=logged)
    assert asked == [3, 3], "and a logger, which may write to one place, has one run after the other"


def test_what_a_worker_says_is_said_by_the_parent_with_the_name_of_its_job(caplog: pytest.LogCaptureFixture) -> None:
    def work(job: Mapping[str, Any], parent: Parent) -> Mapping[str, Any]:
        logging.getLogger("fedapm.core").warning("something is odd")
        logging.getLogger("fedapm.core").info("nobody asked for this")
        return {"done": parent.ask({"half": job["number"]})}

    class Job:
        name = "the job"

        def message(self) -> dict[str, Any]:
            return {"number": 3}

    heard: list[dict[str, Any]] = []

    def hear(job: Job, message: dict[str, Any]) -> dict[str, Any] | None:
        heard.append(message)
        return {"so": "on"} if "half" in message else None

    jobs = iter([Job()])
    with Pool[Job](lambda connection: serve(connection, work), (), 1, 60.0) as pool:
        pool.run(lambda: next(jobs, None), hear)
    assert heard == [{"half": 3}, {"done": {"so": "on"}}]
    assert caplog.record_tuples == [("fedapm.core", logging.WARNING, "the job: something is odd")]


def test_free_memory_is_the_smallest_of_what_the_system_and_its_container_leave(tmp_path: Path) -> None:
    assert free_memory(tmp_path) == math.inf
    files = {"proc/meminfo": "MemTotal: 100 kB\nMemAvailable:   50 kB\n"}
    assert _free(tmp_path, files) == 50 * 1024
    files = {"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "1000\n"}
    assert _free(tmp_path, files) == 50 * 1024, "a container without a limit"
    files = {"sys/fs/cgroup/memory.max": "9000\n", "sys/fs/cgroup/memory.stat": "anon 5\ninactive_file 400\n"}
    assert _free(tmp_path, files) == 9000 - 1000 + 400


def _free(root: Path, files: dict[str, str]) -> float:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return free_memory(root)


def test_a_run_takes_memory_for_its_states_its_cohort_and_a_batch() -> None:
    def need(**tables: dict[str, Any]) -> int:
        (experiment,) = plans(["fedapm"], [0], TINY, tables)
        return run_bytes(build.plan(experiment))

    least = need(engine={"store": "disk", "count": 1})
    assert PROCESS < least < need(engine={"store": "disk", "count": 4})
    spec = build.plan(plans(["fedapm"], [0], TINY)[0])
    states = 4 * client_init(spec.problem, spec.algorithm)(0).nbytes
    assert need(engine={"count": 1}) - least == 2 * states
    assert need(engine={"store": "disk", "count": 1}, solver={"batch_size": 20}) < least
