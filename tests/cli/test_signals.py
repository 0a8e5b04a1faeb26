"""Ctrl-C and what else ends a process: one line and the right code wherever it comes, with a checkpoint in a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fedapm.experiments import build
from fedapm.runs.files import read_json
from fedapm.simulation.engines import sequential
from tests.helpers.cli import QUICK, Outcome, fedapm

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
TINY = [*QUICK, "--set", "data.train_limit=10", "--set", "engine.engine=sequential", "--rounds", 3]


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take longer than all the rest and are not what this is about."""
    monkeypatch.setattr("fedapm.report.render", lambda *_: "<p>drawn</p>")


@pytest.fixture(autouse=True)
def hearing() -> Iterator[None]:
    """Also where the suite was started by nohup, which has SIGHUP ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def at_call(number: int, count: int, original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that sends this process a signal when it is called for the so many-th time."""
    calls = 0

    def wrapped(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            os.kill(os.getpid(), number)
        return original(*arguments, **options)

    return wrapped


def assert_ended(outcome: Outcome, number: int, *mentions: str) -> None:
    assert outcome.code == CODES[signal.Signals(number)]
    last = outcome.err.splitlines()[-1]
    assert last.startswith("fedapm: ")
    assert "Traceback" not in outcome.err
    for word in ("interrupted", *mentions):
        assert word in last


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("where", ["experiments.build.federation", "report.render", "cli.session.write_card"])
def test_outside_the_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, where: str) -> None:
    module, _, name = where.rpartition(".")
    place = import_module(f"fedapm.{module}")
    monkeypatch.setattr(place, name, at_call(number, 1, getattr(place, name)))
    assert_ended(fedapm("run", *TINY, "--out", tmp_path / "run"), number)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "signals are as they were"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_in_a_round_with_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(sequential, "train_client", at_call(number, 3, sequential.train_client))
        assert_ended(fedapm("run", *TINY, "--out", out), number, "after round 1 of 3", "--resume")
    assert read_json(out / "run.json")["status"] == "interrupted"
    assert (out / "checkpoints" / "round-000001.safetensors").is_file()
    assert fedapm("run", *TINY, "--out", out, "--resume").code == 0
    assert fedapm("run", *TINY, "--out", tmp_path / "straight").code == 0
    assert (out / "rounds.jsonl").read_bytes() == (tmp_path / "straight" / "rounds.jsonl").read_bytes()


def test_in_the_first_evaluation_there_is_nothing_to_resume_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(sequential, "evaluate_client", at_call(signal.SIGINT, 2, sequential.evaluate_client))
        assert_ended(fedapm("run", *TINY, "--out", out), signal.SIGINT)
    assert not list((out / "checkpoints").glob("*")), "a checkpoint without a record could never be resumed"
    assert fedapm("run", *TINY, "--out", out, "--resume").code == 0
    assert len((out / "rounds.jsonl").read_text().splitlines()) == 4


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        monkeypatch.setattr(sequential, "train_client", at_call(signal.SIGHUP, 1, sequential.train_client))
        assert fedapm("run", *TINY, "--out", tmp_path / "run").code == 0, "nohup"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_memory_that_runs_out_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(build, "federation", short)
    code, _, err = fedapm("run", *TINY, "--out", tmp_path / "run")
    assert (code, err.count("\n")) == (2, 1)
    assert "not enough memory" in err


def test_a_program_that_is_told_to_end_does(tmp_path: Path) -> None:
    words = ["run", "--data", "digits", *map(str, TINY), "--rounds", "100000", "--out", str(tmp_path / "run")]
    process = subprocess.Popen([sys.executable, "-m", "fedapm", *words], stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not (tmp_path / "run" / "rounds.jsonl").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert err.splitlines()[-1].startswith("fedapm: interrupted after round")
    assert list((tmp_path / "run" / "checkpoints").glob("round-*"))
