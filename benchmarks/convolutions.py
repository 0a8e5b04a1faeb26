"""Networks with convolutions, small and large: clients side by side against the same clients one by one.

    python benchmarks/convolutions.py [--rounds N] [--quick]

As methods.py measures methods. The last column is what ``--engine auto`` takes, which goes by the operations of a step.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

import machine
import torch
from methods import ROUNDS, Case, measure
from ours import federation
from torch import nn
from workloads import CLASSES, TINY, Workload, samples

from fedapm.algorithms import METHODS
from fedapm.core.samples import Samples
from fedapm.runs.files import write_json
from fedapm.simulation.engines.auto import SMALL, step_operations

HERE = Path(__file__).parent
SIZES = ((1, 8, 4, 8), (1, 8, 8, 16), (1, 16, 4, 8), (3, 16, 8, 16), (3, 16, 16, 32), (3, 32, 16, 32))
"""Of a picture its channels and its width, then the channels of the two convolutions."""


def network(channels: int, width: int, first: int, second: int) -> nn.Sequential:
    """Two convolutions, each with pooling, and a fully connected layer."""
    return nn.Sequential(
        *(nn.Conv2d(channels, first, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(first, second, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(second * (width // 4) ** 2, CLASSES)),
    )


def operations(work: Workload, module: nn.Module) -> int:
    """Those of a step of one client."""
    x, y = samples(replace(work, samples=work.batch), 0)
    return step_operations(module, Samples((x,), y))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each engine")
    parser.add_argument("--quick", action="store_true", help="two rounds: shows that it works, says nothing of speed")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "convolutions.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    machine.warn_if_busy()
    about, found = machine.about(), []
    for size in SIZES[:2] if given.quick else SIZES:
        channels, width, first, second = size
        work = replace(TINY, shape=(channels, width, width), clients=40, selected=20, personal=("7",))
        case = Case(
            f"{width}×{width}×{channels}, {first} and {second}", METHODS["fedapm"](), network=partial(network, *size)
        )
        amount = operations(work, network(*size))
        row = measure(work, case, federation(work), 2 if given.quick else given.rounds)
        found.append({**row, "operations": amount, "together": amount <= SMALL})
        ratios = f"{row['ratio']['best']:.2f} (of medians {row['ratio']['median']:.2f})"
        print(f"{row['label']:28}{amount / 1e6:8.1f} million operations   {ratios} times as fast together", flush=True)
    write_json(given.json, {"machine": about, "quick": given.quick, "networks": found})
    print(f"\nwritten: {given.json}")


if __name__ == "__main__":
    main()
