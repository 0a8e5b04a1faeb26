"""Before the first round every client is tried: a few samples through the network and the loss.

What does not fit is one sentence: whose data it is, what it is like, what the network wants, and what to do about it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedapm.core import random
from fedapm.core.imports import place
from fedapm.core.network import Network
from fedapm.core.samples import Samples
from fedapm.core.threads import one_thread
from fedapm.data.clients import ClientData
from fedapm.errors import FedapmError
from fedapm.simulation.problem import Problem, squared_error
from fedapm.simulation.wants import input_mismatch

logger = logging.getLogger(__name__)

FEW = 2
"""Samples of a client that are tried; batch normalization needs more than one."""
MANY = 1000
"""Clients from which on those whose samples and networks are alike are tried once."""

SOME = 8
"""Clients that are tried where they are not in memory."""


@one_thread()
def check_clients(problem: Problem) -> None:
    """Try every client.

    Args:
        problem: What is to be learnt by whom.

    Raises:
        FedapmError: A client's data does not fit its network, or its outputs do not fit the loss.
    """
    split = problem.network(0).split
    if not split.shared and not split.personal:
        kind = type(problem.network(0).module).__name__
        raise FedapmError(f"{kind} has no parameter to train; give a network that has some, or freeze less of it.")
    tried: set[Any] = set()
    lazy = problem.federation.lazy_clients
    # where clients are not in memory, the others are compared with the first one when they are loaded
    for position in range(len(problem)) if lazy is None else lazy.sample(SOME):
        client = problem.federation[position]
        _check_kinds(client, problem.federation[0])
        for part in (client.train, client.test):
            if len(part) and (part is client.train or _form(part) != _form(client.train)):
                seen = (_form(part), _highest(part), id(problem.network(position)))
                if len(problem) < MANY or seen not in tried:
                    _Trial(problem, position, client, part).run()
                tried.add(seen)


def _form(samples: Samples) -> Any:
    return tuple((tuple(t.shape[1:]), t.dtype) for t in (*samples.inputs, samples.targets))


def _highest(samples: Samples) -> int:
    return int(samples.targets.max()) if samples.classified else 0


def _check_kinds(client: ClientData, first: ClientData) -> None:
    for samples in (client.train, client.test):
        if len(samples) and samples.classified != first.train.classified:
            kinds = {True: "classes (whole numbers)", False: "quantities (floats)"}
            raise FedapmError(
                f"client {client.id} has {kinds[samples.classified]} as targets, client {first.id} "
                f"{kinds[first.train.classified]}; give all clients one kind."
            )
        if len(samples.inputs) != len(first.train.inputs):
            raise FedapmError(
                f"client {client.id} has {len(samples.inputs)} input(s) a sample, client {first.id} "
                f"{len(first.train.inputs)}; give all clients the same."
            )


@dataclass
class _Trial:
    """One client's samples on their way through its network and the loss."""

    problem: Problem
    position: int
    client: ClientData
    part: Samples
    layers: list[tuple[str, nn.Module, tuple[Any, ...]]] = field(default_factory=list)
    """The layers that were entered and not left, with what they were given."""

    @property
    def network(self) -> Network:
        return self.problem.network(self.position)

    @property
    def loss_is_given(self) -> bool:
        return self.problem.loss not in (nn.functional.cross_entropy, squared_error)

    def run(self) -> None:
        samples = self._samples()
        start, device = self.problem.start(self.position), self.problem.device
        self.network.load(self.problem.u0, start.v0, start.buffers)
        # a network may draw random numbers; what is drawn later must not depend on this trial
        with random.seeded_globally(device, self.problem.seed, "trial"), _evaluating(self.network.module):
            outputs = self._outputs(samples)
            self._check_outputs(outputs, samples)
            self._check_loss(outputs, samples)

    def _samples(self) -> Samples:
        """A few samples; those of the highest classes, for which outputs may be missing."""
        part, count = self.part, min(FEW, len(self.part))
        if part.classified and part.targets.dim() == 1:
            part = part[part.targets.argsort(descending=True, stable=True)[:count]]
        return part[:count].to(self.problem.device)

    def _outputs(self, samples: Samples) -> Any:
        module = self.network.module
        try:
            return module(*samples.inputs)
        except FedapmError:
            raise
        except Exception as error:
            raise FedapmError(f"{self._whose(samples)}; {self._mismatch(samples, error)}") from error

    def _mismatch(self, samples: Samples, error: Exception) -> str:
        """What is wrong with the inputs; the network is called again to see in which layer it fails."""
        first = self.problem.federation[0]
        if _form(samples) != _form(first.train) and self.position and not self.problem.per_client:
            shapes = " and ".join(f"{tuple(t.shape[1:])} ({_dtype(t)})" for t in first.train.inputs)
            return f"those of client {first.id}, which fit the network, are {shapes}: bring all clients to that."
        if _form(samples) != _form(self.client.train):
            shapes = " and ".join(f"{tuple(t.shape[1:])} ({_dtype(t)})" for t in self.client.train.inputs)
            return f"that is its test data, and its training data is {shapes}: bring both to one."
        module, hooks = self.network.module, []
        for name, layer in module.named_modules():
            if next(layer.children(), None) is None:
                hooks.append(layer.register_forward_pre_hook(self._entered(name)))
                hooks.append(layer.register_forward_hook(self._left))
        try:
            module(*samples.inputs)
        except Exception as again:
            error = again
        finally:
            for hook in hooks:
                hook.remove()
        return input_mismatch(module, samples, self.layers[-1] if self.layers else None, error)

    def _left(self, *_: Any) -> None:
        self.layers.pop()

    def _entered(self, name: str) -> Any:
        def hook(layer: nn.Module, given: tuple[Any, ...]) -> None:
            self.layers.append((name, layer, given))

        return hook

    def _check_outputs(self, outputs: Any, samples: Samples) -> None:
        kind = type(self.network.module).__name__
        if not isinstance(outputs, Tensor):
            if self.loss_is_given:
                return
            some = "nothing (does forward return?)" if outputs is None else f"a {type(outputs).__name__}"
            first = ", as in return outputs[0]" if isinstance(outputs, (tuple, list)) else ""
            raise FedapmError(f"{kind} gives {some}; its forward should return one tensor of outputs{first}.")
        if outputs.dim() == 0 or len(outputs) != len(samples):
            raise FedapmError(
                f"{kind} gives outputs of shape {tuple(outputs.shape)} for {len(samples)} samples of client "
                f"{self.client.id}; its first dimension is for samples (batch), so keep it, as in x.flatten(1)."
            )
        if self.loss_is_given:
            return
        if samples.classified:
            self._check_classes(outputs, samples, kind)
        elif outputs.numel() != samples.targets.numel():
            each = tuple(samples.targets.shape[1:]) or "one number"
            whole = bool((samples.targets == samples.targets.round()).all())
            cure = (
                "the targets are floats, but whole: if they are classes, give y.astype(int)"
                if whole and outputs.dim() == 2
                else "give the network as many outputs as a sample has targets"
            )
            raise FedapmError(
                f"{kind} gives {tuple(outputs.shape[1:])} outputs a sample, and a target of client {self.client.id} is "
                f"{each} ({_dtype(samples.targets)}); {cure}."
            )

    def _check_classes(self, outputs: Tensor, samples: Samples, kind: str) -> None:
        classes = self.problem.federation.classes
        given = outputs.shape[1] if outputs.dim() > 1 else 1
        if not outputs.is_floating_point():
            raise FedapmError(f"{kind} gives {_dtype(outputs)}; it should give a score a class, not the class itself.")
        if given == 1 and classes > 1:
            raise FedapmError(
                f"{kind} has one output, but there are {classes} classes; give it {classes} outputs, as in "
                f"nn.Linear(…, {classes})"
                + (", or a loss for one output, such as binary cross-entropy (loss=)." if classes == 2 else ".")
            )
        highest = int(samples.targets.max())
        if highest >= given:
            raise FedapmError(
                f"client {self.client.id} has the class {highest}, but {kind} has {given} outputs, for the classes 0 "
                f"to {given - 1}; give it {classes} outputs."
            )
        if outputs.dim() - 1 != samples.targets.dim():
            raise FedapmError(
                f"{kind} gives outputs of shape {tuple(outputs.shape)} for labels of shape "
                f"{tuple(samples.targets.shape)} of client {self.client.id}; it should give a score a class, of shape "
                f"({len(outputs)}, {classes}): pool or flatten the other dimensions."
            )

    def _check_loss(self, outputs: Any, samples: Samples) -> None:
        what = "the loss" if self.loss_is_given else "cross-entropy"
        shapes = f"outputs {_shape(outputs)} and targets {_shape(samples.targets)} of client {self.client.id}"
        try:
            loss = self.network.loss(outputs, samples.targets)
        except FedapmError as error:
            raise FedapmError(f"client {self.client.id}: {error}") from None
        except Exception as error:
            at = f" ({place(error)})" if place(error) else ""
            raise FedapmError(
                f"{what} cannot be computed of {shapes}{at}; bring both to the shapes and types it takes."
            ) from error
        if not isinstance(loss, Tensor):
            raise FedapmError(
                f"the loss returns a {type(loss).__name__}; it should return a tensor, so do not call item()."
            )
        if loss.numel() != 1 or loss.dim() > 0:
            raise FedapmError(
                f"the loss returns the shape {tuple(loss.shape)} for {shapes}; it should return their mean, as in "
                'reduction="mean" or .mean().'
            )
        if not loss.requires_grad:
            raise FedapmError(
                "the loss does not depend on the network's parameters, so nothing can be learnt; look for argmax, "
                "round or detach() in the network and the loss."
            )
        if not torch.isfinite(loss):
            # one client of many may be beyond all numbers; its updates are left out
            logger.warning(
                "client %s has a loss of %s before any training; scale its inputs, and look for divisions and "
                "logarithms in the network.",
                self.client.id,
                loss.item(),
            )

    def _whose(self, samples: Samples) -> str:
        shapes = " and ".join(f"{tuple(t.shape[1:])} ({_dtype(t)})" for t in samples.inputs)
        return f"client {self.client.id} has samples of shape {shapes}"


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode with gradients for all that can have them; everything is put back."""
    training = {part: part.training for part in module.modules()}
    wanted = {parameter: parameter.requires_grad for parameter in module.parameters()}
    module.eval()
    for parameter in wanted:
        parameter.requires_grad_(parameter.is_floating_point())
    try:
        with torch.enable_grad():
            yield
    finally:
        for part, mode in training.items():
            part.training = mode
        for parameter, grad in wanted.items():
            parameter.requires_grad_(grad)


def _shape(values: Any) -> str:
    return f"of shape {tuple(values.shape)} ({_dtype(values)})" if isinstance(values, Tensor) else type(values).__name__


def _dtype(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")
