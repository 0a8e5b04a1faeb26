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
from fedapm.loggers.console import ProgressDisplay, configure
from fedapm.loggers.rounds import RoundProgress
from fedapm.loggers.series import Series


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


def test_a_series_of_runs_tells_which_run_it_is_and_how_long_all_will_take() -> None:
    now = 0.0
    # one run of the quick method is done already
    series = Series([("quick", 4), ("quick", 0), ("slow", 4)], lambda: now)
    assert series.seconds_left is None
    first = series.turn(0)
    assert (first.number, first.time_left) == ("Run 1 of 3", "-:--:--")
    for left in (4, 3, 2, 1, 0):
        now += 1.0
        first.advance(left)
        assert series.seconds_left == left + 4, "what is not known yet is taken to be as quick"
    series.end(0)
    last = series.turn(2)
    now = 15.0
    last.advance(4)
    assert (last.number, last.time_left) == ("Run 3 of 3", "0:00:40")
    series.end(2)
    assert series.seconds_left == 0


def test_runs_side_by_side_take_their_share_of_the_time_but_no_less_than_the_longest() -> None:
    now = 0.0
    series = Series([("quick", 4), ("quick", 4), ("slow", 4)], lambda: now, at_once=2)
    quick, slow = series.turn(0), series.turn(2)
    now = 1.0
    quick.advance(3)
    now = 4.0
    slow.advance(3)
    assert series.seconds_left == max((3 * 1 + 4 * 1 + 3 * 4) / 2, 3 * 4)
    slow.advance(0)
    assert series.seconds_left == max((3 * 1 + 4 * 1) / 2, 4 * 1)


@pytest.mark.parametrize("wide", [80, 120])
def test_a_run_of_a_series_on_a_terminal_has_the_time_left_in_all_below_it(wide: int) -> None:
    screen = Console(file=io.StringIO(), width=wide, force_terminal=True, color_system=None)
    now = 0.0
    series = Series([("fedapm", 20)] * 12, lambda: now)
    turn = series.turn(2)
    progress = RoundProgress(f"{turn.number}: FedAPM-paper, seed 10", 20, screen, turn)
    now = 2.0
    progress.show(record(0, 0.5))
    assert progress._display._bars is not None
    progress._display._bars.refresh()
    shown = text_of(screen)
    progress.close()
    assert "Run 3 of 12: FedAPM-paper, seed 10" in shown
    assert any("all 12 runs" in line and "2/12" in line and "0:08:00" in line for line in shown.splitlines())
    assert all(len(line) <= wide for line in shown.splitlines())
    assert "all 12 runs" not in text_of(screen).splitlines()[-1], "it is gone when the run is over"


def test_a_run_of_a_series_without_a_terminal_says_so_in_its_lines() -> None:
    screen, now = plain(), 0.0
    turn = Series([("fedapm", 20)] * 2, lambda: now).turn(0)
    progress = RoundProgress(f"{turn.number}: FedAPM, seed 0", 20, screen, turn)
    now = 3.0
    progress.show(record(0, 0.5))
    progress.close()
    assert text_of(screen) == "Run 1 of 2: FedAPM, seed 0: round 0/20  accuracy 0.500  0:02:00 left in all\n"
