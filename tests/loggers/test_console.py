"""Messages and progress on the terminal, and as plain lines where there is none."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from fedapm.loggers import console
from fedapm.loggers.console import ProgressDisplay, RoundProgress, configure


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    logger = logging.getLogger("fedapm")
    before = logger.handlers, logger.propagate, logger.level
    yield
    configure()
    logger.handlers, logger.propagate, level = before
    logger.setLevel(level)


def plain() -> Console:
    return Console(file=io.StringIO(), width=60)


def terminal() -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)


def text_of(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return re.sub("\x1b\\[[?0-9]*[a-zA-Z]", "", screen.file.getvalue())


def record(round: int, accuracy: float | None = None) -> dict[str, Any]:
    return {"round": round, "evaluations": accuracy and {"model": {"accuracy": {"mean": accuracy}}}}


def test_infos_are_plain_lines_and_warnings_have_the_programs_name(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    configure()
    logging.getLogger("fedapm.some.module").info("engine: %s [b]", "x" * 200)
    logging.getLogger("fedapm.some.module").warning("damaged: :x:")
    logging.getLogger("fedapm.some.module").debug("not this")
    assert capsys.readouterr().err.splitlines() == [f"engine: {'x' * 200} [b]", "fedapm: damaged: :x:"]


def test_a_command_of_many_runs_can_leave_out_what_concerns_one(capsys: pytest.CaptureFixture[str]) -> None:
    configure(run_details=False)
    for name in ("fedapm.experiments.run", "fedapm.experiments.sweep"):
        logging.getLogger(name).info("info of %s", name)
        logging.getLogger(name).warning("warning of %s", name)
    assert capsys.readouterr().err.splitlines() == [
        "fedapm: warning of fedapm.experiments.run",
        "info of fedapm.experiments.sweep",
        "fedapm: warning of fedapm.experiments.sweep",
    ]


def test_rounds_without_a_terminal_are_a_few_lines() -> None:
    screen = plain()
    progress = RoundProgress("FedAPM, seed 0", 20, screen)
    for round in range(21):
        progress.show(record(round, 0.5 if round % 4 == 0 else None))
    progress.close()
    lines = text_of(screen).splitlines()
    assert len(lines) == 11
    assert lines[:2] == ["FedAPM, seed 0: round 0/20  accuracy 0.500", "FedAPM, seed 0: round 2/20"]
    assert lines[-1] == "FedAPM, seed 0: round 20/20  accuracy 0.500"


def test_rounds_on_a_terminal_are_a_bar() -> None:
    screen = terminal()
    progress = RoundProgress("FedAPM, seed [0]", 20, screen)
    progress.show(record(20, 0.5))
    progress.close()
    last = text_of(screen).splitlines()[-1]
    for part in ("FedAPM, seed [0]", "20/20", "accuracy 0.500", "0:00:00"):
        assert part in last


def test_work_without_a_terminal_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    screen = plain()
    with ProgressDisplay(screen) as display:
        for now in range(0, 31, 3):
            display("files", 1000 + now, 1030)
        display("files", 1030, 1030)
        display("stream", 7, 0)
    assert text_of(screen).splitlines() == [
        "files: 1,000 of 1,030",
        "files: 1,012 of 1,030",
        "files: 1,024 of 1,030",
        "files: 1,030 of 1,030",
        "stream: 7",
    ]


def test_work_on_a_terminal_is_a_bar_for_each_name() -> None:
    screen = terminal()
    with ProgressDisplay(screen) as display:
        display("files", 50, 200)
        display.update("FedAPM", 1, 3, "best accuracy 0.5", line="not on a terminal")
    *_, first, second = text_of(screen).splitlines()
    assert "files" in first
    assert "25%" in first
    assert "FedAPM" in second
    assert second.split()[2:7] == ["1/3", "best", "accuracy", "0.5", "-:--:--"]
    assert "not on a terminal" not in text_of(screen)
