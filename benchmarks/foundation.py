"""MiniLM's adapters on tweets: what to share, methods at equal rounds, and what a round costs.

    python benchmarks/foundation.py presets --data-root DATA --out runs/foundation   # what to share, on validation data
    python benchmarks/foundation.py table --data-root DATA --out runs/foundation     # methods, on test data
    python benchmarks/foundation.py memory --data-root DATA                          # 1, 2 and 20 clients

All run in one process on one core. ``presets`` and ``table`` choose a step size for each row on validation data first,
from the same list with one seed. They skip runs that are complete and resume one that is not.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.experiments.settings import read_toml
from fedapm.runs.records import JsonLines
from fedapm.simulation.engines.sequential import SequentialEngine, train_client

EXAMPLE = Path(__file__).parent.parent / "examples" / "tweets-lora.toml"
SEARCH = 100
"""The seed with which step sizes are chosen; the first of those that presets are compared with."""
PRESETS = {preset: ("fedapm", preset) for preset in ("lora", "ffa-lora", "dual", "head")}
METHODS = {
    "FedAPM": ("fedapm", "lora"),
    "FedAlt": ("fedalt", "lora"),
    "FedAvg, adapters and head": ("fedavg", "lora"),
    "linear probe (FedAvg, head)": ("fedavg", "head"),
    "local": ("local", "lora"),
}


@dataclass(frozen=True)
class Score:
    """The end of a run: the client mean of accuracy, and what was sent."""

    accuracy: float
    bytes_up: float
    """Of a client in a round."""
    whole: int
    """The bytes of the whole network."""


class Bench:
    """Runs of methods on the same clients, each in a folder of its own."""

    def __init__(self, options: argparse.Namespace, *, validation: bool) -> None:
        # where validation tweets are taken from the training data, the rest of it has the same size
        limit, share = options.train, 0.0
        if validation:
            limit, share = options.train + options.test, options.test / (options.train + options.test)
        limits = {"train_limit": limit, "test_limit": options.test}
        self.common: list[Mapping[str, Any]] = [
            read_toml(EXAMPLE),
            {"data": {"root": options.data_root, "validation": share, **limits}},
            {"solver": {"batch_size": options.batch_size}},
            {"engine": {"rounds": options.rounds, "evaluate_every": options.rounds, "engine": "sequential"}},
        ]
        self.steps = options.steps
        self.clients = build.federation(build.resolve(*self.common).data)
        self.folder = Path(options.out) / ("validation" if validation else "test")

    def score(self, name: str, preset: str, lr: float, seed: int) -> Score:
        """Run a method, or read its run."""
        folder = self.folder / f"{name}-{preset}-{lr}-{seed}"
        if not (folder / "done.json").is_file():
            more = {"algorithm": {"name": name}, "model": {"preset": preset}, "solver": {"lr": lr}}
            began = time.process_time()
            execute(
                build.plan(build.resolve(*self.common, more, {"engine": {"seed": seed}}), self.clients),
                folder,
                resume=True,
            )
            (folder / "done.json").write_text(json.dumps({"seconds": time.process_time() - began}))
        record = list(JsonLines(folder / "rounds.jsonl"))[-1]
        accuracy = next(iter(record["evaluations"].values()))["accuracy"]["mean"]
        print(f"{folder}: accuracy {accuracy:.4f}", flush=True)
        counts = json.loads((folder / "run.json").read_text())["parameters"]
        whole = 4 * (counts["shared"] + max(counts["personal"]) + counts["frozen"])
        return Score(accuracy, record["total_bytes_up"] / len(self.clients) / record["round"], whole)

    def best_step(self, name: str, preset: str) -> float:
        """The step size with the highest accuracy; where there is no choice, nothing is run."""
        first, *others = self.steps
        return max(self.steps, key=lambda lr: self.score(name, preset, lr, SEARCH).accuracy) if others else first


def presets(options: argparse.Namespace) -> None:
    """FedAPM with every preset, on validation data."""
    bench = Bench(options, validation=True)
    lines = []
    steps = {preset: bench.best_step(*row) for preset, row in PRESETS.items()}
    for preset, row in PRESETS.items():
        lr = steps[preset]
        scores = [bench.score(*row, lr, SEARCH + k) for k in range(options.seeds)]
        lines.append(f"| `{preset}` | {lr} | {_spread(scores)} | {scores[0].bytes_up:,.0f} |")
    print(f"\n{_about(bench, options)}, validation accuracy in %\n")
    print("| preset | step size | accuracy | bytes a client sends in a round |\n|---|---|---|---|")
    print("\n".join(lines), flush=True)


def table(options: argparse.Namespace) -> None:
    """Every method with the step size that suits it, on test data."""
    search, bench = Bench(options, validation=True), Bench(options, validation=False)
    lines, whole = [], 0
    for label, row in METHODS.items():
        lr = search.best_step(*row)
        scores = [bench.score(*row, lr, seed) for seed in range(options.seeds)]
        sent, whole = scores[0].bytes_up, max(whole, scores[0].whole)
        share = f"1/{scores[0].whole / sent:,.0f}" if sent else "nothing"
        lines.append(f"| {label} | {lr} | {_spread(scores)} | {sent:,.0f} | {share} |")
    print(f"\n{_about(bench, options)}, test accuracy in %\n")
    print("| method | step size | accuracy | bytes a client sends in a round | of full fine-tuning |")
    print("|---|---|---|---|---|\n" + "\n".join(lines))
    print(f"| full fine-tuning | | not run | {whole:,} | 1 |", flush=True)


def _about(bench: Bench, options: argparse.Namespace) -> str:
    return f"{len(bench.clients)} clients, {options.train} tweets each at most, {options.rounds} rounds"


def _spread(scores: Sequence[Score]) -> str:
    values = [100 * score.accuracy for score in scores]
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def memory(options: argparse.Namespace) -> None:
    """Peak memory and the time of a round, each number of clients in a process of its own."""
    print("| clients | peak memory, MiB | before the rounds, MiB | a round, s | a client in it, s |")
    print("|---|---|---|---|---|")
    for count in (1, 2, 20):
        command = [sys.executable, __file__, "round", "--data-root", options.data_root, "--clients", str(count)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        seconds = found["seconds"]
        print(f"| {count} | {found['peak']} | {found['before']} | {seconds:.1f} | {seconds / count:.2f} |", flush=True)


def one_round(options: argparse.Namespace) -> None:
    """A round of some clients with 32 tweets each, after one that computes the features."""
    torch.set_num_threads(1)
    count = options.clients
    split = {"partition": "iid", "clients": count, "samples": 40 * count, "root": options.data_root}
    experiment = build.resolve(read_toml(EXAMPLE), {"data": split})
    clients = build.federation(experiment.data)
    spec = build.plan(experiment, clients)
    problem, method = spec.problem, spec.algorithm
    engine = SequentialEngine(problem, method)
    broadcast = method.broadcast(method.server_init(problem.u0))
    before = _peak()
    for number in (1, 2):
        began = time.process_time()
        for client in range(count):
            train_client(problem, method, client, engine.store.get(client), broadcast, number)
        seconds = time.process_time() - began
    print(json.dumps({"peak": _peak(), "before": before, "seconds": seconds}))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["presets", "table", "memory", "round"])
    parser.add_argument("--data-root", required=True, help="the folder with CrisisMMD_v2.0")
    parser.add_argument("--out", default="runs/foundation")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--train", type=int, default=32, help="training tweets of a disaster")
    parser.add_argument("--test", type=int, default=64, help="test or validation tweets of a disaster")
    parser.add_argument("--steps", type=float, nargs="+", default=[0.005, 0.02], help="step sizes to choose from")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    {"presets": presets, "table": table, "memory": memory, "round": one_round}[options.what](options)


if __name__ == "__main__":
    main()
