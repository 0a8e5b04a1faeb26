"""Partitions: every sample to exactly one client, the same way for the same stream."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapm.core.random import numpy_generator
from fedapm.data.partition import IID, Dirichlet, Natural, Overlapping, Partitioner, Quantity, Shards, by_id
from fedapm.data.splitting import split_test
from tests.helpers.unit import few, refused

labels = st.lists(st.integers(0, 5), min_size=40, max_size=120).map(np.array)
seeds = st.integers(0, 1000)
clients = st.integers(1, 6)
makers = st.sampled_from(
    [
        IID,
        lambda m: Dirichlet(m, 1.0, 2),
        lambda m: Dirichlet(m, 100.0, 1),
        lambda m: Shards(m, 3),
        lambda m: Quantity(m, 0.1, 3),
        lambda m: Quantity(m, 10.0, 0),
    ]
)


def stream(seed: int = 0) -> np.random.Generator:
    return numpy_generator(seed, "partition")


@few
@given(makers, clients, labels, seeds)
def test_every_sample_goes_to_exactly_one_client(
    make: Callable[[int], Partitioner], m: int, y: np.ndarray, seed: int
) -> None:
    parts = make(m)(y, stream(seed))
    assert len(parts) == m
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(y)))
    assert all(np.array_equal(part, np.sort(part)) for part in parts)


@few
@given(makers, clients, labels, seeds)
def test_same_stream_same_partition(make: Callable[[int], Partitioner], m: int, y: np.ndarray, seed: int) -> None:
    first, again = make(m)(y, stream(seed)), make(m)(y, stream(seed))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("rule", [IID(4), Dirichlet(4, 1.0, 2), Shards(4), Quantity(4, 1.0, 2)])
def test_another_stream_another_partition(rule: Partitioner) -> None:
    y = np.arange(100) % 5
    assert any(not np.array_equal(a, b) for a, b in zip(rule(y, stream(0)), rule(y, stream(1)), strict=True))


@pytest.mark.parametrize("rule", [IID(4), Dirichlet(4, 1.0, 2), Shards(4), Quantity(4, 1.0, 2)])
def test_labels_are_only_read(rule: Partitioner) -> None:
    y = np.arange(100) % 5
    y.setflags(write=False)
    rule(y, stream())


@few
@given(clients, labels, seeds)
def test_iid_parts_are_equally_large(m: int, y: np.ndarray, seed: int) -> None:
    sizes = [len(part) for part in IID(m)(y, stream(seed))]
    assert max(sizes) - min(sizes) <= 1


@few
@given(st.integers(1, 4), st.sampled_from([0.3, 1.0, 10.0]), st.integers(0, 8), labels, seeds)
def test_dirichlet_gives_everyone_the_minimum(
    m: int, concentration: float, minimum: int, y: np.ndarray, seed: int
) -> None:
    parts = Dirichlet(m, concentration, minimum)(y, stream(seed))
    assert min(map(len, parts)) >= minimum


def skew(parts: list[np.ndarray], y: np.ndarray) -> float:
    """The share of a client's commonest class, averaged over clients."""
    return float(np.mean([np.bincount(y[part]).max() / len(part) for part in parts]))


def test_dirichlet_skew_falls_with_the_concentration() -> None:
    y = np.arange(2000) % 10
    found = [skew(Dirichlet(10, a, 5)(y, stream()), y) for a in (0.1, 1.0, 1000.0)]
    assert found[0] > 0.4 > found[1] > 0.2 > found[2]
    assert found[2] == pytest.approx(0.1, abs=0.03)


@few
@given(st.integers(1, 6), st.integers(1, 3), seeds)
def test_a_client_of_shards_sees_few_classes(m: int, shards: int, seed: int) -> None:
    each = 6
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(m * shards), each))
    for part in Shards(m, shards)(y, stream(seed)):
        assert len(part) == shards * each
        assert len(np.unique(y[part])) == shards


@pytest.mark.parametrize("rule", [IID(11), Dirichlet(11, minimum=0), Shards(11, 1), Quantity(11, minimum=0)])
def test_more_clients_than_samples_is_refused(rule: Partitioner) -> None:
    with refused("10 samples", "11 clients"):
        rule(np.arange(10) % 2, stream())


@pytest.mark.parametrize("m", [0, -1])
@pytest.mark.parametrize("make", [IID, Dirichlet, Shards, Quantity])
def test_no_clients_is_refused(make: Callable[[int], Partitioner], m: int) -> None:
    with refused("at least one client", str(m)):
        make(m)(np.arange(10), stream())


@pytest.mark.parametrize("make", [Dirichlet, Quantity])
def test_a_minimum_that_cannot_be_is_refused(make: Callable[..., Partitioner]) -> None:
    with refused("4 clients", "30 samples", "120", "100"):
        make(4, 1.0, minimum=30)(np.arange(100) % 5, stream())


def test_a_minimum_that_no_draw_reaches_ends_in_advice() -> None:
    with refused("Dirichlet(0.001)", "larger concentration", "smaller minimum"):
        Dirichlet(5, 0.001, minimum=18, tries=20)(np.arange(100) % 2, stream())


@pytest.mark.parametrize("concentration", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("make", [Dirichlet, Quantity])
def test_a_concentration_that_is_not_positive_is_refused(
    make: Callable[..., Partitioner], concentration: float
) -> None:
    with refused("concentration", str(concentration)):
        make(3, concentration, 1)(np.arange(100) % 5, stream())


def test_too_many_shards_are_refused() -> None:
    with refused("100 samples", "120 shards"):
        Shards(4, 30)(np.arange(100) % 5, stream())
    with refused("at least one shard", "0"):
        Shards(4, 0)(np.arange(100) % 5, stream())


@few
@given(st.lists(st.sampled_from(["anna", "bo", "c", "10", "9"]), min_size=1, max_size=60))
def test_a_column_of_ids_is_followed_exactly(ids: list[str]) -> None:
    parts = by_id(ids)
    assert set(parts) == set(ids)
    assert {k: part.tolist() for k, part in parts.items()} == {
        k: [i for i, owner in enumerate(ids) if owner == k] for k in set(ids)
    }


def test_numbers_as_ids_keep_their_order() -> None:
    assert list(by_id(np.array([10, 9, 10, 2]))) == ["2", "9", "10"]


def test_ids_in_a_matrix_are_refused() -> None:
    with refused("one dimension", "2"):
        by_id(np.zeros((3, 2)))


@few
@given(clients, st.sampled_from([1e-3, 0.1, 1.0, 100.0]), st.integers(0, 6), labels, seeds)
def test_quantity_skew_gives_everyone_the_minimum_at_the_first_draw(
    m: int, concentration: float, minimum: int, y: np.ndarray, seed: int
) -> None:
    parts = Quantity(m, concentration, minimum)(y, stream(seed))
    assert min(map(len, parts)) >= minimum
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(y)))


def test_a_minimum_that_takes_everything_leaves_nothing_to_chance() -> None:
    assert [len(part) for part in Quantity(5, 0.01, 20)(np.arange(100) % 3, stream())] == [20] * 5


def test_quantity_skew_falls_with_the_concentration() -> None:
    y = np.arange(2000) % 10

    def largest(concentration: float) -> float:
        return float(np.mean([max(map(len, Quantity(10, concentration, 5)(y, stream(s)))) for s in range(20)]))

    sizes = [largest(concentration) for concentration in (0.05, 1.0, 1000.0)]
    assert sizes[0] > 1000 > sizes[1] > 300 > sizes[2] > 200


def test_quantity_skew_leaves_the_mixture_of_classes_alone() -> None:
    y = np.repeat([0, 1], [3000, 1000])
    for part in Quantity(4, 1.0, 300)(y, stream()):
        assert np.mean(y[part] == 1) == pytest.approx(0.25, abs=0.1)


def test_quantity_skew_does_not_look_at_the_targets() -> None:
    classes, numbers = np.arange(60) % 4, np.random.default_rng(0).normal(size=(60, 2))
    first, second = (Quantity(3, 1.0, 5)(targets, stream()) for targets in (classes, numbers))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


owners = st.lists(st.sampled_from(["anna", "bo", "c", "10", "9"]), min_size=12, max_size=80)


@few
@given(owners, st.integers(0, 12))
def test_samples_are_assigned_to_their_owners(ids: list[str], minimum: int) -> None:
    counts = {owner: ids.count(owner) for owner in set(ids)}
    expected = sorted(owner for owner, count in counts.items() if count >= minimum)
    if not expected:
        with refused(f"no owner has {minimum} samples"):
            Natural(minimum=minimum)(ids)
        return
    parts = Natural(minimum=minimum)(ids)
    assert list(parts) == expected
    for owner, part in parts.items():
        assert part.tolist() == [k for k, id_ in enumerate(ids) if id_ == owner]


@few
@given(owners, st.integers(1, 5))
def test_so_many_clients_are_those_whose_ids_come_first(ids: list[str], count: int) -> None:
    everybody = Natural(minimum=1)(ids)
    if count > len(everybody):
        with refused(f"{count} clients", f"{len(everybody)} owners"):
            Natural(count, minimum=1)(ids)
        return
    some = Natural(count, minimum=1)(ids)
    assert list(some) == list(everybody)[:count]
    assert all(np.array_equal(some[owner], everybody[owner]) for owner in some)


def test_who_has_too_little_is_not_counted_among_the_first() -> None:
    ids = ["a"] * 3 + ["b"] * 10 + ["c"] * 12 + ["d"] * 9
    assert list(Natural(2, minimum=9)(ids)) == ["b", "c"]
    with refused("4 clients", "3 owners"):
        Natural(4, minimum=9)(ids)


@pytest.mark.parametrize("count", [0, -2])
def test_less_than_one_client_is_refused(count: int) -> None:
    with refused(f"{count} clients", "1 owners"):
        Natural(count, minimum=1)(["a", "a"])


def test_samples_without_owners_have_no_natural_partition() -> None:
    with refused("have no owner", "data.partition"):
        Natural()(None)


def test_numbers_as_owners_keep_their_order() -> None:
    assert list(Natural(minimum=1)(np.array([10, 9, 10, 2]))) == ["2", "9", "10"]


@few
@given(labels, st.floats(0.05, 0.95), seeds, st.booleans())
def test_training_and_test_divide_a_client(y: np.ndarray, fraction: float, seed: int, stratify: bool) -> None:
    index = np.arange(1000, 1000 + len(y))
    train, test = split_test(index, np.concatenate([np.zeros(1000, int), y]), stratify, fraction, stream(seed))
    assert sorted([*train, *test]) == index.tolist()
    assert len(test) == round(fraction * len(y))


@few
@given(labels, st.floats(0.1, 0.9), seeds)
def test_a_stratified_test_set_has_the_same_share_of_each_class(y: np.ndarray, fraction: float, seed: int) -> None:
    _, test = split_test(np.arange(len(y)), y, True, fraction, stream(seed))
    for value, count in zip(*np.unique(y, return_counts=True), strict=True):
        assert abs((y[test] == value).sum() - fraction * count) <= 1.5


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("fraction", [0.001, 0.5, 0.999])
def test_at_least_one_sample_stays_on_either_side(size: int, fraction: float) -> None:
    train, test = split_test(np.arange(size), np.zeros(size, int), True, fraction, stream())
    assert len(train) >= 1
    assert len(test) >= 1


def test_same_stream_same_test_set() -> None:
    y = np.arange(50) % 4
    first, again, other = (split_test(np.arange(50), y, True, 0.3, stream(s))[1].tolist() for s in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_a_test_fraction_outside_0_and_1_is_refused(fraction: float) -> None:
    with refused("test fraction", str(fraction)):
        split_test(np.arange(10), np.zeros(10, int), True, fraction, stream())


@few
@given(st.floats(0.05, 20), clients, labels, seeds)
def test_overlapping_clients_each_draw_equally_many_different_samples(
    concentration: float, m: int, y: np.ndarray, seed: int
) -> None:
    parts = Overlapping(m, concentration)(y, stream(seed))
    assert [len(part) for part in parts] == [len(y) // m] * m
    assert all(len(set(part.tolist())) == len(part) for part in parts)
    again = Overlapping(m, concentration)(y, stream(seed))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_overlapping_clients_share_samples_and_have_mixtures_of_their_own() -> None:
    y = np.arange(3000) % 10
    parts = Overlapping(6, 0.3)(y, stream())
    assert any(len(np.intersect1d(a, b)) > 20 for a in parts for b in parts if a is not b)
    shares = np.array([np.bincount(y[part], minlength=10) / len(part) for part in parts])
    assert shares.std(axis=0).max() > 0.1
    even = Overlapping(6, 1e6)(y, stream())
    assert np.array([np.bincount(y[part], minlength=10) / len(part) for part in even]).std(axis=0).max() < 0.03
