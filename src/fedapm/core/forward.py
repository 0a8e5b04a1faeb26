"""Flow: a network as steps, so that what does not change while a block is trained is computed once.

A network says how its forward pass falls into steps by a class attribute ``flow``: each step is a method, what it takes
(inputs of ``forward`` or results of earlier steps, by name) and the sub-modules it uses. ``nn.Sequential`` needs no
such attribute. While some parameters are trained, the steps that neither use them nor take anything made from them are
constants of the data: with output personalisation the shared trunk in the personal phase, with input personalisation
the personal stem in the shared phase.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

Values = dict[str, Tensor | None]


@dataclass(frozen=True)
class Step:
    """One stage of a forward pass: the method ``gives`` makes the value of that name."""

    gives: str
    takes: tuple[str, ...]
    uses: tuple[str, ...] = ()


@dataclass(frozen=True)
class ForwardSplit:
    """A forward pass in two: the steps that are constant while some parameters are trained, and the rest."""

    calls: dict[str, Callable[..., Tensor]]
    inputs: tuple[str, ...]
    absent: tuple[str, ...]
    """Inputs that are not given."""
    before: tuple[Step, ...]
    after: tuple[Step, ...]
    needed: tuple[str, ...]
    """What the rest takes of inputs and constant steps."""

    def features(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What the constant steps make of some inputs, as the rest takes it."""
        values = self._run(self.before, dict(zip(self.inputs, inputs, strict=True)))
        return tuple(value for name in self.needed if (value := values[name]) is not None)

    def rest(self, *features: Tensor) -> Tensor:
        """The output, from what the constant steps made."""
        values = self._run(self.after, dict(zip(self.needed, features, strict=True)))
        output = values[self.after[-1].gives]
        assert output is not None
        return output

    def _run(self, steps: Sequence[Step], given: Values) -> Values:
        values: Values = {**given, **dict.fromkeys(self.absent)}
        for step in steps:
            values[step.gives] = self.calls[step.gives](*(values[name] for name in step.takes))
        return values


def cut(module: nn.Module, trained: Iterable[str], inputs: int) -> ForwardSplit | None:
    """Part a module's forward pass; None where it names no steps or none of them is constant."""
    known = _steps(module, inputs)
    if known is None:
        return None
    names, absent, steps, calls = known
    wanted = tuple(trained)
    fixed = {*names, *absent}
    before, after = [], []
    for step in steps:
        touched = any(n == used or n.startswith(f"{used}.") for used in step.uses for n in wanted)
        if not touched and fixed.issuperset(step.takes):
            fixed.add(step.gives)
            before.append(step)
        else:
            after.append(step)
    if not before or not after:
        return None
    taken = (name for step in after for name in step.takes if name in fixed and name not in absent)
    return ForwardSplit(calls, names, absent, tuple(before), tuple(after), tuple(dict.fromkeys(taken)))


def changes_in_training(module: nn.Module, steps: Sequence[Step]) -> str | None:
    """The part of some steps whose results change from call to call in training, if there is one."""
    for step in steps:
        for used in step.uses:
            below = getattr(_found(module, used), "named_modules", None)
            for name, part in below(prefix=used) if below is not None else ():
                if isinstance(part, _NormBase) or (isinstance(part, _DropoutNd) and part.p > 0):
                    return f"{name} ({type(part).__name__})"
    return None


def uncovered_parameter(module: nn.Module, inputs: int) -> str | None:
    """A parameter that no step names, if there is one: such steps cannot be told apart by what is trained."""
    known = _steps(module, inputs)
    used = [name for step in known[2] for name in step.uses] if known is not None else []
    for name, _ in module.named_parameters():
        if not any(name == u or name.startswith(f"{u}.") for u in used):
            return name
    return None


def _found(module: nn.Module, name: str) -> object:
    part: object = module
    for piece in name.split("."):
        part = getattr(part, piece)
    return part


def _steps(
    module: nn.Module, inputs: int
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[Step, ...], dict[str, Callable[..., Tensor]]] | None:
    if type(module) is nn.Sequential and len(module) and inputs == 1:
        made = ["input", *(f"after {name}" for name, _ in module.named_children())]
        children = list(module.named_children())
        steps = tuple(Step(made[k + 1], (made[k],), (name,)) for k, (name, _) in enumerate(children))
        return ("input",), (), steps, {made[k + 1]: child for k, (_, child) in enumerate(children)}
    declared: tuple[Step, ...] = getattr(module, "flow", ())
    names = tuple(inspect.signature(module.forward).parameters)
    if not declared or inputs > len(names):
        return None
    return names[:inputs], names[inputs:], declared, {step.gives: getattr(module, step.gives) for step in declared}


@torch.no_grad()
def same_in_training(module: nn.Module, found: ForwardSplit, inputs: Sequence[Tensor]) -> bool:
    """Whether the steps are the forward pass, and the constant ones the same in training as in evaluation, twice."""
    buffers = {n: b.clone() for n, b in module.named_buffers()}
    with torch.random.fork_rng(devices=[inputs[0].device] if inputs[0].is_cuda else []):
        module.eval()
        still = found.features(inputs)
        module.train()
        again = [found.features(inputs) for _ in range(2)]
        module.eval()
        agree = torch.allclose(found.rest(*still), module(*inputs), rtol=1e-4, atol=1e-5, equal_nan=True)
    kept = all(torch.equal(b, buffers[n]) for n, b in module.named_buffers())
    for name, buffer in module.named_buffers():
        buffer.copy_(buffers[name])
    return agree and kept and all(torch.equal(a, b) for other in again for a, b in zip(still, other, strict=True))
