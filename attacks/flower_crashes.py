"""Crash points and random kills of a federation in one process: the server's files and those of its nodes.

A node whose work fails answers with an error, as Flower does for it; whoever was away in a round is in the records. The
end must be bit for bit that of the sequential engine with the same clients away in the same rounds.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.flower.cases import CLIENTS, Case, dropped, same
from tests.flower.grid import Carried, InProcessGrid, lost
from tests.helpers.running import Picture

from attacks._child import TIMEOUT, Ended, finish, run, start, warm, workshop
from attacks.crash_points import FAILURES, trapped
from attacks.registry import attack
from attacks.tally import Outcome, Tally
from fedapm.core.messages import collect_messages
from fedapm.errors import FedapmError, Interrupted

ROUNDS = 3
KILLS = 80
MANY = 151
"""In a sample every so many-th point is tried."""
_ENDS: dict[str, Picture] = {}


class FailingNodes(InProcessGrid):
    """Nodes whose failed work is answered by Flower in their place."""

    def _run(self, message: Any) -> None:
        try:
            super()._run(message)
        except (OSError, MemoryError, FedapmError):
            self._replies.append(lost(Carried(message.metadata.dst_node_id, "", {}, message, message)))


def federation(folder: Path) -> Case:
    """Five clients, of which three take part in a round."""
    engine = {"rounds": ROUNDS, "fraction": 0.6, "evaluate_every": ROUNDS, "final_personal_epochs": 1}
    case = Case.of(folder, engine=engine, flower={"timeout": 5.0, "retries": 1, "wait": 5.0})
    case.grid = FailingNodes(case.grid.app, case.grid.state, case.grid.clients, keep=1)
    return case


def served(case: Case) -> Callable[[], None]:
    """What a child does: serve the run to its end, and say in one line why it cannot."""

    def body() -> None:
        try:
            with collect_messages():
                case.serve()
        except (KeyboardInterrupt, Interrupted) as stop:
            sys.exit(_said(f"stopped ({type(stop).__name__})", 130))
        except FedapmError as error:
            sys.exit(_said(str(error), 2))

    return body


def _said(what: str, code: int) -> int:
    print(f"fedapm: {what}", file=sys.stderr)
    return code


def verdict(case: Case, last: Ended) -> tuple[Outcome, str]:
    """What became of a federation that was started again and not troubled any more."""
    if last.hung:
        return Outcome.HANG, "the server did not end"
    if "Traceback" in last.said:
        return Outcome.TRACEBACK, last.said.strip().splitlines()[-1]
    if last.code:
        return Outcome.LOST, (last.said.strip().splitlines() or ["no word"])[-1]
    records = case.records()
    if [record["round"] for record in records] != list(range(ROUNDS + 1)) or not case.complete:
        return Outcome.LOST, "the rounds are not 0 to the last"
    expected = _expected(case, dropped(records))
    found = case.acknowledged()
    wrong = [name for k, name in enumerate(CLIENTS) if not same(found[name], expected.store.get(k).state)]
    if not same(case.saved().state.server, expected.server):
        wrong.append("the server")
    return (Outcome.DIFFERING, f"the state of {', '.join(wrong)}") if wrong else (Outcome.SURVIVED, "")


def _expected(case: Case, away: dict[int, list[int]]) -> Picture:
    """The end in one process; most courses have the same clients away."""
    key = repr(away)
    if key not in _ENDS:
        _ENDS[key], _ = case.sequential(away)
    return _ENDS[key]


def crash(place: str, tally: Tally, quick: bool) -> None:
    """Fail or kill at every file operation of the server, or of its nodes.

    Args:
        place: The folder where operations count: "run" or "nodes".
        tally: Where to count.
        quick: Try only some.
    """
    with workshop(f"flower-{place}") as base:
        warm(served(federation(base / "warm")), base / "said")
        points = _points(base, place)
        for number, failure in enumerate(FAILURES):
            for at in range(1 + (7 * number) % MANY if quick else 1, points + 1, MANY if quick else 1):
                tally.add(*_try(base, place, at, failure))


def _points(base: Path, place: str) -> int:
    case = federation(base / "out")
    run(_trapped(case, base, place, 0, ""), base / "said")
    return int((base / "count").read_text())


def _try(base: Path, place: str, at: int, failure: str) -> tuple[Outcome, str]:
    shutil.rmtree(base / "out", ignore_errors=True)
    where = f"{place}, {failure} at operation {at}"
    case = federation(base / "out")
    first = run(_trapped(case, base, place, at, failure), base / "said")
    if first.hung:
        return Outcome.HANG, where
    if not first.clean:
        return Outcome.TRACEBACK, f"{where}: exit {first.code}: {(first.said.strip().splitlines() or ['no word'])[-1]}"
    outcome, what = verdict(case, run(served(case), base / "said"))
    return outcome, f"{where}: {what}"


def _trapped(case: Case, base: Path, place: str, at: int, failure: str) -> Callable[[], None]:
    return trapped(served(case), base / "out" / place, at, failure, base / "count")


@attack("Flower: crash points of the server", "crash points", minutes=30)
def crash_server(tally: Tally, quick: bool) -> None:
    """Every file operation in the server's folder."""
    crash("run", tally, quick)


@attack("Flower: crash points of the nodes", "crash points", minutes=20)
def crash_nodes(tally: Tally, quick: bool) -> None:
    """Every file operation in the nodes' folders."""
    crash("nodes", tally, quick)


@attack("Flower: kills of a federation in one process", "kills")
def kills(tally: Tally, quick: bool) -> None:
    """SIGKILL at random moments, up to four times before the run may end."""
    luck = random.Random("kills of a federation")
    with workshop("flower-kills") as base:
        warm(served(federation(base / "warm")), base / "said")
        began = time.perf_counter()
        run(served(federation(base / "timed")), base / "said")
        seconds = time.perf_counter() - began
        wanted = 3 if quick else KILLS
        for _ in range(3 * wanted):
            if tally.tried >= wanted:
                return
            shutil.rmtree(base / "out", ignore_errors=True)
            case = federation(base / "out")
            moments = _killed(case, base / "said", luck, seconds, min(wanted - tally.tried, 4))
            outcome, what = verdict(case, run(served(case), base / "said"))
            for _ in moments:
                tally.add(outcome, f"killed after {', '.join(f'{moment:.3f} s' for moment in moments)}: {what}")


def _killed(case: Case, said: Path, luck: random.Random, seconds: float, most: int) -> list[float]:
    moments = []
    for _ in range(most):
        moment = luck.uniform(0.0, seconds)
        child = start(served(case), said)
        time.sleep(moment)
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            finish(child, said)
            break
        os.kill(child, signal.SIGKILL)
        finish(child, said, TIMEOUT)
        moments.append(moment)
    return moments
