"""Networks with convolutions or a recurrent layer: clients side by side against the same clients one by one.

    python benchmarks/networks.py [--rounds N] [--quick]

As methods.py measures methods. The last column is what ``--engine auto`` takes, which goes by the operations of a step.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import machine
import torch
from methods import ROUNDS, Case, measure
from ours import federation
from torch import Tensor, nn
from workloads import CLASSES, TINY, Workload, samples

from fedapm.algorithms import METHODS
from fedapm.core.samples import Samples
from fedapm.runs.files import write_json
from fedapm.simulation.engines.auto import SMALL, step_operations

HERE = Path(__file__).parent
PICTURES = ((1, 8, 4, 8), (1, 8, 8, 16), (1, 16, 4, 8), (3, 16, 8, 16), (3, 16, 16, 32), (3, 32, 16, 32))
"""Of a picture its channels and its width, then the channels of the two convolutions."""
SEQUENCES = ((16, 6, 16), (64, 6, 16), (32, 6, 32), (32, 64, 64), (16, 128, 128), (16, 256, 512))
"""Steps, features, and the width of the GRU."""


@dataclass(frozen=True)
class Kind:
    """A network of one size and its data."""

    sort: str
    label: str
    shape: tuple[int, ...]
    personal: str
    network: Callable[[], nn.Module]


class Recurrent(nn.Module):
    """A GRU, and a fully connected layer on its last state."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(features, width, batch_first=True), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """The classes' scores."""
        scores: Tensor = self.head(self.gru(x)[0][:, -1])
        return scores


def convolutions(channels: int, width: int, first: int, second: int) -> nn.Sequential:
    """Two convolutions, each with pooling, and a fully connected layer."""
    return nn.Sequential(
        *(nn.Conv2d(channels, first, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(first, second, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(second * (width // 4) ** 2, CLASSES)),
    )


def kinds(quick: bool) -> Iterator[Kind]:
    """Every network."""
    for size in PICTURES[:2] if quick else PICTURES:
        channels, width, first, second = size
        label = f"{width}×{width}×{channels}, {first} and {second}"
        yield Kind("convolutions", label, (channels, width, width), "7", partial(convolutions, *size))
    for steps, features, width in SEQUENCES[:1] if quick else SEQUENCES:
        label = f"{steps} steps of {features}, width {width}"
        yield Kind("recurrent", label, (steps, features), "head", partial(Recurrent, features, width))


def operations(work: Workload, module: nn.Module) -> int:
    """Those of a step of one client."""
    x, y = samples(replace(work, samples=work.batch), 0)
    return step_operations(module, Samples((x,), y))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each engine")
    parser.add_argument("--quick", action="store_true", help="two rounds: shows that it works, says nothing of speed")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "networks.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    machine.warn_if_busy()
    about, found = machine.about(), []
    for kind in kinds(given.quick):
        work = replace(TINY, shape=kind.shape, clients=40, selected=20, personal=(kind.personal,))
        amount = operations(work, kind.network())
        case = Case(kind.label, METHODS["fedapm"](), network=kind.network)
        row = measure(work, case, federation(work), 2 if given.quick else given.rounds)
        found.append({**row, "sort": kind.sort, "operations": amount, "together": amount <= SMALL})
        ratios = f"{row['ratio']['best']:.2f} (of medians {row['ratio']['median']:.2f})"
        print(f"{row['label']:28}{amount / 1e6:8.1f} million operations   {ratios} times as fast together", flush=True)
    write_json(given.json, {"machine": about, "quick": given.quick, "networks": found})
    print(f"\nwritten: {given.json}")


if __name__ == "__main__":
    main()
