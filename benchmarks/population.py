"""What a round takes when clients are loaded as they are needed, out of a hundred of them or a million.

    python benchmarks/population.py [--quick] [--json FILE]

FedAPM on tiny clients, 100 in a round. Each population has a process of its own, and all of them take turns round by
round, so that whatever disturbs the machine disturbs all of them. Processor time counts, that of all threads. The cache
holds the clients of two rounds, so that every round has its clients to read, however few there are.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
from contenders import ONE_THREAD

from fedapm.runs.files import write_json

HERE = Path(__file__).parent
COHORT = 100
CACHE = 4 << 20
"""Bytes of clients' data that are kept: those of the clients of two rounds, this one and the next."""
EVALUATED = 100
WARM, ROUNDS = 2, 48
LIMITS = {"ratio": 1.2, "peak_mib": 2048.0, "start_seconds": 10.0}

Case = dict[str, Any]


def cases(quick: bool) -> list[Case]:
    """What is run, each in its own process."""
    populations = [1_000, 100_000] if quick else [100, 1_000, 10_000, 100_000, 1_000_000]
    found: list[Case] = [{"source": "function", "population": p, "cache": CACHE} for p in populations]
    # a cache that holds all of these clients: what reading costs
    found.append({"source": "function", "population": 1_000, "cache": 1 << 28})
    return [*found, {"source": "sqlite", "population": 1_000 if quick else 2_000, "cache": CACHE}]


def fill(path: Path, population: int) -> None:
    """A database with the samples of so many clients."""
    import torch
    from workloads import TINY, samples

    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE samples (client INTEGER, y INTEGER, x BLOB)")
        for client in range(population):
            x, y = samples(TINY, client)
            rows = zip([client] * len(y), y.tolist(), (row.numpy().tobytes() for row in torch.unbind(x)), strict=True)
            database.executemany("INSERT INTO samples VALUES (?, ?, ?)", rows)
        database.execute("CREATE INDEX by_client ON samples (client)")
    database.close()


def child(asked: Case) -> None:
    """One population: says when it is ready, then does a round for every line it reads, and in the end what it used."""
    import torch
    import usage
    from ours import one_round
    from workloads import CLASSES, TINY, samples, tiny

    from fedapm import Federation
    from fedapm.experiments import build
    from fedapm.simulation.engines.vectorized import VectorizedEngine
    from fedapm.simulation.loop import Loop

    torch.set_num_threads(1)
    imported = time.process_time()
    common = {"classes": CLASSES, "memory": asked["cache"]}
    if asked["source"] == "sqlite":
        clients = Federation.lazy(asked["file"], **common)
    else:
        clients = Federation.lazy(asked["population"], lambda k: samples(TINY, k), **common)
    settings = {
        "rounds": 10**6,
        "count": COHORT,
        "evaluate_clients": EVALUATED,
        "evaluate_every": 10**6,
        "final_personal_epochs": 0,
    }
    tables = {
        "model": {"personal": list(TINY.personal)},
        "solver": {"lr": TINY.lr, "epochs": TINY.epochs, "batch_size": TINY.batch},
        "engine": settings,
    }
    torch.manual_seed(0)
    plan = build.plan(build.resolve(tables, given=True), clients, tiny())
    plan.identity()
    engine = VectorizedEngine(plan.problem, plan.algorithm)
    loop = Loop(plan.problem, plan.algorithm, plan.schedule, engine)
    engine.prefetch(1, loop.select(1), last=False)
    lazy = plan.problem.federation.lazy_clients
    assert lazy is not None
    ready = {"import_seconds": imported, "setting_up_seconds": time.process_time() - imported}
    print(json.dumps(ready), flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        # what is read for the next round belongs to this one, whether it is done before its end or not
        one_round(loop, loop.state)
        lazy.settle()
        taken = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        print(json.dumps(taken), flush=True)
    engine.close()
    print(json.dumps({"peak_mib": usage.peak_mib()}), flush=True)


class Runner:
    """A process with one population."""

    def __init__(self, case: Case) -> None:
        self.case, self.rounds = case, list[dict[str, float]]()
        command = [sys.executable, str(HERE / "population.py"), "--case", json.dumps(case)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | ONE_THREAD
        )
        self.ready: dict[str, float] = {}

    def wait(self) -> None:
        """Until it is ready."""
        self.ready = self._read()

    def turn(self) -> None:
        """One round."""
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        self.rounds.append(self._read())

    def end(self) -> dict[str, Any]:
        """What came out."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        peak = self._read()["peak_mib"]
        self.process.wait()
        counted = self.rounds[WARM:]
        spread = {
            clock: {"best": min(values), "median": statistics.median(values)}
            for clock in ("wall", "cpu")
            for values in [[one[clock] for one in counted]]
        }
        return {**self.case, **self.ready, **spread, "peak_mib": peak, "rounds": counted}

    def _read(self) -> dict[str, float]:
        assert self.process.stdout is not None
        found: dict[str, float] = json.loads(self.process.stdout.readline())
        return found


def targets(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is to be kept, and whether it is."""
    plain = {case["population"]: case for case in found if case["source"] == "function" and case["cache"] == CACHE}
    few, many = plain[1_000], plain[max(plain)]
    values = {
        f"CPU time of a round at {max(plain):,} clients / at 1,000 (best)": (
            "ratio",
            many["cpu"]["best"] / few["cpu"]["best"],
        ),
        "the same, median": ("ratio", many["cpu"]["median"] / few["cpu"]["median"]),
        f"peak memory at {max(plain):,} clients, MiB": ("peak_mib", many["peak_mib"]),
        f"CPU seconds from the start to the first round at {max(plain):,} clients": (
            "start_seconds",
            many["import_seconds"] + many["setting_up_seconds"],
        ),
    }
    return [
        {"what": what, "value": value, "limit": LIMITS[name], "sense": "at most", "met": value <= LIMITS[name]}
        for what, (name, value) in values.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small populations: shows that it works, not more")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "population.json")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case is not None:
        child(json.loads(given.case))
        return
    machine.warn_if_busy()
    about = machine.about()
    with tempfile.TemporaryDirectory() as folder:
        runners = []
        for case in cases(given.quick):
            if case["source"] == "sqlite":
                case["file"] = str(Path(folder) / "clients.sqlite")
                fill(Path(case["file"]), case["population"])
            runners.append(Runner(case))
        for runner in runners:
            runner.wait()
        for _ in range(WARM + (5 if given.quick else ROUNDS)):
            for runner in runners:
                runner.turn()
        results = [runner.end() for runner in runners]
    print(
        f"{'source':10}{'clients':>10}{'cache, MiB':>12}{'CPU, ms':>10}{'median':>9}{'wall, ms':>10}{'peak, MiB':>11}"
        f"{'start, CPU s':>14}"
    )
    for found in results:
        found.pop("file", None)
        print(
            f"{found['source']:10}{found['population']:10,}{found['cache'] / 2**20:12.0f}"
            f"{found['cpu']['best'] * 1e3:10.1f}{found['cpu']['median'] * 1e3:9.1f}"
            f"{found['wall']['best'] * 1e3:10.1f}{found['peak_mib']:11.0f}"
            f"{found['import_seconds'] + found['setting_up_seconds']:14.1f}"
        )
    kept = targets(results)
    for one in kept:
        print(
            f"{one['what']}: {one['value']:.3g} ({one['sense']} {one['limit']:g}: {'met' if one['met'] else 'missed'})"
        )
    content = {"machine": about, "quick": given.quick, "cohort": COHORT, "cases": results, "targets": kept}
    write_json(given.json, content)
    print(f"written: {given.json}")


if __name__ == "__main__":
    main()
