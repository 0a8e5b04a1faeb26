"""Random kills: a command is killed at random moments until it has ended; the end must be the undisturbed one.

Most kills are SIGKILL, which nothing can answer. Some are SIGINT, SIGTERM and SIGHUP, which must end the command with
130, 143 or 129 and one line.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

from attacks._child import TIMEOUT, Ended, finish, judged, picture, prepare, run, start, warm, workshop
from attacks._commands import COMMANDS, ONE_FILE, SIDE_BY_SIDE, TINY, Attacked
from attacks.registry import attack
from attacks.tally import Outcome, Tally

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
KILLED = (
    Attacked("run", ("run", *TINY, "--rounds=6", "--set=engine.checkpoint_every=2"), ("--resume",)),
    Attacked(
        "run, worker processes",
        ("run", *TINY, ONE_FILE, "--rounds=4", "--set=engine.engine=processes", "--workers=2"),
        ("--resume",),
    ),
    *(one for one in COMMANDS if one.name in ("compare", "sweep", "split", "tune", "study")),
    *SIDE_BY_SIDE,
)
KILLS = {"run": 150, "run, worker processes": 60, "compare": 100, "sweep": 40, "split": 40, "tune": 60, "study": 40}
KILLS |= {one.name: 40 for one in SIDE_BY_SIDE}
"""How often each is killed."""


def kill(attacked: Attacked, tally: Tally, quick: bool) -> None:
    """Kill a command again and again, and begin anew whenever it has come to its end."""
    prepare()
    luck = random.Random(f"kills of {attacked.name}")
    with workshop("kills") as base:
        warm(attacked.begin(base / "warm"), base / "said")
        began = time.perf_counter()
        ended = run(attacked.begin(base / "out"), base / "said")
        if ended.code:
            raise RuntimeError(f"{attacked.name} does not work at all: {ended.said}")
        seconds, expected = time.perf_counter() - began, picture(base / "out")
        wanted = 3 if quick else KILLS[attacked.name]
        for course in range(3 * wanted):
            if tally.tried >= wanted:
                break
            most = min(wanted - tally.tried, 6)
            _once(attacked, base / f"out-{course}", luck, seconds, most, expected, tally)
            shutil.rmtree(base / f"out-{course}", ignore_errors=True)


def _once(
    attacked: Attacked,
    out: Path,
    luck: random.Random,
    seconds: float,
    most: int,
    expected: dict[str, str],
    tally: Tally,
) -> None:
    """One command from beginning to end with some kills between."""
    said = out.with_name(f"{out.name}.said")
    kills: list[str] = []
    body = attacked.begin(out)
    for _ in range(most):
        number = luck.choice([signal.SIGKILL] * 5 + [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
        moment = luck.uniform(0.0, seconds)
        ended = _killed(body, said, moment, number)
        if ended is None:
            break
        kills.append(f"{number.name} after {moment:.3f} s")
        if (bad := _bad(ended, number)) is not None:
            tally.add(bad, f"{attacked.name}, {kills[-1]}: exit {ended.code}: {ended.said.strip()[-300:]}")
            return
        body = attacked.resume(out)
    last = run(attacked.resume(out), said)
    outcome, what = judged(last, picture(out), expected)
    for _ in kills:
        tally.add(outcome, f"{attacked.name}, {'; '.join(kills)}: {what}")


def _killed(body: object, said: Path, moment: float, number: signal.Signals) -> Ended | None:
    """Start a command and send a signal after some time; None where it had ended before."""
    child = start(body, said)  # type: ignore[arg-type]
    time.sleep(moment)
    if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
        finish(child, said)
        return None
    with suppress(ProcessLookupError):
        os.kill(child, number)
    return finish(child, said, TIMEOUT)


def _bad(ended: Ended, number: signal.Signals) -> Outcome | None:
    if ended.hung:
        return Outcome.HANG
    if "Traceback" in ended.said:
        return Outcome.TRACEBACK
    if number in CODES and ended.code not in (0, CODES[number]):
        # before the program has set itself up, the system's own answer is all there is
        return None if ended.code == -number else Outcome.TRACEBACK
    return None


for _attacked in KILLED:

    def _make(tally: Tally, quick: bool, attacked: Attacked = _attacked) -> None:
        kill(attacked, tally, quick)

    attack(f"random kills: {_attacked.name}", "kills")(_make)
