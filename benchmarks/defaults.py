"""What `train(clients, model)` gives with nothing else said, against one model for all, training alone and FedAlt.

    python benchmarks/defaults.py                                        # digits and two synthetic federations
    python benchmarks/defaults.py --data-root DIR --federations motionsense,crisismmd
    python benchmarks/defaults.py --federations identical --personal none --seeds 6   # without the search

The rivals have the same rounds, step size and batches; FedAlt has the split that was chosen. Scores are the clients'
mean test accuracy. The lead over each rival is a mean over seeds, with its standard error. Test data decides nothing in
a run; it did decide once what the search tries (docs/how-to/tune-fedapm.md, "What the defaults rest on").
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedapm import ClientData, Federation, Samples, models, train
from fedapm.experiments import build

RIVALS = ("fedavg", "local", "fedalt")


@dataclass(frozen=True)
class Case:
    """A federation and its network."""

    clients: Federation
    model: Callable[[], nn.Module]
    settings: dict[str, Any]


def synthetic(contradicting: bool, seed: int) -> Case:
    """Twelve clients, four Gaussian classes in ten dimensions; contradicting clients give them other names."""
    stream = torch.Generator().manual_seed(seed)
    centers = 1.2 * torch.randn(4, 10, generator=stream)
    clients = []
    for k in range(12):
        y = torch.randint(0, 4, (240,), generator=stream)
        x = centers[y] + torch.randn(240, 10, generator=stream)
        labels = torch.randperm(4, generator=stream)[y] if contradicting else y
        clients.append(ClientData(str(k), Samples((x[:40],), labels[:40]), Samples((x[40:],), labels[40:])))
    name = "contradicting clients" if contradicting else "identical clients"
    network = lambda: nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))  # noqa: E731
    return Case(Federation(clients, name), network, {"batch_size": 10})


def named(tables: dict[str, Any], root: Path | None) -> Case:
    """A data set by its name, with its own network, step size and batches."""
    data = tables["data"] | ({"root": str(root)} if root is not None else {})
    experiment = build.resolve(tables | {"data": data})
    clients = build.federation(experiment.data)
    model = models.factory(str(experiment.model.name), clients.classes, experiment.model.options, clients.shapes)
    solver = experiment.solver
    settings = {"lr": solver.lr, "epochs": solver.epochs, "batch_size": solver.batch_size}
    settings |= {"weight_decay": solver.weight_decay, "rounds": experiment.engine.rounds}
    return Case(clients, model, settings)


def cases(root: Path | None) -> dict[str, Callable[[int], Case]]:
    """The federations by name; each is a function of the seed."""
    few = {"test_fraction": 0.5, "train_limit": 40, "test_limit": 120}
    motion = {"name": "motionsense", "features": "statistics", "partition": "natural", **few}
    crisis = {"name": "crisismmd", "concentration": 1.0, "train_limit": 120, "test_limit": 120, "test_fraction": 0.5}
    return {
        "digits": lambda _: named({"data": {"name": "digits", "test_fraction": 0.5}}, None),
        "identical": lambda seed: synthetic(False, seed),
        "contradicting": lambda seed: synthetic(True, seed),
        "motionsense": lambda _: named({"data": motion, "solver": {"weight_decay": 0.01}}, root),
        "crisismmd": lambda _: named({"data": crisis, "engine": {"rounds": 30}}, root),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", default="digits,identical,contradicting")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--engine", default="vectorized")
    parser.add_argument("--personal", help="a pattern instead of the search of the split; 'none' shares everything")
    given = parser.parse_args()
    for name in given.federations.split(","):
        scores: dict[str, list[float]] = {rival: [] for rival in ("defaults", *RIVALS)}
        splits, began = [], time.perf_counter()
        for seed in range(given.seeds):
            case = cases(given.data_root)[name](seed)
            common = {**case.settings, "seed": seed, "engine": given.engine}
            fixed: dict[str, Any] = {} if given.personal is None else {"personal": [given.personal]}
            if given.personal == "none":
                fixed = {"shared": ["*"]}
            result = train(case.clients, case.model, **common, **fixed)
            scores["defaults"].append(accuracy(result))
            chosen = result.settings["model"]
            split = {key: chosen[key] for key in ("personal", "shared", "preset") if chosen.get(key)}
            method = result.settings["algorithm"]
            what = ", ".join(map(str, split.values())) or "nothing personal"
            splits.append(f"{what} (rho {method['rho']}, {method['evaluate']})")
            for rival in RIVALS:
                # without patterns train would search again; "nothing" is said by a pattern that shares everything
                said = (split or {"shared": ["*"]}) if rival == "fedalt" else {"shared": ["*"]}
                scores[rival].append(accuracy(train(case.clients, case.model, algorithm=rival, **common, **said)))
        print(f"\n{name}: {given.seeds} seeds, {time.perf_counter() - began:.0f} s; personal: {'; '.join(splits)}")
        for rival, values in scores.items():
            gaps = [100 * (a - b) for a, b in zip(scores["defaults"], values, strict=True)]
            error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
            line = f"  {rival:<10} {100 * statistics.mean(values):6.2f} %"
            if rival != "defaults":
                line += f"   defaults ahead by {statistics.mean(gaps):+6.2f} ± {error:.2f}"
            print(line, flush=True)


def accuracy(result: Any) -> float:
    """The clients' mean test accuracy at the end of a run."""
    return float(result.history["accuracy"].dropna().iloc[-1])


if __name__ == "__main__":
    main()
