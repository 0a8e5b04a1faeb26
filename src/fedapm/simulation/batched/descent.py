"""Descent: SGD for several clients at once, in place. Who is done is left out while the others go on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedapm.core.batched import BatchedVec, PerClient, Rows, rows_of
from fedapm.core.moments import clip_each
from fedapm.core.network import Loss, Network, OwnLoss
from fedapm.core.objective import Objective
from fedapm.core.solver import sgd_step
from fedapm.core.vec import Vec
from fedapm.simulation.batched.chain import Step, Steps
from fedapm.simulation.batched.dropout import Masks
from fedapm.simulation.batched.losses import losses, mean_over_samples
from fedapm.simulation.batched.network import BatchedNetwork
from fedapm.simulation.batched.stacked import Batch, Stacked, batch_bounds, positions
from fedapm.simulation.batched.streams import Streams

WIDEST = 4
"""How many times the numbers of a sample its kept features may have."""


@dataclass(frozen=True)
class _Part:
    """What a step of some of the clients works on: views where they are neighbours, copies where not."""

    parameters: list[Tensor]
    named: dict[str, Tensor]
    """All the network's parameters."""
    weight: float | PerClient
    slope: Any
    offset: list[Tensor] | None
    velocity: list[Tensor]
    steps: Steps | None
    """Its steps with nothing between the products, where the network and the settings allow them."""


class Descent:
    """A :class:`~fedapm.core.stopping.Search` of several clients."""

    def __init__(
        self,
        program: BatchedNetwork,
        network: Network,
        start: BatchedVec,
        fixed: Vec,
        terms: Objective,
        data: Stacked,
        *,
        lr: float = 0.0,
        momentum: float = 0.0,
        clip_norm: float | None = None,
        batch_size: int = 0,
        streams: Streams | None = None,
        drops: Sequence[torch.Generator] | None = None,
        loss: Loss | None = None,
    ) -> None:
        """Prepare a search.

        Args:
            program: The network for several clients.
            network: The network itself.
            start: Where the search begins; its names are what is trained.
            fixed: The values of other parameters.
            terms: What is minimized.
            data: The clients' samples.
            lr: The step size.
            momentum: The share of the last step's direction that is kept.
            clip_norm: The longest gradient of a client; any length if not given.
            batch_size: Samples in a step; 0 takes all of them.
            streams: Draws the order of each client's samples.
            drops: Draws each client's dropout masks, where the network has dropout.
            loss: Another loss than the network's.
        """
        self.network, self.names, self.terms, self.data = network, start.names, terms, data
        self.lr, self.momentum, self.clip_norm, self.batch_size = lr, momentum, clip_norm, batch_size
        self.loss: Loss = loss or network.loss
        self._streams, self._drops, self._program = streams, None if drops is None else list(drops), program
        self._p = [t.detach().clone(memory_format=torch.contiguous_format) for t in start.values()]
        self._velocity = [torch.zeros_like(p) for p in self._p] if momentum else []
        self._fixed: dict[str, Tensor] = {**network.read(network.split.frozen), **fixed}
        self._stacked = frozenset(self.names) | (frozenset(fixed) if fixed.batched else frozenset())
        self._judges: Stacked | None = None
        self._times = 0
        """How often it was judged."""
        self._places: Tensor | None = None
        """Who is still searching, once somebody is done."""
        self._found: list[Tensor] = self._p
        self._best: list[Tensor] | None = None
        self._prepare()

    def _prepare(self) -> None:
        """What follows from who is searching."""
        offset = self.terms.offset(self.names)
        self._slope: Any = self.terms.slope(self.names)
        self._offset = None if offset is None else [o.expand_as(p) for o, p in zip(offset, self._p, strict=True)]
        self._parts: dict[tuple[int, int], _Part] = {}

    @property
    def batches(self) -> list[int]:
        """How many batches an epoch of each client has."""
        sizes = self.data.sizes
        if self.data.even:
            return [len(batch_bounds(sizes[0], self.batch_size))] * len(sizes)
        return [len(batch_bounds(n, self.batch_size)) for n in sizes]

    def solution(self) -> BatchedVec:
        """The parameters found."""
        if self._best is None:
            self._write_back()
        return BatchedVec(dict(zip(self.names, self._found if self._best is None else self._best, strict=True)))

    def keep_features(self) -> None:
        """Compute once what the layers before the first trained one make of all samples.

        Not where that would take much more memory than the samples themselves.
        """
        before, after = self._program.cut(self.names)
        if before is None:
            return
        with torch.no_grad():
            inputs = self.data.inputs
            one = before.outputs(self._fixed, self._stacked, [t[:, :1] for t in inputs])
            if one[0].numel() > WIDEST * sum(t[0, :1].numel() for t in inputs):
                return
            self._program, self._parts = after, {}
            features = before.outputs(self._fixed, self._stacked, inputs)
            self.data = Stacked((features, self.data.targets), self.data.sizes)

    def hold_out(self, judges: Sequence[Tensor]) -> None:
        """Judge epochs by some samples of each client, at these positions, and train on the others."""
        rest = []
        for size, held in zip(self.data.sizes, judges, strict=True):
            chosen = torch.ones(size, dtype=torch.bool)
            chosen[held.cpu()] = False
            rest.append(chosen.nonzero().flatten())
        self._judges, self.data = self.data.taken(judges), self.data.taken(rest)

    def epoch(self) -> list[float]:
        """One pass over the data; the mean losses."""
        assert self._streams is not None
        batches = self.data.epoch(self.batch_size, self._streams, ordered=self._drops is not None)
        if self.data.even and (steps := self._steps(slice(0, len(self.data)), self.data.columns)) is not None:
            return self._epoch_in_place(steps, batches)
        self.network.module.train()
        sums = torch.zeros(len(self.data), dtype=torch.float64)
        whole = []
        for batch in batches:
            steps = self._steps(batch.rows, (*batch.inputs, batch.targets))
            losses = self._step(batch) if steps is None else _means(steps, batch)
            if batch.even and len(batch.sizes) == len(self.data):
                whole.append(losses * batch.sizes[0])
            else:
                sums[_on_cpu(batch.rows)] += losses.cpu() * torch.tensor(batch.sizes)
        if whole:
            sums += torch.stack(whole).sum(0, dtype=torch.float64).cpu()
        found: list[float] = (sums / torch.tensor(self.data.sizes)).tolist()
        return found

    @torch.inference_mode()
    def _epoch_in_place(self, steps: Steps, batches: Iterable[Batch]) -> list[float]:
        """One pass of clients that have equally many samples."""
        logs = [steps(batch.inputs[0], batch.targets, None) for batch in batches]
        sums: list[float] = torch.cat(logs, 1).sum(1, dtype=torch.float64).tolist()
        return [(0.0 - value) / size for value, size in zip(sums, self.data.sizes, strict=True)]

    def residuals(self) -> list[float]:
        """The squared norms of the whole objective's gradients on all local data."""
        p = BatchedVec(dict(zip(self.names, self._p, strict=True)))
        residual: Any = self.terms.gradient(p, self.gradient(self.data.whole())).sq()
        found: list[float] = residual.values.tolist()
        return found

    def judged(self) -> list[float]:
        """The mean losses of the samples that are held out; where there are none, every epoch is better."""
        judges = self._judges
        assert judges is not None
        self._times += 1
        self.network.module.eval()
        found = torch.zeros(len(judges), dtype=torch.float64)
        loss = self.network.loss
        with torch.no_grad():
            for index, part in self._even_parts(judges.whole(), loss, draws=False):
                named = self._part(part.rows).named
                outputs = self._program.outputs(named, self._stacked, part.inputs)
                found[_on_cpu(index)] = losses(loss, part.targets, part.weights)(outputs).double().cpu()
        found[torch.tensor(judges.sizes) == 0] = -self._times
        each: list[float] = found.tolist()
        return each

    def remember(self, better: Sequence[bool]) -> None:
        """Keep the parameters of some as what they end with."""
        if self._best is None:
            self._best = [p.clone() for p in self._p]
            return
        chosen = torch.tensor(
            [k for k, good in enumerate(better) if good], dtype=torch.long, device=self.network.device
        )
        places = chosen if self._places is None else self._places[chosen]
        for best, p in zip(self._best, self._p, strict=True):
            best[places] = p[chosen]

    def only(self, going: Sequence[bool]) -> None:
        """Go on with some; the others are done."""
        index = torch.tensor([k for k, goes in enumerate(going) if goes], device=self.network.device)
        self._write_back()
        self._places = index if self._places is None else self._places[index]
        chosen = index.tolist()
        self._p = [p[index] for p in self._p]
        self._velocity = [v[index] for v in self._velocity]
        self._fixed = {n: t[index] if n in self._stacked else t for n, t in self._fixed.items()}
        self.data = self.data.rows(index)
        self._judges = self._judges and self._judges.rows(index)
        self._streams = self._streams and self._streams.chosen(chosen)
        self._drops = self._drops and [self._drops[k] for k in chosen]
        self.terms, self.loss = self.terms.rows(index), _own(self.loss, index)
        self._prepare()

    def gradient(self, batch: Batch) -> BatchedVec:
        """∇f of every client, without dropout; zero for those that are not in the batch."""
        self.network.module.eval()
        sums = [torch.zeros_like(p) for p in self._p]
        for _, part in self._even_parts(batch, self.network.loss, draws=False):
            grads, _ = self._gradient(part, self.network.loss, None)
            for total, grad in zip(sums, grads, strict=True):
                total[part.rows] = grad
        return BatchedVec(dict(zip(self.names, sums, strict=True)))

    def _steps(self, rows: Rows, columns: Sequence[Tensor]) -> Steps | None:
        """The steps in place of clients that are neighbours in memory, given their inputs and targets."""
        whole = self.momentum or self.clip_norm is not None or self.loss is not functional.cross_entropy
        if whole or not isinstance(rows, slice) or not mean_over_samples(self.loss, columns[-1]):
            return None
        return self._part(rows).steps if len(columns) == 2 else None

    def _step(self, batch: Batch) -> Tensor:
        """One step of every client in the batch; gives their losses before it."""
        found: Tensor | None = None
        for index, part in self._even_parts(batch, self.loss, draws=self._drops is not None):
            grads, losses = self._gradient(part, self.loss, self._masks(part))
            if self.clip_norm is not None:
                clip_each(grads, self.clip_norm)
            self._move(part.rows, grads)
            if isinstance(index, slice):
                found = losses
            else:
                found = losses.new_zeros(len(batch.sizes)) if found is None else found
                found[index] = losses
        assert found is not None
        return found

    def _even_parts(self, batch: Batch, loss: Loss, draws: bool) -> Iterator[tuple[Rows, Batch]]:
        """The batch, or where its padding could be taken for samples parts of one size each."""
        padded = mean_over_samples(loss, batch.targets) and (self._program.by_sample or not draws)
        if batch.even or padded:
            yield slice(0, len(batch.sizes)), batch
        else:
            yield from batch.parts()

    def _gradient(self, batch: Batch, loss: Loss, masks: Masks | None) -> tuple[list[Tensor], Tensor]:
        part = self._part(batch.rows)
        judged = losses(_own(loss, batch.rows), batch.targets, batch.weights)
        return self._program.gradient(part.named, self._stacked, self.names, batch.inputs, judged, masks)

    def _masks(self, batch: Batch) -> Masks | None:
        if self._drops is None:
            return None
        places = positions(batch.rows, len(batch.sizes), torch.device("cpu")).tolist()
        return Masks([self._drops[k] for k in places], batch.sizes)

    def _part(self, rows: Rows) -> _Part:
        """What belongs to some of the clients; made once where they are neighbours."""
        key = (rows.start, rows.stop) if isinstance(rows, slice) else None
        if key in self._parts:
            return self._parts[key]
        every = key == (0, len(self.data))
        own = self._p if every else [p[rows] for p in self._p]
        fixed = self._fixed if every else {n: t[rows] if n in self._stacked else t for n, t in self._fixed.items()}
        named = fixed | dict(zip(self.names, own, strict=True))
        weight, slope = rows_of(self.terms.weight, rows), self._slope
        slope = [rows_of(one, rows) for one in slope] if isinstance(slope, list) else rows_of(slope, rows)
        offset = self._offset if every or self._offset is None else [o[rows] for o in self._offset]
        velocity = self._velocity if every else [v[rows] for v in self._velocity]
        widest = max(self.data.sizes)
        step = Step(self.lr, weight, slope, offset, min(self.batch_size or widest, widest))
        steps = self._program.steps(named, self._stacked, self.names, step) if key is not None else None
        part = _Part(own, named, weight, slope, offset, velocity, steps)
        if key is not None:
            self._parts[key] = part
        return part

    def _move(self, rows: Rows, grads: list[Tensor]) -> None:
        part = self._part(rows)
        sgd_step(
            part.parameters,
            grads,
            lr=self.lr,
            weight=part.weight,
            slope=part.slope,
            offset=part.offset,
            momentum=self.momentum,
            velocity=part.velocity,
        )
        if isinstance(rows, slice):
            return
        for whole, own in zip((*self._p, *self._velocity), (*part.parameters, *part.velocity), strict=True):
            whole[rows] = own

    def _write_back(self) -> None:
        """Put what those who are still searching have beside what the others found."""
        if self._places is not None:
            for found, p in zip(self._found, self._p, strict=True):
                found[self._places] = p


def _own(loss: Loss, rows: Rows) -> Loss:
    return replace(loss, own=rows_of(loss.own, rows)) if isinstance(loss, OwnLoss) else loss


@torch.no_grad()
def _means(steps: Steps, batch: Batch) -> Tensor:
    """A step, and the mean losses before it."""
    logs, weights = steps(batch.inputs[0], batch.targets, batch.weights), batch.weights
    return -(logs.mean(1) if weights is None else (logs * weights.to(logs.dtype)).sum(1))


def _on_cpu(rows: Rows) -> Rows:
    return rows if isinstance(rows, slice) else rows.cpu()
