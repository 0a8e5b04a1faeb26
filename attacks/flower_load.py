"""Load: many clients for a long time, with the memory, the open files and the rounds of the server drawn in a picture.

The minutes are 30, or those that ATTACK_MINUTES says; the pictures are written to ``attack-load/``.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import psutil
import torch
from tests.flower.grid import InProcessGrid
from tests.flower.real import fedapm, server_process

from attacks.load_picture import draw
from attacks.registry import attack
from attacks.tally import Outcome, Tally
from fedapm.core.messages import collect_messages
from fedapm.data import Federation
from fedapm.flower import client_app
from fedapm.flower.local import federation as local
from fedapm.flower.server.run import serve
from fedapm.flower.settings import deployment
from fedapm.models import DigitsNet
from fedapm.runs.records import JsonLines

CLIENTS, NODES = 200, 20
FOLDER = Path("attack-load")
GROWTH = 1.25
"""How much more memory or files the last third of the time may take than the second; the first is for warming up."""


def minutes(quick: bool) -> float:
    """How long a load lasts."""
    return float(os.environ.get("ATTACK_MINUTES", "0.5" if quick else "30"))


@attack("Flower: 200 clients in one process", "rounds", minutes=31)
def in_process(tally: Tally, quick: bool) -> None:
    """The server and all clients in this process; the run is resumed now and then."""
    with tempfile.TemporaryDirectory() as name:
        folder, end, rounds = Path(name), time.monotonic() + 60 * minutes(quick), 0
        stream = torch.Generator().manual_seed(1)
        ids = [f"client-{k}" for k in range(CLIENTS)]
        data = Federation.from_clients(
            {one: (torch.rand(30, 64, generator=stream), torch.randint(10, (30,), generator=stream)) for one in ids},
            test_fraction=0.2,
        )
        app = client_app(data=lambda one: data[data.position(one)], model=lambda: DigitsNet(width=16, features=8))
        grid = InProcessGrid(app, folder / "nodes", {k + 1: {"client-id": one} for k, one in enumerate(ids)}, keep=1)
        process = psutil.Process()
        with Samples(lambda: [process]) as samples:
            while time.monotonic() < end:
                rounds += 20
                tables = {
                    "data": {"name": "own"},
                    "model": {"preset": "output"},
                    "solver": {"epochs": 1},
                    "engine": {"rounds": rounds, "fraction": 0.1, "evaluate_every": 20, "save_models": False},
                    "flower": {"clients": ids, "wait": 60.0},
                }
                with collect_messages():
                    serve(grid.link(), deployment(tables), folder / "run", lambda: DigitsNet(width=16, features=8))
        _judge(tally, folder / "run", samples, "200-in-process", "200 clients in one process")


@attack("Flower: 20 SuperNodes", "rounds", minutes=35)
def super_nodes(tally: Tally, quick: bool) -> None:
    """A SuperLink and nodes of their own, as on twenty machines."""
    if quick:
        tally.skipped = "it takes minutes"
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = local.up(folder / "federation", NODES, lambda *_: None)
        try:
            _on_nodes(tally, made, folder, 60 * minutes(quick))
        finally:
            local.down(made.folder)


def _on_nodes(tally: Tally, made: local.LocalFederation, folder: Path, seconds: float) -> None:
    config, out, rounds = folder / "experiment.toml", folder / "run", 0
    config.write_text(
        f'[data]\nname = "digits"\nclients = {NODES}\n[solver]\nepochs = 1\n[engine]\nevaluate_every = 1000\n'
        "fraction = 0.2\n[flower]\ntimeout = 900.0\nwait = 900.0\n"
    )

    def programs() -> list[psutil.Process]:
        # of the nodes only the programs that stay, not the process that each message starts
        lasting = [psutil.Process(program.pid) for program in made.processes]
        server = server_process(made)
        return [*lasting, *([server] if server is not None else [])]

    end = time.monotonic() + seconds
    with Samples(programs, every=5.0) as samples:
        while time.monotonic() < end:
            rounds += 5
            options = ("--folder", made.folder, "--out", out, "--set", f"engine.rounds={rounds}")
            command = fedapm("run", config, *options)
            _, said = command.communicate()
            if command.returncode:
                tally.add(Outcome.LOST, said[-500:])
                return
    _judge(tally, out, samples, "20-supernodes", "A SuperLink and 20 SuperNodes")


@dataclass
class Samples:
    """Memory and open files of some processes over time."""

    programs: Callable[[], Iterable[psutil.Process]]
    every: float = 1.0
    seconds: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    """MiB, of all together."""
    files: list[float] = field(default_factory=list)

    def __enter__(self) -> Samples:
        self._end, self._began = threading.Event(), time.monotonic()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._end.wait(self.every):
            memory, files = 0.0, 0
            for process in self.programs():
                try:
                    memory, files = memory + process.memory_info().rss / 2**20, files + process.num_fds()
                except psutil.NoSuchProcess:
                    continue
            self.seconds.append(time.monotonic() - self._began)
            self.memory.append(memory)
            self.files.append(files)


def _judge(tally: Tally, out: Path, samples: Samples, name: str, title: str) -> None:
    records, times = list(JsonLines(out / "rounds.jsonl")), list(JsonLines(out / "timings.jsonl"))
    for record in records[1:]:
        lost = bool(record["dropped"])
        what = f"round {record['round']}: the replies of {record['dropped']} are missing"
        tally.add(Outcome.LOST if lost else Outcome.SURVIVED, what if lost else "")
    took = [float(row["seconds"]) for row in times[1:]]
    FOLDER.mkdir(exist_ok=True)
    shown = {"seconds": samples.seconds, "MiB": samples.memory, "files": samples.files, "rounds": took}
    (FOLDER / f"{name}.json").write_text(json.dumps(shown) + "\n")
    draw(FOLDER / f"{name}.svg", title, shown)
    for what, values in (("memory", samples.memory), ("the number of open files", samples.files)):
        third = len(values) // 3
        if third and (grown := _growth(values, third)) > GROWTH:
            tally.add(Outcome.LOST, f"{what} grew by a factor of {grown:.2f}")


def _growth(values: list[float], third: int) -> float:
    return statistics.median(values[-third:]) / statistics.median(values[third : 2 * third])
