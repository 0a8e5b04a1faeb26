"""Contenders as the benchmark sees them: processes that are started once and then take turns."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import usage
from workloads import Workload

HERE = Path(__file__).parent
PEERS = HERE / "peers" / ".venv"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
PATIENCE = 600
"""Seconds after which a contender that says nothing is given up."""

ClientReply = dict[str, Any]
TWO_PHASES = ("fedapm", "fedapm-default", "fedalt")
"""Methods that go over the data twice in a round."""


class Failed(Exception):
    """A contender cannot go on; says why in one line."""


@dataclass(frozen=True)
class Entry:
    """What is needed to start a contender."""

    name: str
    script: str
    asked: dict[str, Any] = field(default_factory=dict)
    python: str = sys.executable
    restless: bool = False
    """Whether it uses the processor while it waits, so that it has to be held still."""
    turns: int | None = None
    """It has the first so many turns only."""


class Contender:
    """A running contender."""

    def __init__(self, entry: Entry, work: Workload) -> None:
        self.entry, self.work = entry, work
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        command = [entry.python, str(HERE / entry.script), json.dumps({"workload": asdict(work), **entry.asked})]
        # the others' environments are theirs; ours imports what this process imports
        own = [os.environ.get("PYTHONPATH", "")] if entry.python == sys.executable else []
        path = os.pathsep.join([str(HERE), *filter(None, own)])
        environment = os.environ | ONE_THREAD | {"PYTHONPATH": path}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment
        )
        self.before: ClientReply = {}

    def prepared(self) -> None:
        """Wait until it is ready."""
        self.before = self._answer()

    def turn(self, seconds: float = 0.0) -> ClientReply:
        """Rounds for so many seconds, at least one, and whether they really were rounds."""
        answer = self.ask("round", seconds=seconds)
        wanted = self.work.steps(2 if self.entry.asked.get("method") in TWO_PHASES else 1)
        for one in answer["rounds"]:
            if one["steps"] != wanted:
                raise Failed(f"it did {one['steps']} steps where a round has {wanted}")
        return answer

    def ask(self, do: str, **more: Any) -> ClientReply:
        """Let it do something, and what it says of it."""
        with self._awake():
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps({"do": do, **more}) + "\n")
                self._process.stdin.flush()
            except OSError:
                raise Failed(self._last_words()) from None
            return self._answer()

    def stop(self) -> None:
        """End it, and everything it started."""
        self._signal(signal.SIGCONT)
        everything = {pid: usage.started(pid) for pid in usage.tree(self._process.pid)[1:]}
        with suppress(OSError):
            self._process.communicate(json.dumps({"do": "stop"}) + "\n", timeout=60)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for pid, when in everything.items():
            if when is not None and usage.started(pid) == when:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        self._log.close()

    def hold(self) -> None:
        """Keep it from using the processor while others have their turn."""
        if self.entry.restless:
            self._signal(signal.SIGSTOP)

    @contextmanager
    def _awake(self) -> Iterator[None]:
        if self.entry.restless:
            self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.hold()

    def _signal(self, number: int) -> None:
        for pid in usage.tree(self._process.pid):
            with suppress(OSError):
                os.kill(pid, number)

    def _answer(self) -> ClientReply:
        assert self._process.stdout is not None
        heard, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        if not heard:
            raise Failed(f"it has not answered for {PATIENCE} s")
        line = self._process.stdout.readline()
        if not line:
            raise Failed(self._last_words())
        answer: ClientReply = json.loads(line)
        return answer

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().splitlines() if line.strip()]
        return lines[-1] if lines else "it ended without a word"


def peer_version(python: Path, package: str) -> str | None:
    """The version of a package in another environment, if it is there."""
    if not python.is_file():
        return None
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    found = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else None


def peers(folder: Path, cores: int) -> tuple[list[Entry], list[str]]:
    """The other frameworks that are installed, and a line for each that takes no part."""
    python, entries, absent = folder / "bin" / "python", [], []
    hint = "run make bench-peers to have it"
    if version := peer_version(python, "pfl"):
        entries.append(Entry(f"pfl {version}", "peers/pfl_peer.py", python=str(python)))
    else:
        absent.append(f"pfl is not installed and takes no part; {hint}.")
    if version := peer_version(python, "flwr"):
        name = f"Flower {version} + Ray, {cores} processes"
        asked = {"processes": cores}
        entries.append(Entry(name, "peers/flower_peer.py", asked, str(python), restless=True, turns=5))
    else:
        absent.append(f"Flower is not installed and takes no part; {hint}.")
    return entries, absent
