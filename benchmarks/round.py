"""One round of FedAvg and FedAPM against a bare PyTorch loop that does the same work, interleaved in one run.

The bare loop is the honest floor for code that trains one client after the other: tensors in memory, batches by
index, torch's own optimiser, no bookkeeping. Ratios are CPU seconds, best of several rounds, one thread.

    python benchmarks/round.py [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import nn

from fedapm import FedAPM, FedAvg
from fedapm.algorithm import Algorithm
from fedapm.data import ClientData, Federation
from fedapm.engine.loop import Loop, Schedule
from fedapm.engine.problem import Problem
from fedapm.engine.sampling import Sampling
from fedapm.models import CNN
from fedapm.samples import Samples
from fedapm.solver import Solver
from fedapm.split import SplitRule


@dataclass(frozen=True)
class Workload:
    name: str
    clients: int
    samples: int
    selected: int
    epochs: int
    batch: int
    shape: tuple[int, ...]
    model: Callable[[], nn.Module]
    personal: tuple[str, ...]


def tiny() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


WORKLOADS = [
    Workload("cnn", 20, 600, 6, 3, 50, (3, 32, 32), CNN, ("fc1", "fc2")),
    Workload("tiny", 1000, 60, 100, 1, 10, (64,), tiny, ("2",)),
]


def federation(work: Workload) -> Federation:
    stream = torch.Generator().manual_seed(0)

    def samples(n: int) -> Samples:
        x = torch.randn(n, *work.shape, generator=stream)
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return Samples((x,), torch.randint(0, 10, (n,), generator=stream))

    return Federation(ClientData(str(k), samples(work.samples), samples(2)) for k in range(work.clients))


class Bare:
    """The same local work by hand: every selected client, each phase with torch's SGD, then the mean."""

    def __init__(self, work: Workload, data: Federation, phases: int) -> None:
        self.work, self.data, self.phases = work, data, phases
        self.network = work.model()

    def round(self, number: int) -> None:
        stream = torch.Generator().manual_seed(number)
        chosen = torch.randperm(self.work.clients, generator=stream)[: self.work.selected].tolist()
        start = {n: p.detach().clone() for n, p in self.network.named_parameters()}
        total = {n: torch.zeros_like(p) for n, p in start.items()}
        for client in chosen:
            with torch.no_grad():
                for name, parameter in self.network.named_parameters():
                    parameter.copy_(start[name])
            self._train(client, stream)
            for name, parameter in self.network.named_parameters():
                total[name] += parameter.detach()
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                parameter.copy_(total[name] / len(chosen))

    def _train(self, client: int, stream: torch.Generator) -> None:
        samples = self.data[client].train
        x, y = samples.inputs[0], samples.targets
        named = list(self.network.named_parameters())
        personal = [p for n, p in named if n.startswith(tuple(f"{q}." for q in self.work.personal))]
        shared = [p for n, p in named if not any(p is q for q in personal)]
        for block in [[*shared, *personal]] if self.phases == 1 else [personal, shared]:
            for _, parameter in named:
                parameter.requires_grad_(any(parameter is b for b in block))
            optimiser = torch.optim.SGD(block, lr=0.05)
            for _ in range(self.work.epochs):
                for batch in torch.randperm(len(y), generator=stream).split(self.work.batch):
                    optimiser.zero_grad()
                    nn.functional.cross_entropy(self.network(x[batch]), y[batch]).backward()
                    optimiser.step()


def ours(work: Workload, data: Federation, method: Algorithm) -> Callable[[int], None]:
    solver = Solver(lr=0.05, epochs=work.epochs, batch_size=work.batch)
    problem = Problem(data, work.model, SplitRule(personal=work.personal), adapt=method.adapt, solver=solver)
    loop = Loop(problem, method, Schedule(10**9, Sampling(count=work.selected), 10**9))
    return lambda _: loop._round(loop.progress)


@dataclass(frozen=True)
class Measured:
    workload: str
    method: str
    bare_cpu_seconds: float
    fedapm_cpu_seconds: float
    ratio: float


def measure(work: Workload, method: Algorithm, phases: int, rounds: int) -> Measured:
    data = federation(work)
    bare, mine = Bare(work, data, phases).round, ours(work, data, method)
    best = {"bare": float("inf"), "ours": float("inf")}
    for number in range(rounds + 1):
        for name, play in (("bare", bare), ("ours", mine)):
            began = time.process_time()
            play(number)
            if number:  # the first one warms up
                best[name] = min(best[name], time.process_time() - began)
    return Measured(work.name, method.label, best["bare"], best["ours"], best["ours"] / best["bare"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print(f"{'workload':10}{'method':10}{'bare, CPU s':>14}{'fedapm, CPU s':>16}{'ratio':>8}")
    for work in WORKLOADS:
        for method, phases in ((FedAvg(), 1), (FedAPM(), 2)):
            row = measure(work, method, phases, given.rounds)
            rows.append(row)
            print(
                f"{row.workload:10}{row.method:10}{row.bare_cpu_seconds:14.3f}{row.fedapm_cpu_seconds:16.3f}{row.ratio:8.2f}"
            )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:.0f} MiB")
    if given.json:
        from pathlib import Path

        from fedapm.files import write_json

        write_json(Path(given.json), {"peak_mib": peak, "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
