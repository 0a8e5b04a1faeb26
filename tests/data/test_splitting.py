"""Splits of many clients at once: those of each client by itself, sample by sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedapm.core.random import numpy_generator, numpy_generators
from fedapm.core.samples import Samples
from fedapm.data.splitting import held_out_count, random_order, split_samples, split_test, split_together
from tests.helpers.unit import few, refused

labels = st.lists(st.sampled_from([0, 1, 2, 7, 1023, 1024, -3, 2**40]), min_size=1, max_size=40)


def naive_order(index: np.ndarray, y: np.ndarray, stream: np.random.Generator) -> np.ndarray:
    """Sorted by each sample's rank within its class as a share of the class, ties in the order that was drawn."""
    shuffled, seen, shares = stream.permutation(index), {}, []
    for position in shuffled:
        label = int(y[position])
        seen[label] = seen.get(label, 0) + 1
        shares.append((seen[label] - 1 + 0.5) / int((y == label).sum()))
    return np.array([shuffled[k] for k in sorted(range(len(shares)), key=shares.__getitem__)])


@few
@given(labels, st.integers(0, 99))
def test_the_first_ones_have_the_classes_in_the_proportions_of_all(values: list[int], seed: int) -> None:
    y, index = np.array(values), np.arange(len(values))
    wanted = naive_order(index, y, numpy_generator(seed, "p"))
    assert random_order(index, y, True, numpy_generator(seed, "p")).tolist() == wanted.tolist()
    assert random_order(index[:0], y, True, numpy_generator(seed, "p")).tolist() == []


@few
@given(st.integers(2, 300), st.floats(0.001, 0.999))
def test_one_clients_number_is_that_of_many_clients(size: int, fraction: float) -> None:
    _, test = split_test(np.arange(size), np.zeros(size, int), False, fraction, numpy_generator(0, "p"))
    assert len(test) == held_out_count(np.array([size, 2]), fraction)[0]


def client(size: int, k: int) -> Samples:
    """Of several kinds: classes, quantities, recordings, a table of classes for each sample."""
    x, y = torch.arange(float(size)), torch.arange(size) * (k + 1) % 4
    if k % 5 == 2:
        return Samples((x,), y.float())
    if k % 5 == 3:
        return Samples((x, x.unsqueeze(1)), y, groups=torch.arange(size) // 2)
    return Samples((x, x.unsqueeze(1)), y * 500 if k == 4 else y)


@few
@given(st.lists(st.integers(2, 12), max_size=12), st.floats(0.05, 0.9))
def test_clients_split_together_are_those_split_by_themselves(sizes: list[int], fraction: float) -> None:
    samples = [client(size + 4, k) for k, size in enumerate(sizes)]
    together = split_together(samples, fraction, numpy_generators(3, "test split", range(len(samples))))
    for k, (own, halves) in enumerate(zip(samples, together, strict=True)):
        alone = split_samples(own, fraction, numpy_generator(3, "test split", k))
        for one, other in zip(halves, alone, strict=True):
            assert all(map(torch.equal, (*one.inputs, one.targets), (*other.inputs, other.targets)))
            assert (one.groups is None) == (other.groups is None)


@pytest.mark.parametrize("fraction", [0.0, 1.0, float("nan")])
def test_a_fraction_outside_0_and_1_is_refused_for_many_clients(fraction: float) -> None:
    with refused("test fraction", str(fraction)):
        split_together([client(5, 0)], fraction, [numpy_generator(0, "p")])
