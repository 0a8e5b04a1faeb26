"""Worker processes as far as what they compute is counted."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from fedapm.simulation import workers
from fedapm.simulation.workers import WorkerProcess, processor_seconds

WORK = 0.4
"""Processor seconds of the worker."""

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="the system does not tell")


def spin(connection: Any) -> None:
    """Compute for a while, say so, and wait for the parent."""
    while time.process_time() < WORK:
        pass
    connection.send_bytes(b"{}")
    connection.recv_bytes()


@needs_proc
def test_what_workers_compute_counts_once_while_they_run_and_when_they_have_ended() -> None:
    before, own = processor_seconds(), time.process_time()
    worker = WorkerProcess(spin, ())
    worker.receive()
    running = processor_seconds() - before - (time.process_time() - own)
    # the system counts in hundredths of a second
    assert running == pytest.approx(WORK, abs=0.1)
    worker.end(5.0)
    ended = processor_seconds() - before - (time.process_time() - own)
    assert ended == pytest.approx(running, abs=0.1)


def test_workers_of_the_process_one_was_forked_from_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = WorkerProcess(spin, ())
    worker.owner = os.getpid() + 1
    monkeypatch.setattr(workers, "_processor_seconds", lambda pid: pytest.fail(f"{pid} was asked"))
    processor_seconds()
    worker.end()
