"""Cohort: the tasks of several clients as one, for methods that are given stacks of vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedapm.core import random
from fedapm.core.batched import BatchedVec, NotBatchable, PerClient
from fedapm.core.network import Loss, Network
from fedapm.core.objective import Objective, Prox
from fedapm.core.samples import Samples
from fedapm.core.solver import Epochs, SGDConfig, SolveStats, StopRule, sgd_step
from fedapm.core.vec import Vec
from fedapm.simulation.batched.losses import losses
from fedapm.simulation.batched.network import BatchedNetwork
from fedapm.simulation.problem import Problem

DROPOUT_DRAWS = "the draws of the dropout in front of personal layers (solver.dropout_v) belong to one client each"
WIDEST = 4
"""How many times the numbers of a sample its kept features may have."""


@dataclass(frozen=True)
class Batch:
    """One batch of each of the first so many clients, side by side.

    Where batches differ in size the shorter ones are filled up with samples that weigh nothing.
    """

    inputs: tuple[Tensor, ...]
    targets: Tensor
    weights: Tensor | None
    """(clients, samples); every client's weights sum to one. None where all samples of all clients weigh the same."""
    sizes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.sizes)


class BatchedTask:
    """Several clients' local problems, larger clients first. It answers as a Task does, for all of them."""

    def __init__(
        self,
        problem: Problem,
        clients: Sequence[int],
        round: int,
        program: BatchedNetwork,
        lr_factor: float | None = None,
    ) -> None:
        self.clients, self.round, self.program = clients, round, program
        self.network: Network = problem.network(clients[0])
        self.solver: SGDConfig = problem.solver
        self.unit, self._mean_batches = problem.unit, problem.mean_batches
        self.v0 = problem.start(clients[0]).v0
        self.seed = problem.seed
        self.lr_factor = problem.lr_factor(round) if lr_factor is None else lr_factor
        alphas = [problem.alphas[k] for k in clients]
        device = problem.device
        uniform = len(set(alphas)) == 1
        self.alpha: Any = alphas[0] if uniform else PerClient(torch.tensor(alphas, dtype=torch.float64, device=device))
        data = [problem.samples(k, "train") for k in clients]
        self.sizes = tuple(d.targets.shape[0] for d in data)
        self._inputs = tuple(side_by_side([d.inputs[k] for d in data]) for k in range(len(data[0].inputs)))
        self._targets = side_by_side([d.targets for d in data])
        self._classified = data[0].classified
        self._streams = [random.torch_generator(self.seed, "batches", k, round) for k in clients]
        known = {n: _bounds(n, self.solver.batch_size) for n in set(self.sizes)}
        self._bounds = [known[n] for n in self.sizes]
        self.log: list[SolveStats] = []
        self.losses: Tensor | None = None
        """The mean loss of each client in the last phase's last epoch."""

    @property
    def train(self) -> Samples:
        """Not to be had for several clients."""
        raise NotBatchable("the method looks at a client's data itself")

    def streams(self, purpose: str) -> list[torch.Generator]:
        """A random stream of this round for each client."""
        return [random.torch_generator(self.seed, purpose, k, self.round) for k in self.clients]

    def minimize(
        self,
        start: Vec,
        fixed: Vec | None = None,
        *,
        weight: Any = None,
        linear: Vec | None = None,
        prox: Prox | None = None,
        stop: StopRule | None = None,
        lr: float | None = None,
        batch: Batch | None = None,
        loss: Loss | None = None,
    ) -> Vec:
        """Minimise weight·f + ⟨linear, p⟩ + prox over the parameters named in ``start``, for every client."""
        if not start:
            return start
        stop = stop or Epochs(self.solver.epochs)
        if not isinstance(stop, Epochs):
            raise NotBatchable("the ξ-rule lets every client stop at a time of its own")
        if batch is None and self.solver.stops_early(start.names, self.network.split.personal):
            raise NotBatchable("early stopping (solver.validation_v) lets every client stop at a time of its own")
        if self.solver.one_by_one is not None:
            raise NotBatchable(self.solver.one_by_one)
        if self.solver.dropout_v and self.network.personal_layers(start.names):
            raise NotBatchable(DROPOUT_DRAWS)
        prior = self.solver.prior(start.names, self.v0)
        terms = Objective(self.unit if weight is None else weight, self._decay(start.names), linear, prox, prior)
        descent = _BatchedSGD(self, start, fixed or Vec(), terms, self.step_size(lr), loss or self.network.loss)
        self.network.module.train()
        counted: list[tuple[Batch, Tensor]] = []
        inputs = descent.keep(self._inputs) if batch is None and stop.count else self._inputs
        for _ in range(stop.count):
            batches = self._again(batch) if batch is not None else self._epoch(inputs)
            counted = [(each, descent.step(each)) for each in batches]
        self.losses = self._mean_losses(counted, self.sizes if batch is None else batch.sizes)
        steps = [stop.count * (len(b) if batch is None else 1) for b in self._bounds]
        share = 1.0 if batch is None else sum(batch.sizes) / sum(self.sizes)
        same = len(set(steps)) == 1
        count: Any = steps[0] if same else PerClient(torch.tensor(steps, dtype=torch.float64))
        self.log.append(SolveStats(stop.count * share, None, steps=count))
        return descent.solution()

    def batches(self, epochs: int | None = None) -> Iterator[Batch]:
        """The mini-batches of some epochs; a client that has no more batches in an epoch is left out."""
        if epochs is None and len({len(b) for b in self._bounds}) > 1:
            raise NotBatchable("the method goes through the batches itself, and clients have different numbers of them")
        for _ in range(self.solver.epochs if epochs is None else epochs):
            yield from self._epoch(self._inputs)

    def _epoch(self, inputs: Sequence[Tensor]) -> Iterator[Batch]:
        order = self._shuffled()
        inputs = [_arranged(values, order) for values in inputs]
        targets = _arranged(self._targets, order)
        bounds = self._bounds
        for step in range(len(bounds[0])):
            active = [b[step] for b in bounds if len(b) > step]
            first, last = active[0][0], max(end for _, end in active)
            sizes = tuple(end - begin for begin, end in active)
            part = tuple(values[: len(active), first:last] for values in inputs)
            weights = _weights(sizes, last - first, targets.device) if len(set(sizes)) > 1 else None
            yield Batch(part, targets[: len(active), first:last], weights, sizes)

    def sample_batches(self, share: float) -> Iterator[Batch]:
        """Not to be had for several clients."""
        del share
        raise NotBatchable("the method takes a part of each client's data")

    def step_size(self, lr: float | None = None) -> float:
        """The step size in this round."""
        return (self.solver.lr if lr is None else lr) * self.lr_factor

    def path_length(self, lr: float | None = None, epochs: int | None = None) -> float:
        """η·K̄ in this round: the step size times the clients' mean number of steps; the solver's if not given."""
        passes = self.solver.epochs if epochs is None else epochs
        return self.solver.path_length(self.step_size(lr), passes, self._mean_batches)

    def gradient(self, at: Vec, fixed: Vec | None = None, batch: Batch | None = None) -> Vec:
        """∇f_i at a point, in the parameters named in ``at``, on all local data or on one batch."""
        if batch is None:
            weights = _weights(self.sizes, self._targets.shape[1], self._targets.device)
            batch = Batch(self._inputs, self._targets, weights if len(set(self.sizes)) > 1 else None, self.sizes)
        descent = _BatchedSGD(self, at, fixed or Vec(), Objective(1.0), 0.0, self.network.loss)
        self.network.module.eval()
        grads, _ = descent.gradient(batch)
        gradient = BatchedVec(dict(zip(at.names, grads, strict=True))) + self._decay(at.names) * at
        prior = self.solver.prior(at.names, self.v0)
        return gradient if prior is None else prior.added(gradient, at)

    def _decay(self, names: Sequence[str]) -> float:
        decay = self.solver.decay(names, self.network.split.personal)
        if isinstance(decay, Mapping):
            raise NotBatchable("shared and personal parameters with an L2 term each are trained at once")
        return decay

    def value(self, *parts: Vec) -> float:
        """Not to be had for several clients."""
        del parts
        raise NotBatchable("the method asks for the value of the loss")

    def _mean_losses(self, counted: Sequence[tuple[Batch, Tensor]], sizes: Sequence[int]) -> Tensor | None:
        if not counted:
            return None
        sums = torch.zeros(len(sizes), dtype=torch.float64)
        for batch, solution in counted:
            weights = batch.sizes[0] if batch.weights is None else torch.tensor(batch.sizes)
            sums[: len(batch)] += solution.cpu() * weights
        return sums / torch.tensor(sizes)

    def _again(self, batch: Batch) -> Iterator[Batch]:
        # a task shuffles even a single batch, which moves its stream on; the mean over the batch does not change
        for stream, size in zip(self._streams, batch.sizes, strict=True):
            torch.randperm(size, generator=stream)
        yield batch

    def _shuffled(self) -> Tensor:
        orders = [torch.randperm(n, generator=s) for n, s in zip(self.sizes, self._streams, strict=True)]
        return side_by_side(orders).to(self._targets.device)


class _BatchedSGD:
    """SGD on stacked parameters, in place."""

    def __init__(self, cohort: BatchedTask, start: Vec, given: Vec, terms: Objective, lr: float, loss: Loss) -> None:
        self.cohort, self.terms, self.lr, self.loss = cohort, terms, lr, loss
        count = len(cohort.clients)
        self.names = start.names
        self._p = [_own(t, start.batched, count) for t in start.values()]
        network = cohort.network
        self._fixed = {**network.read(network.split.frozen), **given}
        self._stacked = frozenset(self.names) | (frozenset(given) if given.batched else frozenset())
        offset = terms.offset(self.names)
        self._slope: Any = terms.slope(self.names)
        self._offset = None if offset is None else [o.expand_as(p) for o, p in zip(offset, self._p, strict=True)]
        self._velocity: list[Tensor] = []
        self._program = cohort.program
        self._active: tuple[int, dict[str, Tensor]] = (0, {})

    def solution(self) -> BatchedVec:
        """The parameters as they are now."""
        return BatchedVec(dict(zip(self.names, self._p, strict=True)))

    def keep(self, inputs: tuple[Tensor, ...]) -> Sequence[Tensor]:
        """What the layers before the first trained one make of all samples, computed once for all steps.

        Where that would take much more memory than the samples themselves, the samples.
        """
        before, after = self.cohort.program.cut(self.names)
        if before is None:
            return inputs
        with torch.no_grad():
            one = before.outputs(self._fixed, self._stacked, [t[:, :1] for t in inputs])
            if one[0].numel() > WIDEST * sum(t[0, :1].numel() for t in inputs):
                return inputs
            self._program = after
            return [before.outputs(self._fixed, self._stacked, inputs)]

    def gradient(self, batch: Batch) -> tuple[list[Tensor], Tensor]:
        """Every client's gradient of its mean loss, and the losses."""
        parameters = self._first(len(batch))
        judged = losses(self.loss, batch.targets, batch.weights)
        return self._program.gradient(parameters, self._stacked, self.names, batch.inputs, judged)

    def step(self, batch: Batch) -> Tensor:
        """One step of every client in the batch; gives their losses before it."""
        grads, losses = self.gradient(batch)
        self._move(grads, len(batch))
        return losses

    def _first(self, count: int) -> dict[str, Tensor]:
        """The parameters of the first so many clients."""
        if self._active[0] != count:
            fixed = {n: t[:count] if n in self._stacked else t for n, t in self._fixed.items()}
            self._active = count, fixed | {n: p[:count] for n, p in zip(self.names, self._p, strict=True)}
        return self._active[1]

    def _move(self, grads: list[Tensor], count: int) -> None:
        momentum = self.cohort.solver.momentum
        if momentum and not self._velocity:
            self._velocity = [torch.zeros_like(p) for p in self._p]
        sgd_step(
            [p[:count] for p in self._p],
            grads,
            lr=self.lr,
            weight=_first_clients(self.terms.weight, count),
            slope=_first_clients(self._slope, count),
            offset=None if self._offset is None else [o[:count] for o in self._offset],
            momentum=momentum,
            velocity=[v[:count] for v in self._velocity],
        )


def _own(tensor: Tensor, batched: bool, count: int) -> Tensor:
    wide = tensor if batched else tensor.expand(count, *tensor.shape)
    return wide.detach().clone(memory_format=torch.contiguous_format)


def _first_clients(factor: Any, count: int) -> Any:
    if isinstance(factor, list):
        return [_first_clients(one, count) for one in factor]
    return PerClient(factor.values[:count]) if isinstance(factor, PerClient) else factor


def side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Several clients' rows in one tensor; shorter ones are filled up with zeros."""
    if len({p.shape[0] for p in parts}) == 1:
        return torch.stack(list(parts))
    return pad_sequence(list(parts), batch_first=True)


def _arranged(values: Tensor, order: Tensor) -> Tensor:
    """Every client's samples in the order drawn for it."""
    clients, samples = order.shape
    rows = (order + samples * torch.arange(clients, device=order.device).unsqueeze(1)).flatten()
    return values.flatten(0, 1).index_select(0, rows).view(values.shape)


def _bounds(samples: int, size: int) -> list[tuple[int, int]]:
    """Where each batch of an epoch begins and ends; a single sample left over joins the batch before it."""
    if not size or size >= samples:
        return [(0, samples)]
    starts = range(0, samples - 1 if samples % size == 1 else samples, size)
    ends = [*starts[1:], samples]
    return list(zip(starts, ends, strict=True))


def _weights(sizes: Sequence[int], width: int, device: torch.device) -> Tensor:
    length = torch.tensor(sizes, device=device, dtype=torch.float64).unsqueeze(1)
    return (torch.arange(width, device=device) < length) / length
