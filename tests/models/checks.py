"""What every network must do, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedapm.core import forward
from fedapm.core.split import SplitRule

fillers = st.sampled_from([0.0, 1.0, -1e6, float("nan"), float("inf")])
"""What may lie behind the end of a sequence."""


def size(network: nn.Module) -> int:
    """How many numbers a network learns."""
    return sum(p.numel() for p in network.parameters())


def noise(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers in double precision, so that a comparison can be strict."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A network in double precision with weights that are the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().double()


def padded(values: Tensor, lengths: Sequence[int], filler: float, dim: int) -> Tensor:
    """The values with what lies behind each sample's length overwritten."""
    filled = values.clone()
    for sample, length in enumerate(lengths):
        filled[sample].narrow(dim - 1, length, values.shape[dim] - length).fill_(filler)
    return filled


def check_many_clients_at_once(make: Callable[[], nn.Module], inputs: Sequence[Tensor], targets: Tensor) -> None:
    """Losses and gradients of three clients in one call are those of a loop; inputs are (client, batch, …)."""
    networks = [seeded(make, seed).train() for seed in range(3)]
    batched, _ = stack_module_state(networks)
    skeleton = deepcopy(networks[0])

    def loss(parameters: dict[str, Tensor], batch: tuple[Tensor, ...], target: Tensor) -> Tensor:
        return cross_entropy(functional_call(skeleton, parameters, batch), target)

    gradients, values = vmap(grad_and_value(loss))(batched, tuple(inputs), targets)
    for client, network in enumerate(networks):
        alone = cross_entropy(network(*(part[client] for part in inputs)), targets[client])
        expected = torch.autograd.grad(alone, list(network.parameters()))
        assert_close(values[client], alone.detach())
        for (name, _), gradient in zip(network.named_parameters(), expected, strict=True):
            assert_close(gradients[name][client], gradient)


def check_forward_steps(network: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Split where a preset would split it, a forward pass gives the same logits and the same gradients."""
    network.eval()
    splits = 0
    for preset in {"input", "split_input", "output"} & network.stages.keys():
        split = SplitRule(preset=preset).apply(network)
        for trained in (split.personal, split.shared):
            parts = forward.split_forward(network, trained, len(inputs))
            if parts is None:
                continue
            splits += 1
            parameters = [dict(network.named_parameters())[n] for n in trained]
            with torch.no_grad():
                features = parts.compute_features(inputs)
            logits, expected = parts.forward_features(*features), network(*inputs)
            assert torch.equal(logits, expected)
            pairs = zip(
                torch.autograd.grad(logits.square().sum(), parameters),
                torch.autograd.grad(expected.square().sum(), parameters),
                strict=True,
            )
            assert all(torch.equal(a, b) for a, b in pairs)
    assert splits >= len(network.stages) - 1, "every preset leaves something that need not be computed twice"


def check_learns(network: nn.Module, inputs: Sequence[Tensor], targets: Tensor, lr: float, steps: int = 12) -> None:
    """A few steps of gradient descent make the loss fall clearly."""
    network.train()
    parameters = list(network.parameters())
    losses = []
    for _ in range(steps):
        loss = cross_entropy(network(*inputs), targets)
        losses.append(loss.item())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data.sub_(gradient, alpha=lr)
    assert losses[-1] < 0.8 * losses[0], losses


def check_dropout(make: Callable[[float], nn.Module], inputs: Sequence[Tensor]) -> None:
    """Dropout is off unless asked for, then on in training alone."""
    still, shaken = make(0.0).train(), make(0.5).train()
    assert torch.equal(still(*inputs), still(*inputs))
    assert not torch.equal(shaken(*inputs), shaken(*inputs))
    shaken.eval()
    assert torch.equal(shaken(*inputs), shaken(*inputs))
