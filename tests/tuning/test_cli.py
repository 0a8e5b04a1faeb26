"""``fedapm tune`` as a user meets it: killed and started again, interrupted, mistyped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedapm.runs.records import load_run
from fedapm.tuning import Options, tune
from fedapm.tuning.study import quiet, storage
from tests.helpers.cli import fedapm
from tests.helpers.forked import PATIENCE, Forked, program

METHODS = ["local"]
SEARCH = "solver.lr=0.05,0.1,0.3"
ROUNDS, TRIALS = 30, 4
SETTINGS = [
    "data.clients=4",
    "engine.fraction=0.5",
    "solver.batch_size=200",
    "engine.checkpoint_every=2",
    "engine.evaluate_every=5",
]


def command(out: Path, *more: str) -> list[str]:
    sets = [part for setting in SETTINGS for part in ("--set", setting)]
    search = ["--search", SEARCH, "--pruner", "none", "--trials", str(TRIALS), "--rounds", str(ROUNDS)]
    return ["tune", "--methods", ",".join(METHODS), *search, "--workers", "2", "--out", str(out), *sets, *more]


def start(out: Path) -> Forked:
    return program(*command(out), said=out.with_name("said"))


def under_way(out: Path, number: int) -> bool:
    """Whether a trial of this number is in the middle."""
    return any(out.glob(f"trials/*/{number}/seed-0/checkpoints/*.safetensors"))


def children(process: Forked) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def cut(out: Path, process: Forked, number: int, how: signal.Signals) -> list[int]:
    """End a search while a trial of this number is in the middle; give its workers."""
    process.until(lambda: under_way(out, number))
    workers = children(process)
    process.end(how)
    return workers


def finished(out: Path) -> dict[Path, int]:
    """The files of finished trials, and when they were written."""
    done = [p.parent for p in out.rglob("run.json") if load_run(p.parent).complete]
    return {p: p.stat().st_mtime_ns for folder in done for p in folder.glob("*.*")}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes where Linux lists them")
def test_a_search_that_was_interrupted_and_killed_ends_as_one_that_was_not(tmp_path: Path) -> None:
    out = tmp_path / "cut"
    first = start(out)
    lost = children(first.until(lambda: under_way(out, 0)))[0]
    os.kill(lost, signal.SIGKILL)
    workers = cut(out, first, 2, signal.SIGINT)
    assert lost not in workers, "a worker that dies is replaced, and its trial goes on"
    assert first.returncode == 130
    assert first.said.read_text().splitlines()[-1] == "fedapm: interrupted; the same command goes on from there."
    assert workers
    assert all(map(gone, workers)), "an interrupted command leaves no process behind"
    unfinished = [load_run(p.parent).info for p in out.rglob("run.json") if not load_run(p.parent).complete]
    states = [info["status"] for info in unfinished]
    assert "interrupted" in states, "workers save what they are doing"
    # the trial of the worker that was killed may not have been taken up again
    assert states.count("interrupted") >= len(states) - 1

    kept = finished(out)
    assert kept
    second = start(out)
    workers = cut(out, second, 3, signal.SIGKILL)
    assert workers
    end = time.monotonic() + PATIENCE
    while not all(map(gone, workers)):
        assert time.monotonic() < end, "workers end with their parent"
        time.sleep(0.01)
    assert kept.items() <= finished(out).items(), "finished trials are left alone"

    kept = finished(out)
    code, output, err = fedapm(*command(out, "--json"))
    assert code == 0, err
    assert kept.items() <= finished(out).items()
    results = json.loads(output)["methods"]
    assert {name: result["trials"] for name, result in results.items()} == dict.fromkeys(METHODS, TRIALS)
    with quiet():
        import optuna

        for name in METHODS:
            stored = optuna.load_study(study_name=name, storage=storage(out / "trials.db"))
            assert [t.state.name for t in stored.trials] == ["COMPLETE"] * TRIALS

    layers = {
        "data": {"clients": 4},
        "engine": {"fraction": 0.5, "checkpoint_every": 2, "evaluate_every": 5},
        "solver": {"batch_size": 200},
    }
    options = Options(trials=TRIALS, rounds=ROUNDS, search=(SEARCH,), pruner="none")
    tune(METHODS, tmp_path / "whole", layers, options=options, progress=False)
    for path in sorted((tmp_path / "whole").rglob("rounds.jsonl")):
        again = out / path.relative_to(tmp_path / "whole")
        assert again.read_bytes() == path.read_bytes(), str(again)
    assert (out / "tuned.toml").read_bytes() == (tmp_path / "whole" / "tuned.toml").read_bytes()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)


def test_a_small_search_says_what_it_found(tmp_path: Path) -> None:
    quick = ["--methods", "local", "--trials", "2", "--rounds", "1", "--set", "data.clients=3", "--out", "t"]
    code, out, err = fedapm("tune", "--search", "solver.lr=0.1", *quick)
    assert code == 0, err
    assert len(err.splitlines()) == 2
    assert err.splitlines()[1].startswith("Local only: 2 of 2 trials; trial ")
    assert "Validation accuracy" in out
    assert "Tuned settings: t/tuned.toml" in out
    assert "card.md" in {p.name for p in (tmp_path / "t").iterdir()}
    again, out, _ = fedapm("tune", "--search", "solver.lr=0.1", *quick, "--json")
    assert again == 0
    assert json.loads(out)["methods"]["local"]["trials"] == 2


MISTAKES = [
    (["tune", "--trials", "0"], ["--trials"]),
    (["tune", "--space", "papr"], ["'papr'", "'paper'"]),
    (["tune", "--seeds", "one"], ["--seeds", "'one'"]),
    (["tune", "--methods", "fedamp"], ["'fedamp'", "'fedapm'"]),
    (["tune", "--methods", ","], ["at least one method"]),
    (["tune", "--search", "solver.lr"], ["--search"]),
    (["tune", "--search", "data.name=digits,cifar10"], ["data.name"]),
    (["tune", "--set", "data.validation=0"], ["tuning needs validation data"]),
    (["tune", "--set", "data.validation=2"], ["data.validation", "2"]),
    (["tune", "--set", "solver.rl=1"], ["'solver.rl'"]),
    (["tune", "--set", "fedapm.solver.rl=1"], ["'fedapm.solver.rl'"]),
    (["tune", "--workers", "0"], ["--workers"]),
    (["tune", "--data", "digit"], ["'digit'"]),
    (["tune", "none.toml"], ["none.toml"]),
    (["tune", "--set", "data.clients=5000"], ["5000"]),
    (["compare", "--tuned", "none"], ["none", "fedapm tune"]),
    (["compare", "--target", "accuracy"], ["--target", "metric=value"]),
    (["compare", "--target", "acuracy=0.5"], ["'acuracy'", "'accuracy'"]),
    (["compare", "--target", "accuracy=high"], ["'high'"]),
    (["compare", "--target", "accuracy=nan"], ["'nan'"]),
    (["compare", "--target", "auc=0.5", "--target", "auc=0.6"], ["auc", "twice"]),
]


@pytest.mark.parametrize(("arguments", "mentions"), MISTAKES, ids=lambda words: " ".join(words)[:60])
def test_mistakes_are_one_line_and_write_nothing(arguments: list[str], mentions: list[str], tmp_path: Path) -> None:
    code, out, err = fedapm(*arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1, err
    assert err.startswith("fedapm: ")
    assert all(word in err for word in mentions), err
    assert list(tmp_path.iterdir()) == []


def test_other_commands_do_without_optuna(tmp_path: Path) -> None:
    code = "import sys, fedapm, fedapm.cli.app, fedapm.tuning; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=tmp_path).returncode == 0


def test_a_missing_optuna_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # this is how Python itself marks a module that cannot be imported
    monkeypatch.setitem(sys.modules, "optuna", None)
    code, out, err = fedapm("tune")
    assert (code, out) == (2, "")
    assert err == "fedapm: tuning needs the package optuna; install it with: pip install 'fedapm[tune]'.\n"
    assert list(tmp_path.iterdir()) == []
