"""Messages and states: what is sent adds up, what is kept survives a file."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapm.core.algorithm import Aggregate, State, Upload
from fedapm.core.vec import Vec
from fedapm.runs.files import read_tensors, write_tensors
from fedapm.simulation.stores.base import flatten, restore

names = st.lists(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=8), unique=True)
numbers = st.floats(-1e6, 1e6, width=32)


@st.composite
def vectors(draw, labels=None):
    labels = draw(names) if labels is None else labels
    return Vec({n: torch.tensor(draw(st.lists(numbers, min_size=0, max_size=4)), dtype=torch.float32) for n in labels})


@st.composite
def states(draw):
    fields = draw(st.lists(st.sampled_from(["u", "v", "pi", "xi", "c"]), unique=True))
    return State(**{f: draw(vectors()) if f != "xi" else draw(st.floats(0, 1)) for f in fields})


@given(weights=st.lists(st.floats(0, 10), min_size=1, max_size=6), size=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_uploads_add_up(weights, size):
    stream = torch.Generator().manual_seed(size)
    parts = [torch.randn(size, generator=stream, dtype=torch.float64) for _ in weights]
    total = Aggregate.of(Upload({"du": Vec({"a": p})}, w) for p, w in zip(parts, weights, strict=True))
    torch.testing.assert_close(total["du"]["a"], torch.stack(parts).sum(0))
    assert total.weight == pytest.approx(math.fsum(weights))
    assert total.count == len(weights)


def test_nothing_adds_up_to_nothing():
    total = Aggregate.of([Upload(), Upload()])
    assert dict(total.sums) == {}
    assert total.count == 2
    assert Upload().nbytes == 0


@given(state=states())
@settings(max_examples=40, deadline=None)
def test_a_state_survives_a_file(state, tmp_path_factory):
    tensors, note = flatten("client/3", state)
    path = tmp_path_factory.mktemp("state") / "s.safetensors"
    write_tensors(path, tensors, {"state": note})
    stored, about = read_tensors(path)
    again = State(**restore("client/3", stored, about["state"]))
    assert list(again) == list(state)
    for field, value in state.items():
        if isinstance(value, Vec):
            assert again[field].names == value.names
            assert again[field].equal(value)
        else:
            assert again[field] == value


@given(state=states())
@settings(max_examples=20, deadline=None)
def test_bytes_are_those_of_the_vectors_and_eight_for_each_number(state):
    floats = sum(not isinstance(v, Vec) for v in state.values())
    assert state.nbytes == 8 * floats + 4 * sum(v.numel for v in state.vectors.values())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_seen_wherever_it_hides(bad):
    good = Vec({"a": torch.ones(2)})
    poisoned = Vec({"a": torch.tensor([1.0, bad])})
    assert State(u=good, xi=0.1).is_finite()
    assert not State(u=good, v=poisoned).is_finite()
    assert not State(u=good, xi=bad).is_finite()
    assert not Upload({"du": poisoned}).is_finite()
    assert not Upload({"du": good}, weight=bad).is_finite()


def test_a_state_is_replaced_not_changed():
    before = State(u=Vec({"a": torch.zeros(2)}), xi=1.0)
    after = before.replace(xi=0.5)
    assert (before.xi, after.xi) == (1.0, 0.5)
    assert after.u is before.u
    with pytest.raises(AttributeError, match="the state has no 'w'; it has u, xi"):
        _ = before.w
