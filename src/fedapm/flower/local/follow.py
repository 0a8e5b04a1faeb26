"""Submit a run to Flower, and follow it in the folder its server writes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedapm.errors import FedapmError
from fedapm.flower.local.flower_cli import FlowerCli, RunStatus
from fedapm.flower.text import MARK, one_line
from fedapm.runs.files import read_json, write_json
from fedapm.runs.folder import is_locked
from fedapm.runs.layout import FLOWER_RUN, ROUNDS
from fedapm.runs.records import JsonLines, is_run, load_run

POLL, STATUS_POLL = 0.5, 30.0
"""Seconds between two looks into the folder, and between two calls to the SuperLink, which cost a process each."""
NOTICE = 30.0
"""Seconds without a new round after which, again and again, it is said what is waited for."""
TAIL = 1 << 18
"""How many bytes at the end of the SuperLink's log are looked at."""
EXPIRED, STARTS = re.compile(rb'"POST /v1/runtime/\S+ HTTP/\S+" 401'), 2
"""How the SuperLink's log shows a process that came too late, and how often it must until it is said."""
STATUS_TRIES = 5
"""How often the SuperLink is asked why the server's process ended."""

OnRound = Callable[[dict[str, Any]], None]
"""Called with the record of each new round."""
OnWait = Callable[[str], None]
"""Called with what is waited for, in words."""


def submit(flower: FlowerCli, app: Path, out: Path) -> str:
    """Submit an app, unless its run is under way already.

    Args:
        flower: The SuperLink.
        app: The app folder.
        out: The folder the run is written to.

    Returns:
        The id of the run.
    """
    path = out.with_name(FLOWER_RUN.format(name=out.name))
    submitted = read_json(path) if path.is_file() else {}
    before = submitted.get("id")
    if submitted.get("superlink") == flower.superlink:
        if not isinstance(before, str):
            raise FedapmError(f"{path} does not say which run was submitted; remove it and give the command again.")
        if is_locked(out):
            return before
        # its server may have died before the SuperLink noticed; a run the SuperLink does not know has ended
        with suppress(FedapmError):
            flower.stop(before)
    id = flower.run(app)
    write_json(path, {"superlink": flower.superlink, "id": id})
    return id


def finished(out: Path, rounds: int) -> bool:
    """Whether a folder holds a complete run of so many rounds."""
    if not is_run(out):
        return False
    run = load_run(out)
    return run.complete and bool(run.rounds) and run.rounds[-1]["round"] >= rounds


def follow(
    flower: FlowerCli,
    id: str,
    out: Path,
    rounds: int,
    on_round: OnRound,
    on_wait: OnWait = lambda _: None,
    log: Path | None = None,
) -> None:
    """Wait until a run has ended.

    Args:
        flower: The SuperLink.
        id: The run's id.
        out: The folder the run is written to; where it is on another machine, no round is reported.
        rounds: How many rounds the run has.
        on_round: Called once with the record of each new round.
        on_wait: Called every 30 s in which nothing happens.
        log: The SuperLink's log, where it is on this machine.

    Raises:
        FedapmError: If the run fails, with the reason.
    """
    last = max((record["round"] for record in JsonLines(out / ROUNDS)), default=-1)
    asked, working = time.monotonic(), False
    moved = said = asked
    begun = log.stat().st_size if log is not None and log.is_file() else 0
    while True:
        before, working = working, is_locked(out)
        complete = finished(out, rounds)
        for record in JsonLines(out / ROUNDS):
            if record["round"] > last:
                last, moved = record["round"], time.monotonic()
                on_round(record)
        if complete:
            return
        if before and not working:
            raise FedapmError(_why_ended(flower, id, last))
        if time.monotonic() - asked >= STATUS_POLL:
            run = flower.status(id)
            if run.completed:
                return
            if run.finished:
                raise FedapmError(_reason(run))
            asked = time.monotonic()
        now = time.monotonic()
        if now - max(moved, said) >= NOTICE:
            said = now
            on_wait(waiting_for(working, last, now - moved, _since(log, begun)))
        time.sleep(POLL)


def waiting_for(working: bool, last: int, seconds: float, log: bytes = b"") -> str:
    """What a run waits for, in words.

    Args:
        working: Whether the server's app is at work.
        last: The last round that is finished; -1 where there is none.
        seconds: How long nothing has happened.
        log: What the SuperLink has logged since the run was submitted, as far as that is known.
    """
    if not working:
        if len(EXPIRED.findall(log)) >= STARTS:
            return (
                f"the server's app has not begun after {seconds:.0f} s: Flower gives its process 30 s to start, it "
                "took longer, and so it is started again and again; free this machine of other work"
            )
        return f"waiting for Flower to start the server's app ({seconds:.0f} s); a busy machine takes minutes"
    words = [line for line in log.decode(errors="replace").splitlines() if MARK in line]
    who = words[-1][words[-1].index(MARK) + len(MARK) :].strip() if words else "the clients' replies"
    after = f"after round {last}" if last >= 0 else "before round 0"
    return f"{after}: waiting for {one_line(who, 200)} ({seconds:.0f} s)"


def _since(log: Path | None, begun: int) -> bytes:
    """The end of what a log has got since then."""
    if log is None or not log.is_file():
        return b""
    with log.open("rb") as file:
        file.seek(max(begun, log.stat().st_size - TAIL))
        return file.read(TAIL)


def _why_ended(flower: FlowerCli, id: str, last: int) -> str:
    for _ in range(STATUS_TRIES):
        run = flower.status(id)
        if run.finished:
            return _reason(run)
        time.sleep(POLL)
    return f"the server's process ended after round {last}; the same command goes on from there."


def _reason(run: RunStatus) -> str:
    lines = [line.strip() for line in run.details.splitlines() if line.strip()]
    reason = lines[0].removeprefix("ServerApp failed with exception: ") if lines else f"its status is {run.status}"
    return f"the run on Flower ended early: {reason}"
