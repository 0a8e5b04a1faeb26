"""What privacy and compression cost: accuracy against ε, and against bytes.

    python benchmarks/privacy.py utility --out runs/utility.json
    python benchmarks/privacy.py compression --out runs/compression.json

Settings are chosen on validation data with seeds of their own; the tables are of other seeds and of test data. Runs are
added to the file as they end, and a second call does only what is missing.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedapm.data import Federation
from fedapm.errors import FedapmError
from fedapm.experiments import build
from fedapm.models.mlp import MLP
from fedapm.privacy import gaussian_epsilon
from fedapm.runs.files import write_json
from fedapm.simulation.callbacks import History
from fedapm.simulation.loop import Loop

METHODS = ("fedapm", "fedalt", "fedavg")
SEEDS, CHOOSING = (0, 1, 2), 10
"""The seeds of the table of utility, and the one that settings are chosen with."""
JUDGES, FRESH = (10, 11, 12), (6, 7, 8)
"""The seeds that the table of compression chooses with, and its own: what it chooses from was settled after a look at
scores of the first three, and that three seeds choose after those of the next three."""
CLIENTS, DIMENSIONS, CLASSES, TRAIN, TEST = 300, 20, 4, 40, 20
"""The made federation: clients that see the same two numbers behind twenty, and judge them each in their own way."""
EPSILONS: tuple[float | None, ...] = (1.0, 3.0, 8.0, None)
ROUNDS, DELTA = 20, 1e-5
PRIVATE: tuple[dict[str, dict[str, float]], ...] = tuple(
    {"privacy": {"clip": clip}, "solver": {"lr": lr}} for clip in (0.2, 1.0) for lr in (0.1, 0.4)
)
"""What is chosen from for each method and ε."""
SMALL: dict[str, dict[str, Any]] = {
    "whole": {},
    "top-k 0.37, int8": {"compress": "top-k", "keep": 0.37, "round_to": "int8"},
    "low-rank 8, int8": {"compress": "low-rank", "rank": 8, "round_to": "int8"},
    "top-k 0.06": {"compress": "top-k", "keep": 0.06},
}
"""What is compared: one of those with an eighth of the bytes or less is chosen for each method."""

Tables = dict[str, dict[str, Any]]


def sectors(seed: int, count: int = CLIENTS, test_size: int = TEST) -> Federation:
    """Classes are sectors of a plane hidden in the inputs; each client turns the plane by an angle of its own."""
    stream = torch.Generator().manual_seed(seed)
    plane = torch.linalg.qr(torch.randn(DIMENSIONS, 2, generator=stream)).Q
    train, test = {}, {}
    for k in range(count):
        x = torch.randn(TRAIN + test_size, DIMENSIONS, generator=stream)
        turn = torch.randint(CLASSES, (1,), generator=stream) / CLASSES
        share = (torch.atan2(*(x @ plane).T) / (2 * torch.pi) + turn).remainder(1.0)
        y = (share * CLASSES).long().clamp(max=CLASSES - 1)
        train[f"{k:03d}"], test[f"{k:03d}"] = (x[:TRAIN], y[:TRAIN]), (x[TRAIN:], y[TRAIN:])
    return Federation.from_clients(train, test=test, name="sectors")


def network() -> torch.nn.Module:
    """A hidden layer that is shared, and an output layer that is not."""
    return MLP(CLASSES, DIMENSIONS, (8,))


def noise_multiplier(epsilon: float) -> float:
    """σ with which all rounds together cost ε: everybody takes part in each of them."""
    low, high = 1e-2, 1e4
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gaussian_epsilon(math.sqrt(ROUNDS) / middle, DELTA) > epsilon else (low, middle)
    return high


class Runs:
    """Runs by their settings; those that were done before are read from a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: dict[str, list[float]] = json.loads(path.read_text()) if path.is_file() else {}

    def scores(self, tables: Tables, validation: bool) -> tuple[float, float]:
        """The mean accuracy of all clients after the last round in percent, and the bytes that they sent."""
        key = json.dumps([tables, validation], sort_keys=True)
        if key not in self.done:
            self.done[key] = self._run(tables, validation)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, self.done)
        accuracy, size = self.done[key]
        return accuracy, size

    def _run(self, tables: Tables, validation: bool) -> list[float]:
        own = "data" not in tables
        if own:
            seed = tables["engine"]["seed"]
            clients = sectors(seed).for_validation(0.25, seed) if validation else sectors(seed)
            spec = build.plan(build.resolve({**tables, "data": {"name": "own"}}, given=True), clients, network)
        else:
            data = {**tables["data"], "validation": 0.25} if validation else tables["data"]
            spec = build.plan(build.resolve({**tables, "data": data}))
        engine, history = spec.open_engine(None).engine, History()
        try:
            Loop(spec.problem, spec.algorithm, spec.schedule, engine, [history]).run()
        except FedapmError:
            return [0.0, 0.0]
        finally:
            engine.close()
        last = history.records[-1]
        found = next(iter((last["evaluations"] or {}).values()))["per_client"]["accuracy"]
        return [100 * statistics.fmean(score for score in found if score is not None), float(last["total_bytes_up"])]


def private_tables(method: str, epsilon: float | None, seed: int, more: Tables) -> Tables:
    """A run on the made federation that ends with ε."""
    engine = {"rounds": ROUNDS, "fraction": 1.0, "seed": seed, "evaluate_every": ROUNDS, "engine": "vectorized"}
    tables: Tables = {
        "model": {"preset": "output"},
        "algorithm": {"name": method},
        "engine": engine,
        "solver": {"epochs": 3, "batch_size": 20, **more["solver"]},
    }
    if epsilon is not None:
        noise = {"noise_multiplier": noise_multiplier(epsilon), "delta": DELTA, "noise": "keyed"}
        tables["privacy"] = {**noise, **more["privacy"]}
    return tables


def utility(runs: Runs) -> None:
    """Accuracy at each ε."""
    print(f"| method | {' | '.join(f'ε = {e:g}' if e else 'ε = ∞' for e in EPSILONS)} |\n|---|{'---|' * len(EPSILONS)}")
    for method in METHODS:
        cells = []
        for epsilon in EPSILONS:

            def judged(more: Tables, method: str = method, epsilon: float | None = epsilon) -> float:
                return runs.scores(private_tables(method, epsilon, CHOOSING, more), validation=True)[0]

            best = max(PRIVATE, key=judged)
            cells.append(cell([runs.scores(private_tables(method, epsilon, s, best), False)[0] for s in SEEDS]))
        print(f"| {method} | {' | '.join(cells)} |", flush=True)


def small_tables(method: str, upload: Mapping[str, Any], seed: int) -> Tables:
    """A run on digits."""
    engine = {"rounds": 100, "fraction": 0.5, "seed": seed, "evaluate_every": 100, "engine": "vectorized"}
    return {
        "data": {"name": "digits", "seed": seed},
        "algorithm": {"name": method},
        "engine": engine,
        "upload": dict(upload),
    }


def compression(runs: Runs) -> None:
    """Accuracy with fewer bytes."""
    print("| method | whole, % | chosen | bytes | with it, % | difference |\n|---|---|---|---|---|---|")
    for method in METHODS:
        judged = {
            name: [runs.scores(small_tables(method, SMALL[name], seed), validation=True) for seed in JUDGES]
            for name in SMALL
        }
        most = judged["whole"][0][1] / 8
        able = [name for name in SMALL if judged[name][0][1] <= most]
        best = max(able, key=lambda name: statistics.fmean(accuracy for accuracy, _ in judged[name]))
        whole = [runs.scores(small_tables(method, {}, seed), False) for seed in FRESH]
        small = [runs.scores(small_tables(method, SMALL[best], seed), False) for seed in FRESH]
        gaps = [b[0] - a[0] for a, b in zip(whole, small, strict=True)]
        share = whole[0][1] / small[0][1]
        row = [method, cell([a for a, _ in whole]), best, f"1/{share:.1f}", cell([a for a, _ in small]), signed(gaps)]
        print(f"| {' | '.join(row)} |", flush=True)


def cell(found: Sequence[float]) -> str:
    """Mean and standard deviation over seeds."""
    return f"{statistics.fmean(found):.1f} ± {statistics.stdev(found):.1f}"


def signed(gaps: Sequence[float]) -> str:
    """The mean of paired differences and its standard error."""
    return f"{statistics.fmean(gaps):+.2f} ± {statistics.stdev(gaps) / math.sqrt(len(gaps)):.2f}"


def main() -> None:
    """Run what is missing and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("utility", "compression"))
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    {"utility": utility, "compression": compression}[given.table](Runs(given.out))


if __name__ == "__main__":
    main()
