"""Network: an nn.Module seen as a function of named parameters, one module serving many clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from fedapm.samples import Samples
from fedapm.split import Split
from fedapm.vec import Vec

Loss = Callable[[Any, Tensor], Tensor]
"""Of a network's output and the targets, the mean loss."""

EVALUATION_BATCH = 1024


class Network:
    """A module whose parameters and buffers are put in place before use.

    Everything a client needs is loaded first and copied out afterwards, so the module itself carries nothing
    from one client to the next.
    """

    def __init__(self, module: nn.Module, split: Split, loss: Loss) -> None:
        self.module = module
        self.split = split
        self.loss = loss
        self._parameters = dict(module.named_parameters())
        self._buffers = dict(module.named_buffers())

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

    def loss_of(self, batch: Samples, loss: Loss | None = None) -> Tensor:
        """The mean loss of a batch, with its graph."""
        return (loss or self.loss)(self.module(*batch.inputs), batch.targets)

    def gradient(self, names: tuple[str, ...], samples: Samples) -> tuple[float, Vec]:
        """The mean loss over all samples and its gradient in some parameters, without dropout."""
        parameters = self.trainable(names)
        self.module.eval()
        value = 0.0
        sums: list[Tensor] = [torch.zeros_like(p) for p in parameters]
        for batch in samples.batches(EVALUATION_BATCH):
            share = len(batch) / len(samples)
            loss = self.loss_of(batch)
            value += share * loss.item()
            if parameters:
                grads = torch.autograd.grad(loss, parameters, materialize_grads=True, allow_unused=True)
                torch._foreach_add_(sums, grads, alpha=share)
        return value, Vec(dict(zip(names, sums, strict=True)))

    @torch.inference_mode()
    def predict(self, samples: Samples) -> Tensor:
        """The outputs for all samples, without dropout."""
        self.module.eval()
        return torch.cat([self.module(*b.inputs) for b in samples.batches(EVALUATION_BATCH)])
