"""Vectors of named tensors compute what plain torch computes and never change."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedapm.core.vec import Vec, mean, total
from tests.helpers.unit import few, refused

names = st.lists(st.sampled_from(["w", "b", "body.weight", "head.0.bias"]), unique=True, max_size=4)
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
numbers = st.floats(-1e3, 1e3, allow_nan=False, width=32)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Vec, Vec]:
    """Two vectors of the same names and shapes."""
    layout = {name: draw(shapes) for name in draw(names)}
    made = []
    for _ in range(2):
        stream = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
        scale = draw(st.sampled_from([1e-3, 1.0, 1e3]))
        made.append(Vec({n: scale * torch.randn(shape, generator=stream) for n, shape in layout.items()}))
    return made[0], made[1]


def flat(vector: Vec) -> torch.Tensor:
    return torch.cat([torch.zeros(0), *(t.reshape(-1) for t in vector.values())])


@few
@given(pairs(), numbers)
def test_arithmetic_is_that_of_one_long_tensor(pair: tuple[Vec, Vec], factor: float) -> None:
    a, b = pair
    assert torch.equal(flat(a + b), flat(a) + flat(b))
    assert torch.equal(flat(a - b), flat(a) - flat(b))
    assert torch.equal(flat(-a), -flat(a))
    assert torch.equal(flat(factor * a), factor * flat(a))
    assert torch.equal(flat(a * factor), flat(factor * a))
    assert torch.equal(flat(a / 3), flat(a) / 3)


@few
@given(pairs())
def test_inner_product_and_norms_agree_with_double_precision(pair: tuple[Vec, Vec]) -> None:
    a, b = pair
    x, y = flat(a).double(), flat(b).double()
    slack = 1e-9 * float(x.norm() * y.norm()) + 1e-30
    assert a @ b == pytest.approx(float(x @ y), abs=slack)
    assert a.sq() == pytest.approx(float(x @ x))
    assert a.norm() == pytest.approx(float(x.norm()))


def test_inner_product_is_summed_in_double_precision() -> None:
    long = Vec({"w": torch.full((2**14,), 0.1), "b": torch.tensor([1e4])})
    exact = 2**14 * float(torch.tensor(0.1).double()) ** 2 + 1e8
    assert long.sq() == pytest.approx(exact, rel=1e-14)


@few
@given(pairs())
def test_operands_are_never_changed(pair: tuple[Vec, Vec]) -> None:
    a, b = pair
    before = a.clone(), b.clone()
    for result in (a + b, a - b, -a, 2 * a, a / 2, a.zeros(), a.clone(), a.map(torch.exp)):
        for tensor in result.values():
            tensor.fill_(7)
    a @ b
    assert a.equal(before[0])
    assert b.equal(before[1])


def test_later_changes_of_the_dict_do_not_reach_the_vector() -> None:
    tensors = {"w": torch.ones(2)}
    vector = Vec(tensors)
    tensors["b"] = torch.zeros(1)
    assert vector.names == ("w",)


@pytest.mark.parametrize("operation", [lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a @ b])
def test_vectors_of_different_names_do_not_combine(operation) -> None:
    a = Vec({"body.weight": torch.ones(2), "head.weight": torch.ones(2)})
    b = Vec({"body.weight": torch.ones(2), "heads.weight": torch.ones(2)})
    with refused("'head.weight'", "closest: 'heads.weight'"):
        operation(a, b)


def test_a_vector_that_lacks_a_name_does_not_combine_either_way_round() -> None:
    longer, shorter = Vec({"w": torch.ones(2), "zz": torch.ones(1)}), Vec({"w": torch.ones(2)})
    with refused("'zz'"):
        longer + shorter
    with refused("'zz'"):
        shorter + longer


def test_order_of_names_does_not_matter_to_arithmetic() -> None:
    a = Vec({"w": torch.tensor([1.0]), "b": torch.tensor([2.0])})
    b = Vec({"b": torch.tensor([20.0]), "w": torch.tensor([10.0])})
    assert (a + b).equal(Vec({"w": torch.tensor([11.0]), "b": torch.tensor([22.0])}))
    assert a @ b == 50.0


def test_side_by_side() -> None:
    u, v = Vec({"w": torch.ones(2)}), Vec({"b": torch.zeros(1)})
    assert (u | v).names == ("w", "b")
    assert (u | v).only(u).equal(u)
    with refused("'w'"):
        u | Vec({"w": torch.zeros(2)})


def test_only_and_without_divide_a_vector() -> None:
    vector = Vec({n: torch.tensor([float(k)]) for k, n in enumerate(["w", "b", "c"])})
    assert vector.only(["c", "w"]).names == ("c", "w")
    assert vector.without(["b"]).names == ("w", "c")
    assert (vector.only(["b"]) | vector.without(["b"])).equal(vector)
    assert vector.without(["nothing of the kind"]).equal(vector)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_coordinate_makes_it_not_finite(bad: float) -> None:
    good = Vec({"w": torch.zeros(3, 3), "count": torch.tensor(5)})
    assert good.is_finite()
    spoilt = torch.zeros(3, 3)
    spoilt[1, 2] = bad
    assert not Vec({"w": spoilt, "count": torch.tensor(5)}).is_finite()


def test_bytes_and_coordinates_count_every_kind_of_number() -> None:
    vector = Vec({"single": torch.zeros(2, 3), "double": torch.zeros(4, dtype=torch.float64), "steps": torch.tensor(1)})
    assert vector.numel == 6 + 4 + 1
    assert vector.nbytes == 6 * 4 + 4 * 8 + 8


def test_equal_sees_names_shapes_and_values() -> None:
    vector = Vec({"w": torch.zeros(2)})
    assert vector.equal(Vec({"w": torch.zeros(2)}))
    assert not vector.equal(Vec({"w": torch.zeros(2) + 1e-30}))
    assert not vector.equal(Vec({"w": torch.zeros(1, 2)}))
    assert not vector.equal(Vec({"b": torch.zeros(2)}))
    assert not vector.equal(Vec())


def test_the_empty_vector() -> None:
    empty = Vec()
    assert len(empty) == empty.numel == empty.nbytes == 0
    assert not empty
    assert empty.norm() == empty @ empty == 0.0
    assert empty.is_finite()
    assert (empty + empty).equal(empty)
    full = Vec({"w": torch.ones(1)})
    assert (empty | full).equal(full)
    with refused("'w'"):
        empty + full


def test_total_and_mean() -> None:
    vectors = [Vec({"w": torch.tensor([float(k), 1.0])}) for k in range(4)]
    assert total(vectors).equal(Vec({"w": torch.tensor([6.0, 4.0])}))
    assert mean(vectors).equal(Vec({"w": torch.tensor([1.5, 1.0])}))
    assert total([]).equal(Vec())
    assert vectors[0].equal(Vec({"w": torch.tensor([0.0, 1.0])})), "adding up must leave the first one alone"
