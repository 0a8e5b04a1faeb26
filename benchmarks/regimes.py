"""When FedAPM pays: one thing is varied at a time on real data, everything else equal, without a search.

    fedapm data get motionsense --data-root DIR
    fedapm data get cifar10 --data-root DIR
    python benchmarks/regimes.py --data-root DIR [--only NAME] [--seeds 6]
    python benchmarks/regimes.py --page          # put what was measured on docs/explanation/when-fedapm-pays.md

Test accuracy of clients after the last round and its closing phase, FedAPM against FedAlt with the same split, step
size and rounds, and FedAvg and training alone beside them. Nothing is chosen by these scores. Scores are kept in
``benchmarks/results/regimes.json`` as they come, and no run is repeated.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plots import LOOK, plt, write
from rivals import last_accuracy, mean_and_half

from fedapm.data.federation import Federation
from fedapm.experiments import build
from fedapm.runs.files import read_json, write_atomic, write_json

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "regimes.json"
PAGE = ROOT / "docs" / "explanation" / "when-fedapm-pays.md"
IMAGES = ROOT / "docs" / "images"
METHODS = {"fedapm": "FedAPM", "fedalt": "FedAlt", "fedavg": "FedAvg", "local": "local"}
COLOURS = {"fedapm": "#0072b2", "fedalt": "#d55e00", "fedavg": "#6b7075", "local": "#009e73"}
MARKS = {"fedapm": "o", "fedalt": "s", "fedavg": "^", "local": "v"}

Tables = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Regime:
    """One thing that is varied."""

    file: str
    """The experiment that all else is from."""
    axis: str
    """What is varied, in words."""
    values: dict[str, Tables]
    """What it is set to."""


def _over(table: str, key: str, values: Sequence[Any], more: Tables | None = None) -> dict[str, Tables]:
    return {f"{value:g}": {table: {key: value}} | (more or {}) for value in values}


MOTION, CIFAR = "motionsense-features.toml", "cifar-features.toml"
REGIMES = {
    "cohort": Regime(MOTION, "clients in a round, of 24", _over("engine", "count", (2, 4, 7, 12, 24))),
    "epochs": Regime(MOTION, "local epochs of a phase", _over("solver", "epochs", (1, 3, 10))),
    "step": Regime(MOTION, "step size", _over("solver", "lr", (0.02, 0.05, 0.1, 0.2))),
    "decay": Regime(MOTION, "L2 weight", _over("solver", "weight_decay", (0, 0.003, 0.01, 0.03))),
    "personal": Regime(
        MOTION,
        "what is personal",
        {
            "nothing": {"model": {"shared": ["*"]}},
            "biases": {"model": {"personal": ["*.bias"]}},
            "last layer": {"model": {"preset": "output"}},
            "last two": {"model": {"personal": ["body.*", "head.*"]}},
        },
    ),
    "decay-pictures": Regime(
        CIFAR,
        "L2 weight",
        _over("solver", "weight_decay", (0, 0.005, 0.025, 0.05), more={"model": {"personal": ["*.bias"]}}),
    ),
    "skew": Regime(CIFAR, "Dirichlet concentration", _over("data", "concentration", (0.1, 0.3, 1.0, 10.0))),
}


class Bench:
    """Runs and remembers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.known: dict[str, float] = read_json(RESULTS)["scores"] if RESULTS.is_file() else {}
        self.clients: dict[str, Federation] = {}

    def score(self, name: str, value: str, method: str, seed: int) -> float:
        """A run's accuracy in percent; 0 where it diverged."""
        key = f"{name}/{value}/{method}/{seed}"
        if key not in self.known:
            self.known[key] = self._run(REGIMES[name], value, method, seed)
            write_json(RESULTS, {"scores": self.known})
            print(f"{key}: {self.known[key]:.2f}", flush=True)
        return self.known[key]

    def _run(self, regime: Regime, value: str, method: str, seed: int) -> float:
        tables: Tables = tomllib.loads((ROOT / "examples" / regime.file).read_text("utf-8"))
        own = regime.values[value]
        if "model" in own:
            tables["model"].pop("preset", None)
        if "count" in own.get("engine", {}):
            tables["engine"].pop("fraction", None)
        for table, settings in own.items():
            tables[table] |= settings
        tables["data"]["root"] = str(self.root)
        tables["algorithm"] = {"name": method}
        rounds = tables["engine"]["rounds"]
        tables["engine"] |= {"engine": "vectorized", "seed": seed, "evaluate_every": rounds}
        experiment = build.resolve(tables)
        data = repr(experiment.data)
        if data not in self.clients:
            self.clients[data] = build.federation(experiment.data)
        return last_accuracy(experiment, self.clients[data])


def leads(scores: dict[str, list[list[float]]], values: Sequence[str]) -> list[tuple[str, float, float]]:
    """How far FedAPM is ahead of FedAlt at each value, paired by seed."""
    pairs = zip(scores["fedapm"], scores["fedalt"], strict=True)
    return [
        (value, *mean_and_half([a - b for a, b in zip(ours, theirs, strict=True)]))
        for value, (ours, theirs) in zip(values, pairs, strict=True)
    ]


def sentence(found: Sequence[tuple[str, float, float]]) -> str:
    """Where FedAPM is ahead or behind by more than the noise."""
    ahead = [value for value, mean, half in found if mean > half]
    behind = [value for value, mean, half in found if mean < -half]
    level = [value for value, _, _ in found if value not in (*ahead, *behind)]
    parts = [(ahead, "ahead at"), (behind, "behind at"), (level, "level at")]
    return f"Against FedAlt, FedAPM is {'; '.join(f'{words} {_listed(some)}' for some, words in parts if some)}."


def _listed(some: Sequence[str]) -> str:
    return some[0] if len(some) == 1 else f"{', '.join(some[:-1])} and {some[-1]}"


def table(scores: dict[str, list[list[float]]], found: Sequence[tuple[str, float, float]], axis: str) -> str:
    """Means of the methods, and FedAPM's lead."""
    lines = [f"| {axis} | {' | '.join(METHODS.values())} | FedAPM over FedAlt |", f"|---|{'---|' * (len(METHODS) + 1)}"]
    for k, (value, mean, half) in enumerate(found):
        means = " | ".join(f"{statistics.mean(scores[method][k]):.2f}" for method in METHODS)
        lines.append(f"| {value} | {means} | {mean:+.2f} ± {half:.2f} |".replace("-", "−"))
    return "\n".join(lines)


def draw(name: str, scores: dict[str, list[list[float]]], values: Sequence[str], axis: str) -> None:
    """Accuracy against what is varied, with the standard deviation over seeds."""
    with plt.rc_context(LOOK):
        figure, axes = plt.subplots(figsize=(6, 3.4))
        places = range(len(values))
        for method, label in METHODS.items():
            means = [statistics.mean(row) for row in scores[method]]
            spread = [statistics.stdev(row) if len(row) > 1 else 0.0 for row in scores[method]]
            look = {"color": COLOURS[method], "marker": MARKS[method], "label": label, "capsize": 3}
            axes.errorbar(places, means, spread, **look)
        axes.set_xticks(list(places), values)
        axes.set_xlabel(axis)
        axes.set_ylabel("accuracy (%)")
        axes.grid(axis="y")
        axes.legend(frameon=False, fontsize=9)
        write(figure, IMAGES / f"regime-{name}.svg")


def fill(text: str, blocks: dict[str, str]) -> str:
    """The page with its blocks replaced; every block of either side must be on the other."""
    found = re.findall(r"<!-- begin (\S+) -->", text)
    if set(found) != set(blocks):
        raise SystemExit(
            f"{PAGE.name} has the blocks {found}, the results have {[*blocks]}; measure all of them first."
        )
    for name, content in blocks.items():
        pattern = rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)"
        text = re.sub(pattern, lambda match, new=content: f"{match[1]}{new}\n{match[2]}", text, flags=re.S)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, help="the folder with the data sets' files")
    parser.add_argument("--only", action="append", choices=list(REGIMES), help="may be repeated; all if not given")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--page", action="store_true", help="write the page and its figures from what was measured")
    given = parser.parse_args()
    if not given.page and given.data_root is None:
        parser.error("--data-root is needed to measure anything")
    bench = Bench(given.data_root or Path())
    blocks = {}
    for name in given.only or REGIMES:
        regime = REGIMES[name]
        if given.page:
            count = len({key for key in bench.known if key.startswith(f"{name}/{next(iter(regime.values))}/fedapm/")})
            missing = [
                f"{value}/{method}/{seed}"
                for value in regime.values
                for method in METHODS
                for seed in range(max(count, 1))
                if f"{name}/{value}/{method}/{seed}" not in bench.known
            ]
            if missing:
                raise SystemExit(f"{name} was not measured whole: {', '.join(missing[:3])} is missing.")
        else:
            count = given.seeds
        scores = {
            method: [[bench.score(name, value, method, seed) for seed in range(count)] for value in regime.values]
            for method in METHODS
        }
        values = [*regime.values]
        found = leads(scores, values)
        text = f"{table(scores, found, regime.axis)}\n\n{sentence(found)}"
        print(f"\n{name}, {count} seeds\n{text}\n", flush=True)
        if given.page:
            draw(name, scores, values, regime.axis)
            blocks[name] = f"![Accuracy against {regime.axis}](../images/regime-{name}.svg)\n\n{text}"
    if given.page:
        write_atomic(PAGE, fill(PAGE.read_text("utf-8"), blocks))
        print(f"written: {json.dumps(str(PAGE.relative_to(ROOT)))}")


if __name__ == "__main__":
    main()
