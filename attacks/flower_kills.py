"""Kills on a real federation: its SuperLink, its nodes and its server's process, at random moments."""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
from tests.flower.real import differences, fedapm, kill, restarted_node, rounds, server_process, wait_for

from attacks.registry import attack
from attacks.tally import Outcome, Tally
from fedapm.errors import FedapmError
from fedapm.flower.local import federation as local
from fedapm.flower.local.processes import Process, descendants
from fedapm.runs.folder import is_locked

NODES, SEED = 3, 17
STEP = 3
"""By how many rounds a run is made longer that ends before the last kill."""
PAUSE = 0.0, 20.0
"""Seconds from the first round after a kill to the next kill."""
START = 180.0
"""Seconds that this round may take; then the next kill comes all the same."""
PATIENCE = 900.0
"""Seconds for the last command."""
CONFIG = """
[data]
name = "digits"
clients = 3
[solver]
epochs = 1
[engine]
seed = 1
fraction = 1.0
[flower]
timeout = 90.0
retries = 3
wait = 200.0
"""


@attack("Flower: kills in a real federation", "kills", minutes=25)
def kills(tally: Tally, quick: bool) -> None:
    """A supervisor restarts what was killed, and the same command is given again until the run is complete."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = local.up(folder / "federation", NODES, lambda *_: None)
        try:
            Killer(tally, made, folder, 3 if quick else 20).run()
        finally:
            local.down(made.folder)


class Killer:
    """One run that is made longer until there were enough kills."""

    def __init__(self, tally: Tally, made: local.LocalFederation, folder: Path, count: int) -> None:
        self.tally, self.made, self.out, self.count = tally, made, folder / "run", count
        self.config = folder / "experiment.toml"
        self.config.write_text(CONFIG)
        self.stream = random.Random(SEED)
        self.done = threading.Event()
        self.supervisor = ThreadPoolExecutor(NODES)
        self.restarts: dict[int, Future[Process]] = {}
        self.killed: list[str] = []
        self.reached = 0
        """How many rounds were recorded at the last kill."""

    def run(self) -> None:
        """Kill, and compare the end with that of one process."""
        command = threading.Thread(target=self._command, daemon=True)
        command.start()
        # a run begins only when all its clients are there
        wait_for(lambda: rounds(self.out), PATIENCE)
        while len(self.killed) < self.count and command.is_alive():
            with suppress(TimeoutError):
                wait_for(self._working, START)
            time.sleep(self.stream.uniform(*PAUSE))
            self._kill()
        self.done.set()
        command.join(PATIENCE)
        outcome, what = Outcome.SURVIVED, ""
        if command.is_alive():
            outcome, what = Outcome.HANG, f"the run did not end after the kills of {', '.join(self.killed)}"
        elif found := differences(self.made, self.out):
            outcome, what = Outcome.DIFFERING, f"{', '.join(found[:5])} after the kills of {', '.join(self.killed)}"
        for _ in self.killed:
            self.tally.add(outcome, what)

    def _command(self) -> None:
        """The same command, again and again, with a longer run when one is complete."""
        rounds = STEP
        while True:
            options = ("--folder", self.made.folder, "--out", self.out, "--set", f"engine.rounds={rounds}")
            command = fedapm("run", self.config, *options)
            _, said = command.communicate()
            if "Traceback" in said:
                self.tally.add(Outcome.TRACEBACK, said[-500:])
            if command.returncode == 0:
                if self.done.is_set():
                    return
                rounds += STEP
            else:
                time.sleep(2)

    def _kill(self) -> None:
        server = server_process(self.made)
        nodes = [f"node-{k}" for k in range(NODES) if k not in self.restarts]
        victim = self.stream.choice(["superlink", *nodes, *["server"] * (2 if server is not None else 0)])
        if server is not None and victim == "server":
            kill(server.pid)
        elif victim == "superlink":
            _kill_program(self.made.processes[0].pid)
            time.sleep(1)
            self._replace(0, local.start_superlink(self.made))
            with suppress(FedapmError):
                local.wait_for_superlink(self.made)
        else:
            k = int(victim.removeprefix("node-"))
            _kill_program(self.made.processes[k + 1].pid)
            self.restarts[k] = self.supervisor.submit(restarted_node, self.made, k)
        self.killed.append(victim)
        self.reached = len(rounds(self.out))
        after = f"after round {self.reached - 1}"
        print(f"  killed {victim} ({len(self.killed)} of {self.count}) {after}", file=sys.stderr, flush=True)

    def _working(self) -> bool:
        """Whether the server has ended a round since the last kill; restarted nodes are taken over on the way."""
        for k in [k for k, restart in self.restarts.items() if restart.done()]:
            self._replace(k + 1, self.restarts.pop(k).result())
        return is_locked(self.out) and len(rounds(self.out)) > self.reached

    def _replace(self, place: int, process: Process) -> None:
        self.made.processes[place] = process
        self.made.write()


def _kill_program(pid: int) -> None:
    """Kill a SuperLink or a node, and what starts the apps for it; processes of apps that run are left alone.

    Without its program it would ask for work for ever, at a few percent of a processor. A supervisor ends it, too.
    """
    starters = [process for process in descendants(pid) if _starts_apps(process)]
    kill(pid)
    for process in starters:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _starts_apps(process: psutil.Process) -> bool:
    try:
        return "flower-superexec" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
