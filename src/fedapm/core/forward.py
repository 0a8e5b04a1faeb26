"""Splits a forward pass in two, so that what training does not change is computed only once.

A network lists the steps of its forward pass in a class attribute ``forward_steps``::

    forward_steps = (
        Step(output="conv_out", inputs=("images",), modules=("conv",)),
        Step(output="logits", inputs=("conv_out",), modules=("fc",)),
    )

Each step is a method of the network, named after its output. Its inputs are arguments of ``forward`` or outputs of
earlier steps, and ``modules`` are the sub-modules it uses. ``nn.Sequential`` needs no such attribute.

While some parameters are trained, all steps that depend on none of them have the same output in every pass: with
output personalization the shared layers in the personal phase, with input personalization the personal layers in the
shared phase.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

Values = dict[str, Tensor | None]


@dataclass(frozen=True)
class Step:
    """One step of a network's forward pass."""

    output: str
    """The name of its result, and of the method that computes it."""
    inputs: tuple[str, ...]
    """The names of the method's arguments: arguments of ``forward`` or outputs of earlier steps."""
    modules: tuple[str, ...] = ()
    """The sub-modules whose parameters it uses."""


@dataclass(frozen=True)
class ForwardSplit:
    """A forward pass in two parts: steps that are constant while some parameters are trained, and the others."""

    methods: dict[str, Callable[..., Tensor]]
    """What computes each step's output."""
    inputs: tuple[str, ...]
    omitted: tuple[str, ...]
    """Arguments of ``forward`` that are not given."""
    constant: tuple[Step, ...]
    trained: tuple[Step, ...]
    features: tuple[str, ...]
    """The inputs and outputs of constant steps that the trained steps take."""

    def compute_features(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the constant steps."""
        values = self._run(self.constant, dict(zip(self.inputs, inputs, strict=True)))
        return tuple(value for name in self.features if (value := values[name]) is not None)

    def forward_features(self, *features: Tensor) -> Tensor:
        """Run the trained steps; the result is the network's output."""
        values = self._run(self.trained, dict(zip(self.features, features, strict=True)))
        output = values[self.trained[-1].output]
        assert output is not None
        return output

    def after(self, other: ForwardSplit) -> ForwardSplit:
        """The same split where the features of another one, with fewer constant steps, are given instead of inputs."""
        constant = tuple(step for step in self.constant if step not in other.constant)
        return replace(self, inputs=other.features, constant=constant)

    def _run(self, steps: Sequence[Step], arguments: Values) -> Values:
        values: Values = {**arguments, **dict.fromkeys(self.omitted)}
        for step in steps:
            values[step.output] = self.methods[step.output](*(values[name] for name in step.inputs))
        return values


@dataclass(frozen=True)
class _Steps:
    """The steps of a network for a number of inputs."""

    inputs: tuple[str, ...]
    omitted: tuple[str, ...]
    steps: tuple[Step, ...]
    methods: dict[str, Callable[..., Tensor]]


def split_forward(module: nn.Module, trained: Iterable[str], inputs: int) -> ForwardSplit | None:
    """Split a forward pass by what training changes.

    Args:
        module: The network.
        trained: The names of the parameters that are trained.
        inputs: How many inputs the network is called with.

    Returns:
        The two parts; None if the network lists no steps or none of them is constant.
    """
    network = _steps(module, inputs)
    if network is None:
        return None
    parameters = tuple(trained)
    constant_values = {*network.inputs, *network.omitted}
    constant_steps, trained_steps = [], []
    for step in network.steps:
        uses_trained = any(within(parameter, name) for name in step.modules for parameter in parameters)
        if not uses_trained and constant_values.issuperset(step.inputs):
            constant_values.add(step.output)
            constant_steps.append(step)
        else:
            trained_steps.append(step)
    if not constant_steps or not trained_steps:
        return None
    features = (name for step in trained_steps for name in step.inputs if name in constant_values)
    return ForwardSplit(
        network.methods,
        network.inputs,
        network.omitted,
        tuple(constant_steps),
        tuple(trained_steps),
        tuple(dict.fromkeys(name for name in features if name not in network.omitted)),
    )


def changes_in_training(module: nn.Module, steps: Sequence[Step]) -> str | None:
    """The first sub-module of some steps whose output differs from call to call in training; None if there is none."""
    # a frozen base stays in evaluation mode whatever is asked for
    module.train()
    for step in steps:
        for used in step.modules:
            submodules = getattr(_submodule(module, used), "named_modules", None)
            for name, part in submodules(prefix=used) if submodules is not None else ():
                changes = isinstance(part, _NormBase) or (isinstance(part, _DropoutNd) and part.p > 0)
                if changes and part.training:
                    return f"{name} ({type(part).__name__})"
    return None


def uncovered_parameter(module: nn.Module, inputs: int) -> str | None:
    """The first parameter that belongs to no step; None if there is none."""
    network = _steps(module, inputs)
    used = [name for step in network.steps for name in step.modules] if network is not None else []
    for parameter, _ in module.named_parameters():
        if not any(within(parameter, name) for name in used):
            return parameter
    return None


def within(parameter: str, module: str) -> bool:
    """Whether a parameter is a module's own, or of a module in it."""
    return parameter == module or parameter.startswith(f"{module}.")


def _submodule(module: nn.Module, name: str) -> object:
    part: object = module
    for attribute in name.split("."):
        part = getattr(part, attribute)
    return part


def _steps(module: nn.Module, inputs: int) -> _Steps | None:
    if type(module) is nn.Sequential and len(module) and inputs == 1:
        children = list(module.named_children())
        outputs = ["input", *(f"{name}_out" for name, _ in children)]
        steps = tuple(Step(outputs[k + 1], (outputs[k],), (name,)) for k, (name, _) in enumerate(children))
        return _Steps(("input",), (), steps, {f"{name}_out": child for name, child in children})
    declared: tuple[Step, ...] = getattr(module, "forward_steps", ())
    arguments = tuple(inspect.signature(module.forward).parameters)
    if not declared or inputs > len(arguments):
        return None
    methods = {step.output: getattr(module, step.output) for step in declared}
    return _Steps(arguments[:inputs], arguments[inputs:], declared, methods)


@torch.no_grad()
def same_in_training(module: nn.Module, split: ForwardSplit, inputs: Sequence[Tensor]) -> bool:
    """Whether caching the constant steps is safe.

    The steps must agree with ``forward``, and the constant ones must have the same output in training as in evaluation,
    twice, and leave the buffers alone.
    """
    buffers = {n: b.clone() for n, b in module.named_buffers()}
    with torch.random.fork_rng(devices=[inputs[0].device] if inputs[0].is_cuda else []):
        module.eval()
        in_evaluation = split.compute_features(inputs)
        module.train()
        in_training = [split.compute_features(inputs) for _ in range(2)]
        module.eval()
        output = split.forward_features(*in_evaluation)
        same_output = torch.allclose(output, module(*inputs), rtol=1e-4, atol=1e-5, equal_nan=True)
    same_buffers = all(torch.equal(b, buffers[n]) for n, b in module.named_buffers())
    for name, buffer in module.named_buffers():
        buffer.copy_(buffers[name])
    same_features = all(
        torch.equal(a, b) for features in in_training for a, b in zip(in_evaluation, features, strict=True)
    )
    return same_output and same_buffers and same_features
