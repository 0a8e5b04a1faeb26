"""FedAPM against its rivals on real data: every method with the best of twenty settings, then ten seeds.

    fedapm data get motionsense --data-root DIR
    python benchmarks/rivals.py motionsense --data-root DIR
    python benchmarks/rivals.py motionsense --data-root DIR --fraction 0.1
    python benchmarks/rivals.py cifar --data-root DIR

Settings are chosen on validation data, which no run is tested on, at the longest number of rounds: first one of twelve
with the example's L2 term, then its step size and its L2 term together, eight more. Then the methods are run with other
seeds and scored on test data: the clients' mean accuracy, after the closing phase, for several numbers of rounds.
Differences are paired by seed. Scores are kept in ``--out`` as they come, and no run is repeated.
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
    "motionsense": Case(
        "motionsense-features.toml", {"train_limit": 160, "validation": 0.75}, (10, 20, 30, 40, 50, 60)
    ),
    "cifar": Case("cifar-features.toml", {"validation": 0.25}, (10, 20, 30, 40, 50, 60)),
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


def decays(weight_decay: float) -> list[float]:
    """Two L2 weights beside the example's: little, and so much that no client can fit everything."""
    return [round(0.3 * weight_decay, 6), round(5 * weight_decay, 6)]


def choices(method: str, lr: float) -> list[Tables]:
    """The twelve settings that a method may choose from, with the example's L2 weight."""
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


LABELS = {
    "fedapm": "FedAPM",
    "fedalt": "FedAlt",
    "fedsim": "FedSim",
    "ditto": "Ditto",
    "scaffold": "SCAFFOLD",
    "fedavg": "FedAvg",
    "local": "local",
    "fine-tuned": "FedAvg, then each client its own copy",
}
METHODS = (*LABELS,)


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
        solver = self.tables["solver"]

        def validated(own: Tables) -> float:
            return statistics.mean(self.score(method, own, rounds, s, choosing=True) for s in SEEDS_FOR_CHOOSING)

        scored = [(validated(own), own) for own in choices(method, float(solver["lr"]))]
        best = max(scored, key=lambda pair: pair[0])
        for weight, step in itertools.product(decays(float(solver["weight_decay"])), step_sizes(float(solver["lr"]))):
            own = best[1] | {"solver": step | {"weight_decay": weight}}
            scored.append((validated(own), own))
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


def rounds_to(scores: dict[int, list[float]], levels: Sequence[float]) -> list[int]:
    """After how many rounds each seed is at its level; where it never is, ten more than the longest run."""
    seeds = range(len(levels))
    return [next((T for T in scores if scores[T][k] >= levels[k]), max(scores) + 10) for k in seeds]


def mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """A mean and half of its 95% interval."""
    n = len(values)
    half = student.ppf(0.975, n - 1) * statistics.stdev(values) / math.sqrt(n) if n > 1 else math.nan
    return statistics.mean(values), half


def interval(values: Sequence[float]) -> str:
    """The mean with its 95% interval."""
    mean, half = mean_and_half(values)
    return f"{mean:+.2f} ± {half:.2f}".replace("-", "−")


Scores = dict[str, dict[int, list[float]]]
"""Of each method, after each number of rounds, of each seed."""


def accuracies(scores: Scores, rounds: Sequence[int]) -> str:
    """The methods' means as a table, the best first, with FedAPM's lead at the end and half-way."""
    last, half = rounds[-1], rounds[len(rounds) // 2 - 1]
    heads = ["", *(f"{T} rounds" for T in rounds), f"FedAPM ahead after {half}", f"after {last}"]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for method in sorted(scores, key=lambda name: -statistics.mean(scores[name][last])):
        means = [f"{statistics.mean(scores[method][T]):.2f}" for T in rounds]
        leads = [interval(_minus(scores["fedapm"][T], scores[method][T])) for T in (half, last)]
        lines.append(_row([LABELS[method], *means, *(["", ""] if method == "fedapm" else leads)]))
    return "\n".join(lines)


def rounds_saved(scores: Scores, last: int) -> str:
    """After how many rounds FedAPM has a rival's last score, as a table."""
    heads = ["to the last score of", "FedAPM's rounds", "its own rounds", "FedAPM needs fewer"]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for rival in scores:
        if rival == "fedapm":
            continue
        ours, theirs = (rounds_to(scores[method], scores[rival][last]) for method in ("fedapm", rival))
        means = [f"{statistics.mean(values):.0f}" for values in (ours, theirs)]
        lines.append(_row([LABELS[rival], *means, interval(_minus(theirs, ours))]))
    return "\n".join(lines)


def _minus(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [x - y for x, y in zip(a, b, strict=True)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=list(CASES))
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
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
    about = (
        f"{given.data}, {given.fraction:.0%} of the clients a round, test accuracy in %, mean of {given.seeds} seeds"
    )
    print(f"\n{about}\n\n{accuracies(scores, case.rounds)}\n\n{rounds_saved(scores, case.rounds[-1])}")


if __name__ == "__main__":
    main()
