"""A bare PyTorch loop: the honest floor for code that trains one client after the other.

Tensors in memory, contiguous pictures, batches by index, torch's own optimiser, one module for all clients, no
bookkeeping. Only the draws come from fedapm, so that both train the same clients on the same batches and the results
can be compared. It is started by speed.py and talks through its standard input and output:

    python bare.py '{"workload": {...}, "method": "fedavg" | "fedapm", "device": "cpu"}'
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional
from turns import Turns
from workloads import Workload, finish, network, samples, warm_up

from fedapm.core.random import torch_generator
from fedapm.simulation.sampling import Sampling

RHO, SIGMA = 0.03, 0.01

Tensors = list[Tensor]


def copies(parameters: Sequence[Tensor]) -> Tensors:
    return [p.detach().clone() for p in parameters]


@torch.no_grad()
def put(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


class Bare:
    """What both methods have in common: the data, the module and the local loop."""

    phases = 1

    def __init__(self, work: Workload, device: str = "cpu") -> None:
        self.work = work
        self.data = [tuple(part.to(device) for part in samples(work, client)) for client in range(work.clients)]
        self.network = network(work)
        warm_up(self.network, work)
        self.network.to(device)
        self.parameters = list(self.network.parameters())
        self.steps = 0
        self.last = 0

    def cohort(self, number: int) -> list[int]:
        return Sampling(count=self.work.selected).draw(self.work.clients, 0, number)

    def epochs(
        self,
        client: int,
        trained: Tensors,
        stream: torch.Generator,
        linear: Tensors | None = None,
        pull: float = 0.0,
        center: Tensors | None = None,
    ) -> None:
        """SGD on the mean loss, plus ⟨linear, p⟩ and pull/2·‖p − centre‖² by hand in the gradient."""
        self.last = client
        x, y = self.data[client]
        optimiser = torch.optim.SGD(trained, lr=self.work.lr)
        for _ in range(self.work.epochs):
            for batch in torch.randperm(len(y), generator=stream).split(self.work.batch):
                optimiser.zero_grad()
                functional.cross_entropy(self.network(x[batch]), y[batch]).backward()
                if center is not None:
                    with torch.no_grad():
                        for k, parameter in enumerate(trained):
                            parameter.grad += pull * (parameter - center[k])
                            if linear is not None:
                                parameter.grad += linear[k]
                optimiser.step()
                self.steps += 1

    @torch.no_grad()
    def loss(self) -> float:
        """Of the model that is in place, on the data of the client that was last."""
        x, y = (part[:600] for part in self.data[self.last])
        return functional.cross_entropy(self.network(x), y).item()


class FedAvg(Bare):
    """Every selected client trains the whole model; the new one is the mean."""

    @property
    def shared(self) -> dict[str, Tensor]:
        return {n: p.detach().clone() for n, p in self.network.named_parameters()}

    def round(self, number: int) -> None:
        start = copies(self.parameters)
        total = [torch.zeros_like(t) for t in start]
        for client in self.cohort(number):
            put(self.parameters, start)
            self.epochs(client, self.parameters, torch_generator(0, "batches", client, number))
            for sum_, parameter in zip(total, self.parameters, strict=True):
                sum_ += parameter.detach()
        put(self.parameters, [t / self.work.selected for t in total])


class FedAPM(Bare):
    """Two phases: epochs on the personal layers, then epochs on the shared ones with a dual and a proximal term."""

    phases = 2

    def __init__(self, work: Workload, device: str = "cpu") -> None:
        super().__init__(work, device)
        named = list(self.network.named_parameters())
        layers = tuple(f"{layer}." for layer in work.personal)
        self.v = [p for n, p in named if n.startswith(layers)]
        self.u = [p for n, p in named if not n.startswith(layers)]
        self.names = [n for n, _ in named if not n.startswith(layers)]
        self.u_bar = copies(self.u)
        fresh = copies(self.v), copies(self.u), [torch.zeros_like(p) for p in self.u]
        self.states = [fresh] * work.clients

    @property
    def shared(self) -> dict[str, Tensor]:
        return dict(zip(self.names, copies(self.u_bar), strict=True))

    def round(self, number: int) -> None:
        changes = [torch.zeros_like(t) for t in self.u_bar]
        for client in self.cohort(number):
            for sum_, change in zip(changes, self.client(client, number), strict=True):
                sum_ += change
        self.u_bar = [u + change / self.work.clients for u, change in zip(self.u_bar, changes, strict=True)]

    def client(self, client: int, number: int) -> Tensors:
        stream = torch_generator(0, "batches", client, number)
        old_v, old_u, old_pi = self.states[client]
        put(self.u, self.u_bar)
        put(self.v, old_v)
        self.only(self.v)
        self.epochs(client, self.v, stream, pull=SIGMA, center=old_v)
        self.only(self.u)
        self.epochs(client, self.u, stream, linear=old_pi, pull=RHO, center=self.u_bar)
        v, u = copies(self.v), copies(self.u)
        pi = [p + RHO * (a - b) for p, a, b in zip(old_pi, u, self.u_bar, strict=True)]
        self.states[client] = v, u, pi
        return [a + p / RHO - (b + q / RHO) for a, p, b, q in zip(u, pi, old_u, old_pi, strict=True)]

    def only(self, trained: Tensors) -> None:
        for parameter in self.parameters:
            parameter.requires_grad_(any(parameter is t for t in trained))
            parameter.grad = None


METHODS: dict[str, type[FedAvg] | type[FedAPM]] = {"fedavg": FedAvg, "fedapm": FedAPM}


def main() -> None:
    turns = Turns()
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    device = asked.get("device", "cpu")
    bare = METHODS[asked["method"]](Workload.of(asked["workload"]), device)

    turns.ready(loss=bare.loss())
    number = 0
    while True:
        turns.wait()
        number, before = number + 1, bare.steps
        bare.round(number)
        finish(device)
        turns.done(bare.steps - before, lambda: {"loss": bare.loss()})


if __name__ == "__main__":
    main()
