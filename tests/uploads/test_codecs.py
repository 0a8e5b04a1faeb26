"""What every codec promises: the same vector at both ends, known sizes, no drift in the mean, nothing but numbers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapm.core.random import torch_generator
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.uploads import Transform
from fedapm.uploads.compression import INDEX, MASK, VALUES, LowRank, TopK, Whole
from fedapm.uploads.rounding import SCALE, BFloat16, Exact, Int8

ROUNDINGS = {"exact": Exact(), "bf16": BFloat16(), "int8": Int8()}
COMPRESSIONS = {"whole": Whole(), "few": TopK(0.01), "many": TopK(0.3), "thin": LowRank(2)}
CODECS = {f"{c}, {r}": Transform(None, COMPRESSIONS[c], ROUNDINGS[r]) for c in COMPRESSIONS for r in ROUNDINGS}
FLOATS = st.floats(-1e30, 1e30) | st.floats(-1, 1)
SHAPES = st.lists(st.lists(st.integers(1, 7), max_size=3).map(tuple), min_size=1, max_size=3)


@st.composite
def vectors(draw, numbers=FLOATS) -> Vec:
    """A vector of a few tensors of any shape."""
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    return Vec(
        {
            f"t{k}": torch.tensor(
                draw(st.lists(numbers, min_size=math.prod(shape), max_size=math.prod(shape))), dtype=dtype
            ).reshape(shape)
            for k, shape in enumerate(draw(SHAPES))
        }
    )


def stream(*ids: int) -> torch.Generator:
    return torch_generator(0, "test", *ids)


def shapes(vector: Vec) -> dict:
    return {name: (tuple(t.shape), t.dtype) for name, t in vector.items()}


def farthest(a: Vec, b: Vec) -> float:
    return max((float((a[n].double() - b[n].double()).abs().max()) for n in a if a[n].numel()), default=0.0)


@pytest.mark.parametrize("name", CODECS)
@given(vector=vectors())
@settings(max_examples=15, deadline=None)
def test_a_receiver_makes_the_vector_that_the_client_keeps(name, vector):
    codec = CODECS[name]
    sent, wire = codec.send(vector, 1.0, [stream()])
    assert shapes(sent) == shapes(vector)
    assert sent.is_finite()
    assert codec.decode(Vec({n: t.clone() for n, t in wire.items()}), vector.zeros()).equal(sent) or not codec.codes
    # the same draws give the same message, and its form does not depend on what is in it
    assert codec.send(vector, 1.0, [stream()])[1].equal(wire)
    assert shapes(codec.encode(vector.zeros(), stream(1))) == shapes(wire)


@given(vector=vectors())
@settings(max_examples=25, deadline=None)
def test_a_rounded_number_is_one_of_its_neighbours(vector):
    for rounding in (BFloat16(), Int8()):
        sent, wire = Transform(None, Whole(), rounding).send(vector, 1.0, [stream()])
        for name, tensor in vector.items():
            exact = tensor.double()
            step = (
                exact.abs() * 2**-7 + 1e-38 if isinstance(rounding, BFloat16) else wire[name + SCALE].double() + 1e-38
            )
            assert bool(((sent[name].double() - exact).abs() <= step * (1 + 1e-6)).all())


@given(vector=vectors(st.integers(-127, 127).map(float)))
@settings(max_examples=15, deadline=None)
def test_what_fits_arrives_as_it_is(vector):
    assert Transform(None, Whole(), BFloat16()).send(vector, 1.0, [stream()])[0].equal(vector)
    full = Vec({**vector, "t0": torch.full_like(vector["t0"], 127.0)})
    assert Transform(None, Whole(), Int8()).send(full, 1.0, [stream()])[0]["t0"].equal(full["t0"])
    assert Transform(None, TopK(1.0)).send(vector, 1.0, [stream()])[0].equal(vector)


@pytest.mark.parametrize("rounding", [BFloat16(), Int8()])
def test_rounding_has_the_right_mean(rounding):
    exact = torch.linspace(-1, 1, 41, dtype=torch.float64) * math.pi / 3
    draws = 20_000
    many = Transform(None, Whole(), rounding).send(Vec({"x": exact.repeat(draws, 1)}), 1.0, [stream()])[0]["x"]
    step = (many - exact).abs().max()
    error = (many.mean(0) - exact).abs().max()
    assert 0 < step < 0.02
    # five standard errors of a coin with two sides a step apart
    assert error < 5 * 0.5 * 2 * step / math.sqrt(draws)


@given(vector=vectors(), keep=st.floats(0.001, 1.0))
@settings(max_examples=30, deadline=None)
def test_top_k_sends_the_largest_and_where_they_are(vector, keep):
    wire = TopK(keep).split(vector, stream())
    flat = torch.cat([t.flatten() for t in vector.values()])
    count = max(1, math.ceil(keep * vector.numel))
    assert wire[VALUES].numel() == count
    assert wire[VALUES].abs().sort().values.equal(flat.abs().sort().values[-count:])
    places = sum(t.numel() * t.element_size() for n, t in wire.items() if n != VALUES)
    assert places == min(math.ceil(vector.numel / 8), 4 * count)
    sent = TopK(keep).join(wire, vector)
    assert farthest(sent, vector) <= (float(flat.abs().sort().values[-count - 1]) if count < len(flat) else 0.0)


@pytest.mark.parametrize(("rows", "columns", "rank"), [(20, 30, 1), (40, 9, 2), (16, 16, 3)])
def test_a_matrix_of_low_rank_arrives_whole(rows, columns, rank):
    left = torch.randn(rows, rank, generator=stream(1), dtype=torch.float64)
    right = torch.randn(rank, columns, generator=stream(2), dtype=torch.float64)
    vector = Vec({"w": (left @ right).reshape(rows, columns, 1), "b": torch.ones(3, dtype=torch.float64)})
    wire = LowRank(rank).split(vector, stream())
    assert sum(t.numel() for t in wire.values()) == rank * (rows + columns) + 3
    assert farthest(LowRank(rank).join(wire, vector), vector) < 1e-12 * vector.norm()


def test_a_low_rank_is_nearly_the_best_one():
    matrix = torch.randn(30, 30, generator=stream(3), dtype=torch.float64) @ torch.diag(
        torch.tensor([3.0**-k for k in range(30)], dtype=torch.float64)
    )
    sent = LowRank(4).join(LowRank(4).split(Vec({"w": matrix}), stream()), Vec({"w": matrix}))["w"]
    best = torch.linalg.svdvals(matrix)[4:].norm()
    assert (sent - matrix).norm() < 1.2 * best


def test_sizes_are_what_was_asked_for():
    vector = Vec({"w": torch.randn(100, 80, generator=stream()), "b": torch.randn(80, generator=stream())})
    sizes = {name: codec.encode(vector, stream()).nbytes for name, codec in CODECS.items()}
    full = vector.nbytes
    assert sizes["whole, exact"] == full == 4 * 8080
    assert sizes["whole, bf16"] == full / 2
    assert sizes["whole, int8"] == full / 4 + 2 * 4
    assert sizes["few, exact"] == 81 * (4 + 4)
    assert sizes["many, int8"] == 2424 + 4 + 1010
    assert sizes["thin, bf16"] == 2 * (2 * 180 + 80)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(name, odd):
    vector = Vec({"w": torch.tensor([1.0, odd, 2.0]), "b": torch.ones(2)})
    with pytest.raises(FedapmError, match="not finite cannot be sent"):
        CODECS[name].encode(vector, stream())
    sent, wire = CODECS[name].send(vector, 1.0, [stream()])
    assert not sent.is_finite()
    assert wire.is_finite()


@pytest.mark.parametrize("rounding", ["bf16", "int8"])
def test_numbers_that_do_not_fit_are_sent_as_far_as_they_do(rounding):
    vector = Vec({"w": torch.tensor([1e300, -1e300, 1.0], dtype=torch.float64)})
    sent = Transform(None, Whole(), ROUNDINGS[rounding]).send(vector, 1.0, [stream()])[0]
    assert sent.is_finite()
    assert sent["w"][0] > 1e38
    assert sent["w"][1] < -1e38


def test_a_forged_message_stands_for_no_vector():
    vector = Vec({"w": torch.arange(100.0)})
    wire = dict(Transform(None, TopK(0.3)).encode(vector, stream()))
    marks = np.unpackbits(wire[MASK].numpy())
    more, beyond = marks.copy(), marks.copy()
    more[0] = 1
    beyond[-1], beyond[99] = 1, 0
    for forged in (more, beyond):
        with pytest.raises(FedapmError, match="coordinates, not 30 of 100"):
            Transform(None, TopK(0.3)).decode(wire | {MASK: torch.from_numpy(np.packbits(forged))}, vector)
    few = dict(Transform(None, TopK(0.02)).encode(vector, stream()))
    for forged in ([5, 5], [7, 3], [-1, 4], [4, 100]):
        with pytest.raises(FedapmError, match="does not name 2 of 100 coordinates"):
            Transform(None, TopK(0.02)).decode(few | {INDEX: torch.tensor(forged, dtype=torch.int32)}, vector)
    coded = dict(Transform(None, Whole(), Int8()).encode(vector, stream()))
    for scale in (math.nan, math.inf, -1.0):
        with pytest.raises(FedapmError, match="the scale of 'w'"):
            Transform(None, Whole(), Int8()).decode(coded | {"w" + SCALE: torch.tensor([scale])}, vector)


@given(vector=vectors(st.floats(-1e6, 1e6)), limit=st.floats(1e-3, 1e3), unit=st.floats(1e-2, 1e2))
@settings(max_examples=30, deadline=None)
def test_a_clipped_vector_is_no_longer_than_allowed(vector, limit, unit):
    sent, _ = Transform(limit).send(vector, unit, [stream()])
    assert sent.norm() / unit <= limit * (1 + 1e-6)
    if vector.norm() / unit <= limit:
        assert sent.equal(vector)
    else:
        assert farthest(sent * (vector.norm() / sent.norm()), vector) <= 1e-5 * vector.norm()
