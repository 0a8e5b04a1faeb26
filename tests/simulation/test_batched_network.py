"""Networks computed for several clients at once: the backward pass written out agrees with autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedapm.core.batched import PerClient
from fedapm.core.solver import sgd_step
from fedapm.simulation.batched.chain import LinearChain, Step
from fedapm.simulation.batched.losses import losses
from fedapm.simulation.batched.network import VmapNetwork, batched_network, is_linear_chain
from fedapm.simulation.batched.products import FEWEST
from fedapm.simulation.problem import squared_error

CLIENTS, SAMPLES, CLASSES = 3, 5, 4
MANY = FEWEST + 1
"""Clients whose small products numpy computes."""


class Flat(nn.Module):
    """Functions and methods in place of modules, and a layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.square, self.last = nn.Linear(6, 6), nn.Linear(6, 6, bias=False), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x.flatten(1)))
        return self.last(functional.relu(self.square(self.square(x).sigmoid())))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "perceptron": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, CLASSES)),
    "twice": Flat,
    "one layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, CLASSES), nn.Identity()),
}


def setting(
    make: Callable[[], nn.Module], clients: int = CLIENTS
) -> tuple[nn.Module, dict[str, Tensor], Tensor, Tensor]:
    torch.manual_seed(3)
    module = make().double()
    batched = {n: torch.randn(clients, *p.shape, dtype=torch.double) for n, p in module.named_parameters()}
    x = torch.randn(clients, SAMPLES, 2, 3, dtype=torch.double)
    return module, batched, x, torch.randint(CLASSES, (clients, SAMPLES))


def alone(
    module: nn.Module, parameters: dict[str, Tensor], trained: Sequence[str], x: Tensor, y: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """One client by autograd."""
    leaves = {n: t.clone().requires_grad_(n in trained) for n, t in parameters.items()}
    loss = functional.cross_entropy(functional_call(module, leaves, (x,)), y)
    return loss.detach(), list(torch.autograd.grad(loss, [leaves[n] for n in trained]))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("part", ["all", "last", "first"])
def test_gradients_are_those_of_every_client_by_itself(name: str, part: str) -> None:
    module, parameters, x, y = setting(NETWORKS[name])
    assert is_linear_chain(module)
    names = list(parameters)
    trained = {"all": names, "last": names[-2:], "first": names[:2]}[part]
    found, values = [], losses(functional.cross_entropy, y, None)
    for made in (batched_network(module), VmapNetwork(module)):
        found.append(made.gradient(parameters, frozenset(names), trained, [x], values))
    assert isinstance(batched_network(module), LinearChain)
    for grads, each in found:
        for k in range(CLIENTS):
            loss, expected = alone(module, {n: t[k] for n, t in parameters.items()}, trained, x[k], y[k])
            torch.testing.assert_close(each[k], loss)
            for grad, one in zip(grads, expected, strict=True):
                torch.testing.assert_close(grad[k], one)


@pytest.mark.parametrize("part", ["all", "last", "first"])
@pytest.mark.parametrize("slope", [0.0, 0.3, "each"])
@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("offset", [True, False])
@pytest.mark.parametrize("clients", [CLIENTS, MANY])
def test_steps_in_place_are_those_of_every_client_by_itself(
    part: str, slope: float | str, even: bool, offset: bool, clients: int
) -> None:
    module, parameters, x, y = setting(NETWORKS["perceptron"], clients)
    names, lr, weight = list(parameters), 0.1, 0.7
    trained = {"all": names, "last": names[-2:], "first": names[:2]}[part]
    slopes = [0.1 * k for k in range(len(trained))] if slope == "each" else slope
    terms = [torch.randn_like(parameters[n]) for n in trained] if offset else None
    sizes = [SAMPLES] * clients if even else [SAMPLES, SAMPLES - 1, *[2] * (clients - 2)]
    counts = torch.tensor(sizes).double().unsqueeze(1)
    weights = None if even else (torch.arange(SAMPLES) < counts) / counts
    moved = {n: t.clone() for n, t in parameters.items()}
    steps = batched_network(module).steps(moved, frozenset(names), trained, Step(lr, weight, slopes, terms, SAMPLES))
    assert steps is not None
    for _ in range(3):
        logs = steps(x, y, weights)
        for k, size in enumerate(sizes):
            own = {n: t[k] for n, t in parameters.items()}
            loss, grads = alone(module, own, trained, x[k, :size], y[k, :size])
            torch.testing.assert_close(-logs[k, :size].mean(), loss)
            own_terms = None if terms is None else [t[k] for t in terms]
            sgd_step([own[n] for n in trained], grads, lr=lr, weight=weight, slope=slopes, offset=own_terms)
        for name, value in parameters.items():
            torch.testing.assert_close(moved[name], value)


def test_a_parameter_that_nothing_uses_follows_its_terms() -> None:
    module, parameters, x, y = setting(NETWORKS["perceptron"])
    parameters["spare"] = torch.ones(CLIENTS, 2, dtype=torch.double)
    terms = [torch.zeros(CLIENTS, 4, dtype=torch.double), torch.ones(CLIENTS, 2).double()]
    step = Step(0.1, 1.0, 0.5, terms, SAMPLES)
    steps = batched_network(module).steps(parameters, frozenset(parameters), ["3.bias", "spare"], step)
    assert steps is not None
    steps(x, y, None)
    torch.testing.assert_close(parameters["spare"], torch.full((CLIENTS, 2), 0.95 - 0.1).double())


def test_steps_in_place_are_refused_where_a_gradient_has_to_be_whole() -> None:
    module, parameters, _, _ = setting(NETWORKS["perceptron"])
    names, each = list(parameters), PerClient(torch.ones(CLIENTS))
    program = batched_network(module)
    for weight, slope in ((each, 0.0), (1.0, each), (1.0, [each] * len(names))):
        step = Step(0.1, weight, slope, None, SAMPLES)
        assert program.steps(parameters, frozenset(names), names, step) is None
    plain = Step(0.1, 1.0, 0.0, None, SAMPLES)
    assert program.dropping(["1"], 0.5).steps(parameters, frozenset(names), names, plain) is None
    # a layer that comes twice
    module, parameters, _, _ = setting(NETWORKS["twice"])
    names = list(parameters)
    assert batched_network(module).steps(parameters, frozenset(names), names, plain) is None
    assert VmapNetwork(module).steps(parameters, frozenset(names), names, plain) is None


@pytest.mark.parametrize("name", NETWORKS)
def test_what_training_does_not_change_can_be_computed_before(name: str) -> None:
    module, parameters, x, y = setting(NETWORKS[name])
    names = list(parameters)
    # the layers that are not trained are the same for all clients
    mixed = {n: t if n in names[-2:] else t[0] for n, t in parameters.items()}
    batched, trained, values = frozenset(names[-2:]), names[-2:], losses(functional.cross_entropy, y, None)
    whole = batched_network(module)
    before, after = whole.cut(trained)
    assert before is not None
    kept = before.outputs(mixed, batched, [x])
    grads, each = after.gradient(mixed, batched, trained, [kept], values)
    expected, as_expected = whole.gradient(mixed, batched, trained, [x], values)
    torch.testing.assert_close(each, as_expected)
    for grad, one in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad, one)


@pytest.mark.parametrize("loss", [functional.cross_entropy, squared_error])
def test_samples_that_weigh_nothing_do_not_count(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    outputs = torch.randn(2, 4, 3, dtype=torch.double)
    classes = torch.randint(3, (2, 4))
    targets = classes if loss is functional.cross_entropy else torch.randn(2, 4, 3, dtype=torch.double)
    sizes = (4, 2)
    weights = torch.tensor([[0.25] * 4, [0.5, 0.5, 0.0, 0.0]], dtype=torch.double)
    found, slope = losses(loss, targets, weights).slope(outputs)
    for k, size in enumerate(sizes):
        leaf = outputs[k, :size].clone().requires_grad_(True)
        expected = loss(leaf, targets[k, :size])
        torch.testing.assert_close(found[k], expected.detach())
        torch.testing.assert_close(slope[k, :size], torch.autograd.grad(expected, leaf)[0])
        assert not slope[k, size:].any()


def test_other_networks_are_mapped() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.flatten(1)) + self.layer(x.flatten(1))

    module, parameters, x, y = setting(Twice)
    made = batched_network(module)
    assert isinstance(made, VmapNetwork)
    assert made.cut(list(parameters)) == (None, made)
    names = list(parameters)
    grads, each = made.gradient(parameters, frozenset(names), names, [x], losses(functional.cross_entropy, y, None))
    loss, expected = alone(module, {n: t[1] for n, t in parameters.items()}, names, x[1], y[1])
    torch.testing.assert_close(each[1], loss)
    torch.testing.assert_close(grads[0][1], expected[0])
