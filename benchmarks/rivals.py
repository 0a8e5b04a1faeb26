"""FedAPM against its rivals on real data: every method with the best of twelve settings, then six seeds.

    fedapm data get motionsense --data-root DIR
    python benchmarks/rivals.py motionsense --data-root DIR
    python benchmarks/rivals.py motionsense --data-root DIR --fraction 0.1
    python benchmarks/rivals.py cifar --data-root DIR

Settings are chosen on validation data, which no run is tested on, at the longest number of rounds. Then the methods are
run with other seeds and scored on test data: the clients' mean accuracy, after the closing phase, for several numbers
of rounds. Differences are paired by seed. Scores are kept in ``--out`` as they come, and no run is repeated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.stats import t as student

from fedapm.data.federation import Federation
from fedapm.errors import Diverged
from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.experiments.settings import Experiment
from fedapm.runs.files import write_json

EXAMPLES = Path(__file__).parents[1] / "examples"
CLOSING = 10
"""Epochs of the closing phase, for every method that has one."""
SEEDS_FOR_CHOOSING = (100, 101, 102)

Tables = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A data set."""

    file: str
    """Its experiment file."""
    choosing: dict[str, Any]
    """What is different about the data while settings are chosen."""
    rounds: tuple[int, ...]
    """The numbers of rounds to look at."""


CASES = {
    # 40 windows to train on, as later, and 120 others of the training half to choose by
    "motionsense": Case("motionsense-features.toml", {"train_limit": 160, "validation": 0.75}, (15, 30, 45, 60)),
    "cifar": Case("cifar-features.toml", {"validation": 0.25}, (10, 20, 30, 60)),
}


def step_sizes(lr: float) -> list[dict[str, Any]]:
    """Four step sizes about the example's; the larger ones fall from round to round."""
    falling = {"lr_schedule": "exponential"}
    return [
        {"lr": lr / 2},
        {"lr": lr},
        {"lr": round(2 * lr, 6), "lr_decay": 0.98, **falling},
        {"lr": round(3 * lr, 6), "lr_decay": 0.97, **falling},
    ]


def more_step_sizes(lr: float) -> list[dict[str, Any]]:
    """Eight more, for methods that have nothing else to choose."""
    pairs = [(0.25, 1.0), (0.7, 1.0), (1.4, 1.0), (2, 1.0), (1, 0.98), (2, 0.96), (3, 0.98), (4, 0.96)]
    return [{"lr": round(a * lr, 6), "lr_schedule": "exponential", "lr_decay": decay} for a, decay in pairs]


def choices(method: str, lr: float) -> list[Tables]:
    """The twelve settings that a method may choose from."""
    output: Tables = {"model": {"preset": "output"}}
    stem: Tables = {"model": {"personal": ["stem.*"]}}
    biases: Tables = {"model": {"personal": ["*.bias"]}}
    copies = {"algorithm": {"evaluate": "local"}}
    everything: Tables = {"model": {"shared": ["*"]}}
    own: dict[str, list[Tables]] = {
        "fedapm": [output, biases, everything | copies],
        "fedalt": [output, stem, biases],
        "fedsim": [output, stem, biases],
        "ditto": [{"algorithm": {"lam": lam}} for lam in (0.03, 0.1, 0.5)],
        # what FedAPM becomes without its penalty and its duals, when nothing is personal but the copies of the end
        "fine-tuned": [everything | {"algorithm": {"evaluate": "local", "rho": 0.0}}],
    }
    if method in own and len(own[method]) > 1:
        return [tables | {"solver": step} for tables, step in itertools.product(own[method], step_sizes(lr))]
    steps = step_sizes(lr) + more_step_sizes(lr)
    return [tables | {"solver": step} for tables, step in itertools.product(own.get(method, [{}]), steps)]


METHODS = ("fedapm", "fedalt", "fedsim", "ditto", "scaffold", "fedavg", "local", "fine-tuned")
LABELS = {"fine-tuned": "FedAvg, then each its copy"}


class Bench:
    """Runs and remembers.

    Args:
        case: The data set.
        root: The folder with its files.
        out: Where scores are kept.
        engine: How clients are run.
        fraction: The share of clients in a round.
    """

    def __init__(self, case: Case, root: Path, out: Path, engine: str, fraction: float) -> None:
        self.case, self.out, self.engine = case, out, engine
        self.tables: Tables = tomllib.loads((EXAMPLES / case.file).read_text())
        self.tables["engine"]["fraction"] = fraction
        self.tables["data"]["root"] = str(root)
        self.known: dict[str, float] = json.loads(out.read_text()) if out.exists() else {}
        self.clients: dict[bool, Federation] = {}

    def score(self, method: str, own: Tables, rounds: int, seed: int, *, choosing: bool = False) -> float:
        """A run's accuracy in percent, after its closing phase; 0 where it diverged."""
        name = json.dumps([method, own, rounds, seed, choosing], sort_keys=True)
        if name not in self.known:
            self.known[name] = self._run(method, own, rounds, seed, choosing)
            write_json(self.out, self.known)
        return self.known[name]

    def _run(self, method: str, own: Tables, rounds: int, seed: int, choosing: bool) -> float:
        tables: Tables = {name: dict(table) for name, table in self.tables.items()}
        if "model" in own:
            tables["model"].pop("preset", None)
        tables["data"] |= self.case.choosing if choosing else {}
        tables["algorithm"] = {"name": "fedapm" if method == "fine-tuned" else method}
        tables["engine"] |= {"engine": self.engine, "rounds": rounds, "seed": seed, "evaluate_every": rounds}
        tables["engine"]["final_personal_epochs"] = CLOSING
        for name, table in own.items():
            tables[name] |= table
        experiment = build.resolve(tables)
        if choosing not in self.clients:
            self.clients[choosing] = build.federation(experiment.data)
        return last_accuracy(experiment, self.clients[choosing])

    def choose(self, method: str, rounds: int) -> tuple[Tables, float]:
        """The settings that are best on validation data, and their score there."""
        lr = float(self.tables["solver"]["lr"])
        scored = []
        for own in choices(method, lr):
            seeds = [self.score(method, own, rounds, s, choosing=True) for s in SEEDS_FOR_CHOOSING]
            scored.append((statistics.mean(seeds), own))
        best = max(scored, key=lambda pair: pair[0])
        return best[1], best[0]


def last_accuracy(experiment: Experiment, clients: Federation) -> float:
    """The mean accuracy of clients at the end of a run, in percent; 0 where it diverged."""
    try:
        result = execute(build.plan(experiment, clients), None, progress=False)
    except Diverged:
        return 0.0
    evaluations = result.records[-1]["evaluations"] or {}
    return 100 * float(next(iter(evaluations.values()))["accuracy"]["mean"])


def mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """A mean and half of its 95% interval."""
    n = len(values)
    half = student.ppf(0.975, n - 1) * statistics.stdev(values) / math.sqrt(n) if n > 1 else math.nan
    return statistics.mean(values), half


def interval(values: Sequence[float]) -> str:
    """The mean with its 95% interval."""
    mean, half = mean_and_half(values)
    return f"{mean:+.2f} ± {half:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=list(CASES))
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--fraction", type=float, default=0.3, help="share of clients in a round")
    parser.add_argument("--engine", default="vectorized")
    parser.add_argument("--out", type=Path, help="a file of its own for each data set and fraction")
    given = parser.parse_args()
    case = CASES[given.data]
    out = given.out or Path(f"rivals-{given.data}-{given.fraction:g}.json")
    bench = Bench(case, given.data_root, out, given.engine, given.fraction)
    chosen, scores = {}, {}
    for method in METHODS:
        chosen[method], validated = bench.choose(method, case.rounds[-1])
        print(f"{method}: {validated:.2f} % on validation data with {json.dumps(chosen[method])}", flush=True)
    for method in METHODS:
        seeds = range(given.seeds)
        scores[method] = {T: [bench.score(method, chosen[method], T, s) for s in seeds] for T in case.rounds}
    columns = "".join(f"{f'{T} rounds':>12}" for T in case.rounds)
    about = f"{given.data}, {given.fraction:.0%} of the clients a round"
    print(f"\n{about}, test accuracy in %, mean of {given.seeds} seeds\n{'':28}{columns}   FedAPM ahead by (95%)")
    for method in METHODS:
        means = "".join(f"{statistics.mean(scores[method][T]):12.2f}" for T in case.rounds)
        gaps = [
            interval([a - b for a, b in zip(scores["fedapm"][T], scores[method][T], strict=True)]) for T in case.rounds
        ]
        lead = "" if method == "fedapm" else "   " + "   ".join(gaps)
        print(f"{LABELS.get(method, method):28}{means}{lead}")
    rivals = [method for method in METHODS if method != "fedapm"]
    print("\nrounds to a rival's last score (paired lead of FedAPM after so many rounds over the rival at the end)")
    for rival in rivals:
        last = scores[rival][case.rounds[-1]]
        leads = {T: [a - b for a, b in zip(scores["fedapm"][T], last, strict=True)] for T in case.rounds}
        reached = next((T for T, lead in leads.items() if statistics.mean(lead) >= 0), None)
        text = "not reached" if reached is None else f"{reached} of {case.rounds[-1]} ({interval(leads[reached])})"
        print(f"  {LABELS.get(rival, rival):28}{text}")


if __name__ == "__main__":
    main()
