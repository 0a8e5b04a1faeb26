"""Attacks in processes of their own, some at a time."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from attacks.registry import all_attacks
from attacks.tally import Outcome, Tally


def made_all(names: Sequence[str], quick: bool, jobs: int) -> Iterator[Tally]:
    """The attacks as they end, so many at a time, each in a process of its own if there is more than one."""
    if jobs == 1:
        yield from (_made(name, quick) for name in names)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _follow, (os.getpid(),), max_tasks_per_child=1) as pool:
        for ended in as_completed([pool.submit(_made, name, quick) for name in names]):
            yield ended.result()


def _follow(parent: int) -> None:
    """End with the process that asked, which may have been killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _made(name: str, quick: bool) -> Tally:
    one = next(one for one in all_attacks() if one.name == name)
    tally = Tally(one.name, one.unit)
    began = time.perf_counter()
    print(f"{one.name} ...", file=sys.stderr, flush=True)
    try:
        one.make(tally, quick)
    except Exception as error:  # an attacker that fails has shown nothing
        tally.add(Outcome.TRACEBACK, f"the attacker itself failed: {type(error).__name__}: {error}")
    tally.seconds = time.perf_counter() - began
    print(f"{one.name}: {tally.tried:,} {one.unit} in {tally.seconds:.0f} s", file=sys.stderr, flush=True)
    return tally
