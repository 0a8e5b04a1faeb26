"""Network: an nn.Module seen as a function of named parameters, one module serving many clients."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedapm.core import forward
from fedapm.core.dropout import dropout_before, layers_of
from fedapm.core.first_order import first_order
from fedapm.core.kept import KEPT
from fedapm.core.messages import OnceLogger
from fedapm.core.samples import Samples
from fedapm.core.split import Split
from fedapm.core.vec import Vec

logger = logging.getLogger(__name__)

Loss = Callable[[Any, Tensor], Tensor]
"""Of a network's output and the targets, the mean loss."""


@dataclass(frozen=True)
class OwnLoss:
    """A loss that also takes something of the client's own, such as how often it has each class."""

    function: Callable[..., Tensor]
    """Of a network's output, the targets and the tensors of ``own``, the mean loss."""
    own: Vec
    """What belongs to the client, or to each of several."""

    def __call__(self, outputs: Any, targets: Tensor) -> Tensor:
        """The loss of one client."""
        return self.function(outputs, targets, *self.own.values())


BATCH_BYTES = 1 << 20
"""Inputs that are looked at together where no gradient step is taken: as much as leaves room in a core's cache."""
FEATURE_BYTES = 1 << 30
"""Features of one client that take more memory than this are not kept."""


@dataclass(frozen=True)
class PhaseData:
    """A client's data as a phase of training sees it: whole, or as features of the steps that are constant."""

    samples: Samples
    call: Callable[..., Any]


class Network:
    """A module whose parameters and buffers are put in place before use.

    Everything a client needs is loaded first and copied out afterwards, so the module itself carries nothing
    from one client to the next.
    """

    def __init__(self, module: nn.Module, split: Split, loss: Loss) -> None:
        self.module = module
        self.split = split
        self.loss = loss
        self._log = OnceLogger(logger)
        self._parameters = dict(module.named_parameters())
        # those of a frozen base are a part of it, and no client's own
        fixed: frozenset[str] = getattr(module, "fixed_buffers", frozenset())
        self._buffers = {n: b for n, b in module.named_buffers() if n not in fixed}
        self._memory: int = getattr(module, "feature_memory", 0)
        self._bases: dict[int, str] = {}
        self._splits: dict[tuple[tuple[str, ...], int], forward.ForwardSplit | None] = {}

    @property
    def device(self) -> torch.device:
        """Where the module lives."""
        tensors = [*self._parameters.values(), *self._buffers.values()]
        return tensors[0].device if tensors else torch.device("cpu")

    def read(self, names: Iterable[str]) -> Vec:
        """A copy of some parameters."""
        return Vec({n: self._parameters[n].detach().clone() for n in names})

    def buffers(self) -> Vec:
        """A copy of the buffers, such as running statistics."""
        return Vec({n: b.detach().clone() for n, b in self._buffers.items()})

    @torch.no_grad()
    def load(self, *parts: Vec) -> None:
        """Put parameters and buffers in place; what is not named stays as it is."""
        for part in parts:
            for name, tensor in part.items():
                target = self._parameters[name] if name in self._parameters else self._buffers[name]
                target.copy_(tensor)

    def trainable(self, names: Iterable[str]) -> list[Tensor]:
        """The named parameters in place, and gradients wanted for them alone."""
        wanted = list(names)
        for parameter in self._parameters.values():
            parameter.requires_grad_(False)
        return [self._parameters[n].requires_grad_(True) for n in wanted]

    def local(self, names: tuple[str, ...], samples: Samples, passes: int) -> PhaseData:
        """The data as training these parameters for some passes sees it.

        Steps that do not depend on the parameters are computed once, if there is more than one pass to gain by it.
        """
        whole = self.kept(samples)
        forward_split = self.cut(names, samples) if passes > 1 and len(samples) else None
        if forward_split is not None and (frozen := self._frozen_split(samples)) is not None:
            forward_split = forward_split.after(frozen)
        if forward_split is None or not forward_split.constant:
            return whole
        with torch.no_grad(), first_order():
            pieces = [
                forward_split.compute_features(b.inputs) for b in whole.samples.batches(batch_size(whole.samples))
            ]
            size = sum(t.numel() * t.element_size() for t in pieces[0]) * len(pieces)
            if size > FEATURE_BYTES:
                self._log.info(f"features of {size >> 20} MiB a client are not kept but computed in every pass.")
                self._splits[names, len(samples.inputs)] = None
                return whole
            features = tuple(torch.cat(column) for column in zip(*pieces, strict=True))
        return PhaseData(Samples(features, samples.targets), forward_split.forward_features)

    @property
    def keeps_features(self) -> bool:
        """Whether it has a frozen base whose features are kept for the whole run."""
        return self._memory > 0

    def kept(self, samples: Samples) -> PhaseData:
        """The data with what a frozen base makes of it, which is computed once; as it is where there is no base."""
        frozen = self._frozen_split(samples)
        if frozen is None:
            return PhaseData(samples, self.module)

        def compute() -> Iterator[tuple[Tensor, ...]]:
            self.module.eval()
            with torch.no_grad():
                for batch in samples.batches(batch_size(samples)):
                    yield frozen.compute_features(batch.inputs)

        features = KEPT.features(samples, self._base(frozen), self._memory, compute)
        return PhaseData(Samples(features, samples.targets), frozen.forward_features)

    def _frozen_split(self, samples: Samples) -> forward.ForwardSplit | None:
        """Where the forward pass parts in the frozen base and what is trained above it, for a network that keeps it."""
        if not self.keeps_features or not len(samples):
            return None
        return self.cut((*self.split.shared, *self.split.personal), samples)

    def _base(self, frozen: forward.ForwardSplit) -> str:
        """A digest of the steps that make features, and of all numbers in them."""
        count = len(frozen.inputs)
        if count not in self._bases:
            modules = [name for step in frozen.constant for name in step.modules]
            tensors = (*self.module.named_parameters(), *self.module.named_buffers())
            used = {n: t for n, t in tensors if any(forward.within(n, module) for module in modules)}
            steps = type(self.module).__qualname__, frozen.constant, frozen.features
            self._bases[count] = digest(used, repr(steps))
        return self._bases[count]

    @cached_property
    def frozen_digest(self) -> str:
        """A digest of what is frozen; empty where nothing is."""
        return digest({n: self._parameters[n] for n in self.split.frozen}) if self.split.frozen else ""

    def cut(self, names: tuple[str, ...], samples: Samples) -> forward.ForwardSplit | None:
        """Where the forward pass parts in what training these parameters changes and what it does not."""
        key = names, len(samples.inputs)
        if key not in self._splits:
            forward_split = forward.split_forward(self.module, names, len(samples.inputs))
            if (
                forward_split is not None
                and (name := forward.uncovered_parameter(self.module, len(samples.inputs))) is not None
            ):
                self._log.info(f"features are computed in every pass, because no step of the network uses {name}.")
                forward_split = None
            if (
                forward_split is not None
                and (part := forward.changes_in_training(self.module, forward_split.constant)) is not None
            ):
                self._log.info(f"features are computed in every pass, because {part} changes them in training.")
                forward_split = None
            elif forward_split is not None and not forward.same_in_training(
                self.module, forward_split, samples[:64].inputs
            ):
                self._log.info("features are computed in every pass, because the network changes them in training.")
                forward_split = None
            self._splits[key] = forward_split
        return self._splits[key]

    def personal_layers(self, names: Iterable[str]) -> tuple[str, ...]:
        """The layers that own personal parameters among these, and so may have dropout in front of them."""
        personal = frozenset(self.split.personal)
        return layers_of(self.module, (n for n in names if n in personal))

    def dropout(self, names: Iterable[str], rate: float) -> AbstractContextManager[None]:
        """Dropout in front of the personal layers among those that are trained, in training mode, for a ``with`` block.

        Features are kept from before it: a step that is constant uses none of these layers.
        """
        return dropout_before(self.module, self.personal_layers(names) if rate else (), rate)

    def gradient(self, names: tuple[str, ...], samples: Samples, local: PhaseData | None = None) -> tuple[float, Vec]:
        """The mean loss over all samples and its gradient in some parameters, without dropout."""
        data = local or self.kept(samples)
        parameters = self.trainable(names)
        self.module.eval()
        value = 0.0
        sums: list[Tensor] = [torch.zeros_like(p) for p in parameters]
        for batch in data.samples.batches(batch_size(data.samples)):
            share = len(batch) / len(samples)
            with first_order():
                outputs = data.call(*batch.inputs)
            loss = self.loss(outputs, batch.targets)
            value += share * loss.item()
            if parameters and loss.requires_grad:
                grads = torch.autograd.grad(loss, parameters, materialize_grads=True, allow_unused=True)
                torch._foreach_add_(sums, grads, alpha=share)
        return value, Vec(dict(zip(names, sums, strict=True)))

    @torch.inference_mode()
    def predict(self, samples: Samples, some: Tensor | None = None) -> Tensor:
        """The outputs for samples, without dropout.

        Args:
            samples: The samples.
            some: The positions of those to look at; all if not given.
        """
        data = self.kept(samples)
        looked_at = data.samples if some is None else data.samples[some]
        self.module.eval()
        with first_order():
            return torch.cat([data.call(*b.inputs) for b in looked_at.batches(batch_size(looked_at))])


def digest(tensors: Mapping[str, Tensor], more: str = "") -> str:
    """One sum over the names, shapes and numbers of tensors."""
    total = hashlib.sha256(more.encode())
    for name, tensor in tensors.items():
        total.update(repr((name, tuple(tensor.shape), tensor.dtype)).encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def batch_size(samples: Samples) -> int:
    """How many samples to look at together where no gradient step is taken."""
    size = sum(t[:1].numel() * t.element_size() for t in samples.inputs)
    return min(max(BATCH_BYTES // max(size, 1), 32), 1024)
