"""Products of many small matrices by numpy's BLAS are those of torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedapm.simulation.batched.products import FEWEST, LARGEST, MOST_ROWS, small_products

DTYPES = {"single": torch.float32, "double": torch.float64}


@given(
    st.integers(FEWEST, FEWEST + 9),
    st.integers(1, MOST_ROWS),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from(sorted(DTYPES)),
    st.booleans(),
    st.sampled_from([(0, 1, 2), (2, 0, 1), (0, 2, 1), (1, 0, 2)]),
)
def test_they_are_those_of_torch(
    count: int, rows: int, inner: int, columns: int, dtype: str, turned: bool, order: tuple[int, int, int]
) -> None:
    kind = DTYPES[dtype]
    whole = torch.randn(count, columns, inner, dtype=kind)
    factor = whole.transpose(1, 2) if turned else torch.randn(count, inner, columns, dtype=kind)
    # in memory its dimensions follow each other in this order
    x = torch.randn(*[(count, rows, inner)[k] for k in order], dtype=kind)
    x = x.permute(*[order.index(k) for k in range(3)])
    product = small_products(factor, rows)
    assert product is not None
    found = product(x)
    torch.testing.assert_close(found, torch.bmm(x, factor), rtol=1e-4, atol=1e-4)
    assert found.is_contiguous()
    whole.mul_(2)
    factor.mul_(1 if turned else 2)
    torch.testing.assert_close(product(x), torch.bmm(x, factor), rtol=1e-4, atol=1e-4)
    x.zero_()
    assert not bool(product(x).any())
    assert bool(found.any()) or inner * columns == 0


@pytest.mark.parametrize(
    ("shape", "rows", "dtype"),
    [
        ((FEWEST - 1, 4, 4), 4, torch.float32),
        ((FEWEST, 4, 4), MOST_ROWS + 1, torch.float32),
        ((FEWEST, LARGEST // 64, 64), 2, torch.float32),
        ((FEWEST, 4, 4), 4, torch.bfloat16),
    ],
)
def test_where_torch_is_as_fast_it_computes_them(shape: tuple[int, int, int], rows: int, dtype: torch.dtype) -> None:
    assert small_products(torch.zeros(shape, dtype=dtype), rows) is None


def test_a_factor_elsewhere_is_left_to_torch() -> None:
    assert small_products(torch.zeros(FEWEST, 4, 4, device="meta"), 4) is None
