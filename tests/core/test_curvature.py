"""Power iteration on Hessian-vector products against the Hessian itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedapm.core import curvature
from fedapm.core.curvature import Hessian
from fedapm.core.network import Network
from fedapm.core.random import torch_generator
from fedapm.core.samples import Samples
from fedapm.core.solver import SGDConfig
from fedapm.core.split import SplitRule
from fedapm.core.task import LocalTask
from fedapm.core.vec import Vec
from tests.helpers.unit import refused

BLOCKS = {"u": (0, 0), "v": (1, 1), "uv": (0, 1), "vu": (1, 0)}


def smooth() -> nn.Module:
    network = nn.Sequential()
    network.add_module("body", nn.Linear(3, 4))
    network.add_module("tanh", nn.Tanh())
    network.add_module("head", nn.Linear(4, 3))
    return network


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x, x, x, need_weights=False)[0].mean(1))


class Flash(nn.Module):
    """Insists on a kernel that has no second derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.body(x).view(-1, 1, 2, 2)
        return self.head(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)[0].flatten(1))


def task(module: nn.Module, *shape: int, samples: int = 23, **solver: float) -> LocalTask:
    stream = torch.Generator().manual_seed(1)
    for parameter in module.double().parameters():
        parameter.data = torch.randn(parameter.shape, generator=stream, dtype=torch.float64)
    inputs = torch.randn(samples, *shape, generator=stream, dtype=torch.float64)
    network = Network(module, SplitRule(personal=("head",)).apply(module), nn.functional.cross_entropy)
    data = Samples((inputs,), torch.arange(samples) % 3)
    return LocalTask(network, data, SGDConfig(**solver), 0, 0, 0)


def parts(local: LocalTask) -> tuple[Vec, Vec]:
    split = local.network.split
    return local.network.read(split.shared), local.network.read(split.personal)


def exact(local: LocalTask) -> tuple[torch.Tensor, int]:
    """The whole Hessian with the L2 terms, and how many of its rows belong to u."""
    u, v = parts(local)
    point, solver = u | v, local.solver
    flat = torch.cat([t.flatten() for t in point.values()])

    def loss(values: torch.Tensor) -> torch.Tensor:
        pieces = values.split([t.numel() for t in point.values()])
        named = {n: p.view(t.shape) for p, (n, t) in zip(pieces, point.items(), strict=True)}
        outputs = functional_call(local.network.module, named, local.train.inputs)
        decay_v = solver.weight_decay if solver.weight_decay_v is None else solver.weight_decay_v
        penalty = solver.weight_decay * (values[: u.numel] ** 2).sum() + decay_v * (values[u.numel :] ** 2).sum()
        return nn.functional.cross_entropy(outputs, local.train.targets) + 0.5 * penalty

    return torch.autograd.functional.hessian(loss, flat), u.numel


@pytest.mark.parametrize("solver", [{}, {"weight_decay": 0.2}, {"weight_decay": 0.2, "weight_decay_v": 0.7}])
@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_is_that_of_the_hessian(monkeypatch, block, solver):
    monkeypatch.setattr(curvature, "batch_size", lambda samples: 5)  # 23 samples: the last batch is smaller
    local = task(smooth(), 3, **solver)
    whole, cut = exact(local)
    rows, columns = BLOCKS[block]
    part = whole[(slice(0, cut), slice(cut, None))[rows], (slice(0, cut), slice(cut, None))[columns]]
    u, v = parts(local)
    names = (u.names, v.names)
    hessian = Hessian(local, u | v)

    x = (u, v)[columns].map(lambda t: torch.linspace(-1, 1, t.numel(), dtype=t.dtype).view(t.shape))
    product = hessian.apply(names[rows], names[columns], x)
    expected = part @ torch.cat([t.flatten() for t in x.values()])
    torch.testing.assert_close(torch.cat([t.flatten() for t in product.values()]), expected)

    norm = hessian.norm(names[rows], names[columns], torch_generator(0, "test"))
    assert norm.converged
    assert norm.value == pytest.approx(torch.linalg.matrix_norm(part, 2).item(), rel=2e-3)
    assert norm.value <= torch.linalg.matrix_norm(part, 2).item() * (1 + 1e-9)


def test_an_eigenvalue_counts_by_its_magnitude():
    """The Hessian of a network is indefinite: its largest eigenvalue by magnitude may be negative."""

    class Saddle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Parameter(torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (self.body[0] ** 2 - 3 * self.body[1] ** 2)

    module = Saddle().double()
    network = Network(module, SplitRule().apply(module), lambda out, target: out.mean())
    data = Samples((torch.ones(4, dtype=torch.float64),), torch.zeros(4))
    local = LocalTask(network, data, SGDConfig(), 0, 0, 0)
    u = network.read(network.split.shared)
    assert Hessian(local, u).norm(u.names, u.names, torch_generator(0, "test")).value == pytest.approx(6, rel=1e-3)


def test_a_block_that_is_zero():
    module = nn.Linear(3, 3)
    network = Network(module, SplitRule(personal=("bias",)).apply(module), lambda out, target: out.sum())
    linear = LocalTask(network, Samples((torch.ones(4, 3),), torch.zeros(4)), SGDConfig(), 0, 0, 0)
    u, v = parts(linear)
    found = Hessian(linear, u | v).norm(u.names, v.names, torch_generator(0, "test"))
    assert (found.value, found.converged) == (0.0, True)


def test_the_start_is_drawn_by_its_key():
    local = task(smooth(), 3)
    u, v = parts(local)
    hessian = Hessian(local, u | v)
    one, same, other = (hessian.norm(u.names, u.names, torch_generator(seed, "test")) for seed in (0, 0, 1))
    assert one == same
    assert one != other
    assert one.value == pytest.approx(other.value, rel=2e-3)


def test_attention_is_differentiated_twice():
    local = task(Attention(), 5, 4)
    with sdpa_kernel(SDPBackend.MATH):
        whole, cut = exact(local)
    u, v = parts(local)
    found = Hessian(local, u | v).norm(u.names, u.names, torch_generator(0, "test"))
    assert found.value == pytest.approx(torch.linalg.matrix_norm(whole[:cut, :cut], 2).item(), rel=2e-3)


def test_what_cannot_be_differentiated_twice_is_refused():
    local = task(Flash(), 3)
    u, v = parts(local)
    with refused("differentiated twice", "flash"):
        Hessian(local, u | v).norm(u.names, u.names, torch_generator(0, "test"))
