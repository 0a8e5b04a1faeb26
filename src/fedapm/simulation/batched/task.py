"""Cohort: the tasks of several clients as one, for methods that are given stacks of vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapm.core import random
from fedapm.core.batched import BatchedVec, NotBatchable, PerClient, Rows, batched, rows_of, wide
from fedapm.core.network import Loss, Network, OwnLoss
from fedapm.core.objective import Objective, Prox, l2_gradient
from fedapm.core.samples import Samples
from fedapm.core.solver import SGDConfig, SolveStats
from fedapm.core.stopping import Course, Epochs, StopRule, UntilStationary, after_epochs, until_stationary, while_better
from fedapm.core.task import judges, part_size
from fedapm.core.vec import Vec
from fedapm.simulation.batched.descent import Descent
from fedapm.simulation.batched.network import BatchedNetwork
from fedapm.simulation.batched.stacked import Batch, Stacked, batch_bounds, positions
from fedapm.simulation.batched.streams import Streams
from fedapm.simulation.batched.table import Table
from fedapm.simulation.problem import Problem


class BatchedTask:
    """Several clients' local problems, larger clients first. It answers as a Task does, for all of them."""

    def __init__(
        self,
        problem: Problem,
        clients: Sequence[int],
        round: int,
        program: BatchedNetwork,
        lr_factor: float | None = None,
        *,
        table: Table | None = None,
        once: bool = False,
    ) -> None:
        """Prepare.

        Args:
            problem: What is learnt.
            clients: Their positions, larger ones first.
            round: The round.
            program: The network for several clients.
            lr_factor: The factor on the step size; that of the round if not given.
            table: The samples of all clients side by side, where there are.
            once: Whether they are expected to go through their samples only once; see :class:`Streams`.
        """
        self.clients, self.round, self.program = clients, round, program
        self.network: Network = problem.network(clients[0])
        self.solver: SGDConfig = problem.solver
        self.unit, self._mean_batches = problem.unit, problem.mean_batches
        starts = [problem.start(k).v0 for k in (clients if problem.own_starts else clients[:1])]
        self.v0 = batched(starts) if problem.own_starts else starts[0]
        self.seed = problem.seed
        self.lr_factor = problem.lr_factor(round) if lr_factor is None else lr_factor
        alphas = [problem.alphas[k] for k in clients]
        uniform = len(set(alphas)) == 1
        device = problem.device
        self.alpha: Any = alphas[0] if uniform else PerClient(torch.tensor(alphas, dtype=torch.float64, device=device))
        self._problem = problem
        self._data = self._stacked(table)
        self._orders = Streams(random.keys(self.seed, "batches", clients, round), once)
        self._all = slice(0, len(clients))
        self._active: Tensor | None = None
        """Who a repeated step is for, where some are done with it."""
        self.log: list[SolveStats] = []
        count = len(clients)
        self.calls = [0] * count
        """How often each client's solver was called."""
        self.epochs = [0.0] * count
        self.losses: list[float | None] = [None] * count
        """The mean loss of each client in its last phase's last epoch."""
        self.reached: list[tuple[float, float] | None] = [None] * count
        """ξ and what was reached in each client's last phase, under the ξ-rule."""

    @cached_property
    def _samples(self) -> list[Samples]:
        return [self._problem.samples(k, "train") for k in self.clients]

    def _stacked(self, table: Table | None) -> Stacked:
        if table is None:
            return Stacked.of([s.inputs for s in self._samples], [s.targets for s in self._samples])
        # several times faster than a tensor of a list
        places = torch.from_numpy(np.array(self.clients, dtype=np.int64)).to(self._problem.device)
        return Stacked(table, (table[-1].shape[1],) * len(self.clients), places)

    @property
    def classified(self) -> bool:
        """Whether the targets are classes rather than quantities."""
        return self._samples[0].classified

    def class_counts(self, classes: int) -> Vec:
        """How many training samples each class has, in one tensor."""
        counts = [torch.bincount(samples.targets, minlength=classes) for samples in self._samples]
        return BatchedVec({"counts": torch.stack(counts)})

    def streams(self, purpose: str) -> list[torch.Generator]:
        """A random stream of this round for each client."""
        return random.torch_generators(self.seed, purpose, self.clients, self.round)

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
        if self.solver.one_by_one is not None:
            raise NotBatchable(self.solver.one_by_one)
        stop = stop or Epochs(self.solver.epochs)
        decay, prior = (
            self.solver.decay(start.names, self.network.split.personal),
            self.solver.prior(start.names, self.v0),
        )
        terms = Objective(self.unit if weight is None else weight, decay, linear, prox, prior)
        rows = self._rows(batch)
        places = self._places(rows)
        layers = self.network.personal_layers(start.names) if self.solver.dropout_v else ()
        program = self.program.dropping(layers, self.solver.dropout_v or 0.0) if layers else self.program
        descent = self._descent(
            program,
            start,
            fixed,
            terms,
            rows,
            batch,
            loss,
            lr=self.step_size(lr),
            momentum=self.solver.momentum,
            clip_norm=self.solver.clip_norm,
            batch_size=self.solver.batch_size if batch is None else 0,
            streams=self._streams(places),
            drops=self._drops(places) if program.draws else None,
        )
        if batch is None:
            descent.keep_features()
        early = batch is None and self.solver.stops_early(start.names, self.network.split.personal)
        if early and isinstance(stop, Epochs):
            descent.hold_out([self._judges(k) for k in places])
        steps = descent.batches
        if isinstance(stop, UntilStationary):
            limits: list[float] = self._each(stop.xi).tolist()
            course = until_stationary(descent, [limits[k] for k in places], stop.max_epochs)
            reached = {k: (limits[k], course.residuals[j]) for j, k in enumerate(places)}
        else:
            rule = while_better if early else after_epochs
            course, reached = rule(descent, len(places), stop.count), {}
        self._note(course, reached, places, steps, batch)
        found = descent.solution()
        return found if self._for_all(rows) else wide(start, len(self.clients)).with_rows(rows, found)

    def batches(self, epochs: int | None = None) -> Iterator[Batch]:
        """The mini-batches of some epochs, where all clients have the same number of them."""
        if len({len(batch_bounds(n, self.solver.batch_size)) for n in self._data.sizes}) > 1:
            raise NotBatchable("the method goes through the batches itself, and clients have different numbers of them")
        return self._batches(epochs, None)

    def each_batch(
        self,
        step: Callable[..., tuple[Vec, ...]],
        *start: Vec,
        epochs: int | None = None,
        share: float | None = None,
    ) -> tuple[Vec, ...]:
        """Vectors after a step of the method's own on each mini-batch; see :meth:`fedapm.core.task.Task.each_batch`."""
        vectors = start
        for batch in self._batches(epochs, share):
            new = step(batch, *vectors)
            vectors = tuple(self._replaced(old, batch.rows, now) for old, now in zip(vectors, new, strict=True))
        return vectors

    def repeat(self, step: Callable[[Vec], Vec], start: Vec, most: Any, settled: Callable[[Vec, Vec], Any]) -> Vec:
        """A vector after some repetitions of a step; see :meth:`fedapm.core.task.Task.repeat`."""
        count = len(self.clients)
        limits = self._each(most)
        vector, outer = start, self._active
        going = torch.ones(count, dtype=torch.bool)
        if outer is not None:
            going = torch.zeros(count, dtype=torch.bool).index_fill_(0, outer, True)
        going &= limits > 0
        done = 0
        try:
            while bool(going.any()):
                self._active = None if bool(going.all()) else going.nonzero().flatten()
                new = step(vector)
                answers = self._each(settled(vector, new)) != 0
                vector = self._replaced(vector, self._rows(None), new)
                done += 1
                going &= ~answers & (limits > done)
        finally:
            self._active = outer
        return vector

    def step_size(self, lr: float | None = None) -> float:
        """The step size in this round."""
        return (self.solver.lr if lr is None else lr) * self.lr_factor

    def path_length(self, lr: float | None = None, epochs: int | None = None) -> float:
        """η·K̄ in this round: the step size times the clients' mean number of steps; the solver's if not given."""
        passes = self.solver.epochs if epochs is None else epochs
        return self.solver.path_length(self.step_size(lr), passes, self._mean_batches)

    def gradient(self, at: Vec, fixed: Vec | None = None, batch: Batch | None = None) -> Vec:
        """∇f_i at a point, in the parameters named in ``at``, on all local data or on one batch."""
        rows = self._rows(batch)
        descent = self._descent(self.program, at, fixed, Objective(1.0), rows, batch)
        gradient: Vec = descent.gradient(descent.data.whole())
        if not self._for_all(rows):
            gradient = wide(at.zeros(), len(self.clients)).with_rows(rows, gradient)
        gradient = gradient + l2_gradient(self.solver.decay(at.names, self.network.split.personal), at)
        prior = self.solver.prior(at.names, self.v0)
        return gradient if prior is None else prior.added(gradient, at)

    def value(self, *parts: Vec) -> float:
        """Not to be had for several clients."""
        del parts
        raise NotBatchable("the method asks for the value of the loss")

    def _descent(
        self,
        program: BatchedNetwork,
        start: Vec,
        fixed: Vec | None,
        terms: Objective,
        rows: Rows,
        batch: Batch | None,
        loss: Loss | None = None,
        **settings: Any,
    ) -> Descent:
        """A search of some of the clients, on their data or on a batch of it."""
        fixed, begin = fixed or Vec(), wide(start, len(self.clients))
        data = self._data if batch is None else Stacked((*batch.inputs, batch.targets), batch.sizes)
        if not self._for_all(rows):
            begin, fixed, terms = begin.rows(rows), rows_of(fixed, rows), terms.rows(rows)
            data = data if batch is not None else data.rows(self._positions(rows))
            if isinstance(loss, OwnLoss):
                loss = OwnLoss(loss.function, rows_of(loss.own, rows))
        return Descent(program, self.network, begin, fixed, terms, data, loss=loss, **settings)

    def _judges(self, place: int) -> Tensor:
        """The positions of the samples that a client's phase is judged by; a single sample is not held out."""
        samples = self._samples[place]
        if len(samples) < 2:
            return torch.zeros(0, dtype=torch.long)
        return judges(samples, self.solver.validation_v or 0.0, self.seed, self.clients[place])

    def _note(
        self,
        course: Course,
        reached: Mapping[int, tuple[float, float]],
        places: Sequence[int],
        batches: Sequence[int],
        batch: Batch | None,
    ) -> None:
        """Keep what the solver did for the clients at these places, with so many steps an epoch."""
        steps = [0] * len(self.clients)
        if batch is None and len(places) == len(self.clients):
            self.calls = [calls + 1 for calls in self.calls]
            self.epochs = [before + done for before, done in zip(self.epochs, course.epochs, strict=True)]
            self.losses = [*course.losses]
            self.reached = [reached.get(k) for k in places] if reached else [None] * len(places)
            steps = [done * count for done, count in zip(course.epochs, batches, strict=True)]
        else:
            for j, k in enumerate(places):
                share = 1.0 if batch is None else batch.sizes[j] / self._data.sizes[k]
                self.calls[k] += 1
                self.epochs[k] += course.epochs[j] * share
                self.losses[k], self.reached[k] = course.losses[j], reached.get(k)
                steps[k] = course.epochs[j] * batches[j]
        same = len(set(steps)) == 1
        count: Any = (
            steps[0] if same else PerClient(torch.tensor(steps, dtype=torch.float64, device=self.network.device))
        )
        self.log.append(SolveStats(math.fsum(self.epochs) / len(self.epochs), None, steps=count))

    def _batches(self, epochs: int | None, share: float | None) -> Iterator[Batch]:
        places = self._places(self._rows(None))
        streams, data = self._streams(places), self._data
        if self._active is not None:
            data = data.rows(self._active)
        if share is not None:
            drawn = zip(data.sizes, streams.orders(data.sizes), strict=True)
            data = data.taken([order[: part_size(share, n)] for n, order in drawn])
        passes = self.solver.epochs if epochs is None else epochs
        for _ in range(passes if share is None else 1):
            for batch in data.epoch(self.solver.batch_size, streams, ordered=True):
                if self._active is None:
                    yield batch
                else:
                    rows = self._active[batch.rows]
                    yield Batch(rows, batch.inputs, batch.targets, batch.sizes)

    @property
    def draws(self) -> int:
        """How often clients drew an order of their samples."""
        return self._orders.draws

    def _streams(self, places: Sequence[int]) -> Streams:
        return self._orders if len(places) == len(self.clients) else self._orders.chosen(places)

    def _drops(self, places: Sequence[int]) -> list[torch.Generator]:
        """The streams that these clients would draw their dropout masks from by themselves."""
        return [
            random.torch_generator(self.seed, "forward", self.clients[k], self.round, self.calls[k]) for k in places
        ]

    def _rows(self, batch: Batch | None) -> Rows:
        """Whom something is for."""
        if batch is not None:
            return batch.rows
        return self._all if self._active is None else self._active

    def _for_all(self, rows: Rows) -> bool:
        return isinstance(rows, slice) and rows == self._all

    def _positions(self, rows: Rows) -> Tensor:
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        return positions(rows, count, self._data.targets.device)

    def _places(self, rows: Rows) -> list[int]:
        return list(range(rows.start, rows.stop)) if isinstance(rows, slice) else rows.tolist()

    def _replaced(self, old: Vec, rows: Rows, new: Vec) -> Vec:
        """A vector that changes for some clients only."""
        if self._for_all(rows):
            return new
        count = len(self.clients)
        return wide(old, count).with_rows(rows, wide(new, count).rows(rows))

    def _each(self, value: Any) -> Tensor:
        """A number for each client."""
        if isinstance(value, PerClient):
            return value.values.cpu().double()
        return torch.full((len(self.clients),), float(value), dtype=torch.float64)
