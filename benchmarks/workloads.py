"""Workloads: the data, the networks and the amounts of work that every contender is given. Needs torch only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 10


@dataclass(frozen=True)
class Workload:
    """One round: so many of the clients, each so many epochs (a phase) over its own samples."""

    name: str
    clients: int
    samples: int
    tests: int
    selected: int
    epochs: int
    batch: int
    shape: tuple[int, ...]
    personal: tuple[str, ...]
    """Layers that FedAPM keeps on the client."""
    lr: float
    rounds: int
    """How many turns, or how many rounds at most to an accuracy."""
    file: str = ""
    """An .npz file with the clients' samples; random ones if not given."""
    classes: int = CLASSES

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Workload:
        """From JSON."""
        return cls(**fields | {"shape": tuple(fields["shape"]), "personal": tuple(fields["personal"])})

    def steps(self, phases: int) -> int:
        """Optimiser steps in a round."""
        return self.selected * phases * self.epochs * -(-self.samples // self.batch)


CNN = Workload("cnn", 20, 2400, 600, 6, 3, 50, (3, 32, 32), ("fc1", "fc2"), 0.05, 3)
TINY = Workload("tiny", 1000, 60, 15, 100, 1, 10, (64,), ("2",), 0.05, 25)
WORKLOADS = {"cnn": CNN, "tiny": TINY}
QUICK = {
    "cnn": replace(CNN, samples=300, tests=75, selected=2, rounds=2),
    "tiny": replace(TINY, rounds=5),
}


class PaperCNN(nn.Module):
    """The CIFAR10 network in the order it is usually written: convolution, rectifier, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 8 * 8, 128)
        self.fc2 = nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        return self.fc2(functional.relu(self.fc1(x.flatten(1))))


def tiny() -> nn.Sequential:
    """A perceptron with one hidden layer."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def on_features(work: Workload) -> nn.Sequential:
    """A perceptron with one hidden layer, over features of real data."""
    return nn.Sequential(nn.Linear(*work.shape, 64), nn.ReLU(), nn.Linear(64, work.classes))


def network(work: Workload) -> nn.Module:
    """The network, always with the same start."""
    torch.manual_seed(0)
    if len(work.shape) > 1:
        return PaperCNN()
    return on_features(work) if work.file else tiny()


def samples(work: Workload, client: int, part: str = "train") -> tuple[Tensor, Tensor]:
    """A client's inputs and classes: from the file, or random ones that can be learnt from."""
    if work.file:
        with np.load(work.file) as file:
            x, y = (torch.from_numpy(file[f"{part}-{kind}-{client}"]) for kind in ("x", "y"))
        return x[: work.samples], y[: work.samples]
    count, seed = (work.samples, 2 * client) if part == "train" else (work.tests, 2 * client + 1)
    x = torch.randn(count, *work.shape, generator=torch.Generator().manual_seed(seed))
    width = x[0].numel()
    teacher = torch.randn(width, CLASSES, generator=torch.Generator().manual_seed(width))
    return x, (x.flatten(1) @ teacher).argmax(1)


@torch.no_grad()
def accuracy(work: Workload, module: nn.Module) -> float:
    """The mean over clients of one model's accuracy on what each of them has for testing."""
    module.eval()
    parts = (samples(work, client, "test") for client in range(work.clients))
    found = [(module(x).argmax(1) == y).float().mean().item() for x, y in parts]
    module.train()
    return sum(found) / len(found)


def finish(device: str) -> None:
    """Wait until a device has done what it was given, so that a clock may be read."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def warm_up(module: nn.Module, work: Workload) -> None:
    """One step of size 0, so that the first round does not pay for torch's first use of everything."""
    x, y = samples(replace(work, samples=work.batch), 0)
    functional.cross_entropy(module(x), y).backward()
    torch.optim.SGD(module.parameters(), lr=0.0).step()
    module.zero_grad(set_to_none=True)
