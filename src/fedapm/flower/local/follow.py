"""Submit a run to Flower, and follow it in the folder its server writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedapm.errors import FedapmError
from fedapm.flower.local.flower_cli import FlowerCli, RunStatus
from fedapm.runs.files import read_json, write_json
from fedapm.runs.folder import is_locked
from fedapm.runs.layout import FLOWER_RUN, ROUNDS
from fedapm.runs.records import JsonLines, is_run, load_run

POLL, STATUS_POLL = 0.5, 30.0
"""Seconds between two looks into the folder, and between two calls to the SuperLink, which cost a process each."""
STATUS_TRIES = 5
"""How often the SuperLink is asked why the server's process ended."""

OnRound = Callable[[dict[str, Any]], None]
"""Called with the record of each new round."""


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
    if submitted.get("superlink") == flower.superlink:
        if is_locked(out):
            return str(submitted["id"])
        # its server may have died before the SuperLink noticed; a run the SuperLink does not know has ended
        with suppress(FedapmError):
            flower.stop(str(submitted["id"]))
    id = flower.run(app)
    write_json(path, {"superlink": flower.superlink, "id": id})
    return id


def finished(out: Path, rounds: int) -> bool:
    """Whether a folder holds a complete run of so many rounds."""
    if not is_run(out):
        return False
    run = load_run(out)
    return run.complete and bool(run.rounds) and run.rounds[-1]["round"] >= rounds


def follow(flower: FlowerCli, id: str, out: Path, rounds: int, on_round: OnRound) -> None:
    """Wait until a run has ended.

    Args:
        flower: The SuperLink.
        id: The run's id.
        out: The folder the run is written to; where it is on another machine, no round is reported.
        rounds: How many rounds the run has.
        on_round: Called once with the record of each new round.

    Raises:
        FedapmError: If the run fails, with the reason.
    """
    last = max((record["round"] for record in JsonLines(out / ROUNDS)), default=-1)
    asked, working = time.monotonic(), False
    while True:
        before, working = working, is_locked(out)
        complete = finished(out, rounds)
        for record in JsonLines(out / ROUNDS):
            if record["round"] > last:
                last = record["round"]
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
        time.sleep(POLL)


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
