"""The networks' dropout: a mask of the right share, from the right stream, nothing where nothing is to be dropped."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedapm.core.dropout import Dropout


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_drops_the_share_it_is_told_and_keeps_the_mean(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    n = 400_000
    out = Dropout(p)(torch.ones(n, dtype=dtype))
    assert out.dtype == dtype
    zeros = out == 0
    assert zeros.double().mean().item() == pytest.approx(p, abs=5 * (p * (1 - p) / n) ** 0.5)
    torch.testing.assert_close(out[~zeros], torch.full_like(out[~zeros], 1 / (1 - p)), rtol=1e-4, atol=0)


def test_neighbours_and_repetitions_are_independent() -> None:
    """Four elements share one number of the generator, so a mistake in taking it apart would tie them together."""
    torch.manual_seed(0)
    n = 400_000
    masks = torch.stack([Dropout(0.5)(torch.ones(n)), Dropout(0.5)(torch.ones(n))])
    signs = masks - 1
    for shift in (1, 2, 3, 4, 8):
        assert (signs[0, shift:] * signs[0, :-shift]).mean().abs() < 5 / n**0.5, shift
    assert (signs[0] * signs[1]).mean().abs() < 5 / n**0.5


def test_the_gradient_passes_where_the_value_did() -> None:
    torch.manual_seed(0)
    values = torch.randn(7, 5, requires_grad=True)
    out = Dropout(0.5)(values)
    (grad,) = torch.autograd.grad(out.sum(), values)
    torch.testing.assert_close(out, values * grad)
    assert set(grad.unique().tolist()) == {0.0, 2.0}


def test_the_mask_follows_the_generator() -> None:
    values = torch.ones(3, 11)
    torch.manual_seed(5)
    first = Dropout(0.5)(values)
    second = Dropout(0.5)(values)
    torch.manual_seed(5)
    assert torch.equal(Dropout(0.5)(values), first)
    assert not torch.equal(first, second)


@given(shape=st.lists(st.integers(0, 5), max_size=3), p=st.floats(0, 1), training=st.booleans())
def test_any_shape_any_share(shape: list[int], p: float, training: bool) -> None:
    layer = Dropout(p).train(training)
    values = torch.rand(shape) + 1
    out = layer(values)
    assert out.shape == values.shape
    if not training or p == 0:
        assert torch.equal(out, values)
    elif p == 1:
        assert not out.any()
    else:
        assert torch.all((out == 0) | (out >= values))


def test_others_see_dropout_in_it() -> None:
    """Engines and kept features look for torch's dropout."""
    assert isinstance(Dropout(0.5), nn.Dropout)
