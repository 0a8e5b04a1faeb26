"""Recurrent layers written out: what torch's own kernels say, and what vmap makes of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_sequence

from fedapm.core.recurrent import later_products, recurrent_layers, written_out

FEATURES, WIDTH, STEPS, SAMPLES = 4, 5, 6, 3
KINDS = {
    "gru": (nn.GRU, {}),
    "lstm": (nn.LSTM, {}),
    "lstm with a projection": (nn.LSTM, {"proj_size": 2}),
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
}
FORMS: list[dict[str, Any]] = [
    {},
    {"batch_first": True},
    {"bias": False},
    {"num_layers": 2, "bidirectional": True},
    {"num_layers": 3, "batch_first": True, "bias": False},
]


def made(kind: str, form: dict[str, Any]) -> nn.RNNBase:
    torch.manual_seed(0)
    layer, own = KINDS[kind]
    return layer(FEATURES, WIDTH, **own, **form).double()


def values(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def states(layer: nn.RNNBase, samples: int | None) -> Any:
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    sizes = [layer.proj_size or WIDTH, WIDTH][: 2 if layer.mode == "LSTM" else 1]
    found = [values(count, *([] if samples is None else [samples]), size, seed=7 + size) for size in sizes]
    return tuple(found) if layer.mode == "LSTM" else found[0]


def flat(output: Any) -> list[Tensor]:
    return [output] if isinstance(output, Tensor) else [tensor for part in output for tensor in flat(part)]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [False, True], ids=["from zero", "from given states"])
@pytest.mark.parametrize("alone", [False, True], ids=["a batch", "one sequence"])
def test_values_and_gradients_are_those_of_torch(kind: str, form: dict[str, Any], given: bool, alone: bool) -> None:
    layer = made(kind, form)
    shape = (STEPS,) if alone else (SAMPLES, STEPS) if layer.batch_first else (STEPS, SAMPLES)
    steps = values(*shape, FEATURES).requires_grad_()
    begin = states(layer, None if alone else SAMPLES) if given else None

    def outcome() -> tuple[list[Tensor], tuple[Tensor, ...]]:
        found = flat(layer(steps, begin))
        total = torch.stack([(tensor * torch.cos(tensor)).sum() for tensor in found]).sum()
        return found, torch.autograd.grad(total, [steps, *layer.parameters()])

    expected, slopes = outcome()
    with written_out(layer):
        found, gradients = outcome()
    assert [tensor.shape for tensor in found] == [tensor.shape for tensor in expected]
    for ours, theirs in zip((*found, *gradients), (*expected, *slopes), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_clients_mapped_together_are_the_same_one_by_one(kind: str) -> None:
    layer, clients = made(kind, {"num_layers": 2, "batch_first": True}), 4
    steps = values(clients, SAMPLES, STEPS, FEATURES)
    own = {n: p.detach() + 0.1 * values(clients, *p.shape, seed=3) for n, p in layer.named_parameters()}
    with written_out(layer):
        together = torch.vmap(lambda p, x: functional_call(layer, p, (x,))[0])(own, steps)
    for k in range(clients):
        alone = functional_call(layer, {n: p[k] for n, p in own.items()}, (steps[k],))[0]
        torch.testing.assert_close(together[k], alone, rtol=1e-12, atol=1e-12)


def test_afterwards_a_network_is_as_it_was() -> None:
    network = nn.Sequential(nn.GRU(FEATURES, WIDTH))
    before = network[0].forward

    def broken() -> None:
        with written_out(network):
            assert network[0].forward != before
            with written_out(network):
                assert recurrent_layers(network) == []
            assert network[0].forward != before, "whoever wrote it out takes it back"
            raise RuntimeError("on the way")

    with pytest.raises(RuntimeError, match="on the way"):
        broken()
    assert network[0].forward == before
    assert "forward" not in network[0].__dict__


def test_dropout_between_layers_is_drawn_in_training_alone() -> None:
    layer = made("gru", {"num_layers": 2, "dropout": 0.5})
    steps = values(STEPS, SAMPLES, FEATURES)

    @torch.no_grad()
    def kept() -> float:
        with written_out(layer):
            return float(layer(steps)[0].std())

    layer.eval()
    assert kept() == pytest.approx(float(layer(steps)[0].detach().std()), abs=1e-12)
    layer.train()
    torch.manual_seed(0)
    first = kept()
    assert kept() != first, "other values are dropped"
    torch.manual_seed(0)
    assert kept() == first


def test_packed_sequences_and_layers_with_a_forward_pass_of_their_own_are_left_alone() -> None:
    class Doubled(nn.GRU):
        def forward(self, input: Any, hx: Any = None) -> Any:
            return super().forward(2 * input, hx)

    own, layer = Doubled(FEATURES, WIDTH).double(), made("gru", {})
    assert recurrent_layers(nn.ModuleList([own, layer])) == [layer]
    steps = values(STEPS, SAMPLES, FEATURES)
    expected = own(steps)[0]
    packed = pack_sequence([values(5, FEATURES), values(2, FEATURES)])
    ended = layer(packed)[1]
    with written_out(nn.ModuleList([own, layer])):
        assert own(steps)[0].equal(expected)
        assert layer(packed)[1].equal(ended)


@pytest.mark.parametrize("batch_first", [False, True])
def test_products_of_later_steps(batch_first: bool) -> None:
    layer = nn.LSTM(FEATURES, WIDTH, batch_first=batch_first, bidirectional=True)
    each = 2 * 4 * WIDTH * (FEATURES + WIDTH)
    shape = (SAMPLES, STEPS) if batch_first else (STEPS, SAMPLES)
    assert later_products(layer, torch.zeros(*shape, FEATURES)) == (STEPS - 1) * SAMPLES * each
    assert later_products(layer, torch.zeros(STEPS, FEATURES)) == (STEPS - 1) * each
