"""Follow: wait for a run on Flower and show how it goes, from the folder its server writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedapm.errors import FedapmError
from fedapm.flower.local.flower_cli import Flower, Run
from fedapm.runs.files import read_json, write_json
from fedapm.runs.layout import FLOWER_RUN, ROUNDS
from fedapm.runs.lock import at_work
from fedapm.runs.records import JsonLines, is_run, load_run

LOOK, ASK = 0.5, 30.0
"""Seconds between two looks into the folder, and between two questions to the SuperLink, which cost a process each."""
TRIES = 5
"""How often the SuperLink is asked why a server is gone before nobody knows."""

Show = Callable[[dict[str, Any]], None]


def submit(flower: Flower, app: Path, out: Path) -> str:
    """The id of the run that works on a folder: the one that is at work there already, or a new one."""
    noted = out.with_name(FLOWER_RUN.format(name=out.name))
    note = read_json(noted) if noted.is_file() else {}
    if note.get("superlink") == flower.superlink:
        if at_work(out):
            return str(note["id"])
        # its server may be dead before the SuperLink knows; a run it no longer knows is over anyway
        with suppress(FedapmError):
            flower.stop(str(note["id"]))
    id = flower.start(app)
    write_json(noted, {"superlink": flower.superlink, "id": id})
    return id


def finished(out: Path, rounds: int) -> bool:
    """Whether a folder holds a run that went through all these rounds."""
    if not is_run(out):
        return False
    run = load_run(out)
    return run.complete and bool(run.rounds) and run.rounds[-1]["round"] >= rounds


def follow(flower: Flower, id: str, out: Path, rounds: int, show: Show) -> None:
    """Wait until a run is over; a run that failed is an error with its reason.

    Where the server's folder is on this machine, every new round is shown once.
    """
    seen = max((record["round"] for record in JsonLines(out / ROUNDS)), default=-1)
    asked, working = time.monotonic(), False
    while True:
        before, working = working, at_work(out)
        done = finished(out, rounds)
        for record in JsonLines(out / ROUNDS):
            if record["round"] > seen:
                seen = record["round"]
                show(record)
        if done:
            return
        if before and not working:
            raise FedapmError(_why_gone(flower, id, seen))
        if time.monotonic() - asked >= ASK:
            run = flower.run(id)
            if run.completed:
                return
            if run.over:
                raise FedapmError(_reason(run))
            asked = time.monotonic()
        time.sleep(LOOK)


def _why_gone(flower: Flower, id: str, last: int) -> str:
    for _ in range(TRIES):
        run = flower.run(id)
        if run.over:
            return _reason(run)
        time.sleep(LOOK)
    return f"the server's process is gone after round {last}; the same command goes on from there."


def _reason(run: Run) -> str:
    lines = [line.strip() for line in run.details.splitlines() if line.strip()]
    said = lines[0].removeprefix("ServerApp failed with exception: ") if lines else f"it is {run.status}"
    return f"the run on Flower ended early: {said}"
