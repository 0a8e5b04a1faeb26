"""A limit on the time that a node works on one message."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from fedapm.errors import FedapmError

Result = TypeVar("Result")


def within(seconds: float, work: Callable[[], Result]) -> Result:
    """Do some work in a thread, and give it up when it takes too long; the thread ends with the process.

    Args:
        seconds: How long it may take.
        work: What is to be done.

    Raises:
        FedapmError: If it takes longer.
    """
    done: list[Result] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # it is raised again where the work was asked for
            failed.append(error)

    thread = threading.Thread(target=run, name="fedapm-work", daemon=True)
    thread.start()
    thread.join(min(seconds, threading.TIMEOUT_MAX))
    if failed:
        raise failed[0]
    if not done:
        raise FedapmError(f"its work was given up after {seconds:g} s, when nobody waits for it (flower.timeout).")
    return done[0]
