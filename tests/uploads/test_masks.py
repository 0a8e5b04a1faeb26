"""Masks: the sum is exact, a single message says nothing, and nobody masks for groups that would give a client away."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapm.core.algorithm import NUMBERS, Upload
from fedapm.core.vec import Vec, total
from fedapm.errors import FedapmError
from fedapm.simulation.engines.processes import ProcessEngine
from fedapm.simulation.engines.vectorized import VectorizedEngine
from fedapm.uploads import Transform, UploadSettings
from fedapm.uploads.masks.fixed_point import FixedPoint
from fedapm.uploads.masks.groups import ANSWERS, KEPT, Answer, Guard, may_follow, part_of
from fedapm.uploads.masks.keys import MaskKey
from fedapm.uploads.masks.streams import Group, added
from tests.helpers.unit import refused
from tests.uploads.small import SENDING, problem_of, run, sending

MASK = {"mask": True}
POINT = FixedPoint(2.0**-20, 8.0, 32)


def group_of(count: int, round: int = 1, nonce: str = "n") -> tuple[Group, dict[str, MaskKey]]:
    keys = {f"client {k}": MaskKey() for k in range(count)}
    return Group("run", round, nonce, {client: key.public for client, key in keys.items()}), keys


def wires(count: int, bits: int = 32, numel: int = 50) -> dict[str, Vec]:
    draw, kind = np.random.default_rng(count), {32: torch.int32, 64: torch.int64}[bits]
    return {
        f"client {k}": Vec(
            {
                "change/w": torch.from_numpy(draw.integers(-100, 101, (numel, 2))).to(kind),
                "change/b": torch.from_numpy(draw.integers(-100, 101, 3)).to(kind),
                f"{NUMBERS}/rho": torch.tensor([0.5], dtype=torch.float64),
            }
        )
        for k in range(count)
    }


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_masks_cancel_in_the_sum_and_in_no_part_of_it(count, bits):
    group, keys = group_of(count)
    sent = wires(count, bits)
    masked = {client: group.masked(wire, client, keys[client]) for client, wire in sent.items()}
    found = added([*masked.values()])
    assert set(found) == {"change/w", "change/b"}
    for name, tensor in found.items():
        assert torch.equal(tensor, sum(wire[name] for wire in sent.values()))
    for name in ("change/w", "change/b"):
        assert all(masked[client][name].dtype == wire[name].dtype for client, wire in sent.items())
        for without in sent if count > 2 else ():
            part = added([wire for client, wire in masked.items() if client != without])
            assert not torch.equal(part[name], sum(w[name] for client, w in sent.items() if client != without))
    assert all(wire[f"{NUMBERS}/rho"].item() == 0.5 for wire in masked.values())


@given(st.lists(st.floats(-8, 8, width=32), min_size=3, max_size=3), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_sums_are_the_unmasked_ones_within_the_step(values, seed):
    group, keys = group_of(3)
    exact = [torch.tensor([value], dtype=torch.float64) for value in values]
    stream = torch.Generator().manual_seed(seed)
    coded = [POINT.encode("x", tensor, stream)["x"] for tensor in exact]
    sent = [group.masked(Vec({"x": c}), client, keys[client]) for client, c in zip(keys, coded, strict=True)]
    found = POINT.decode(added(sent), torch.float64)["x"].item()
    assert found == sum(POINT.decode({"x": c}, torch.float64)["x"].item() for c in coded)
    assert abs(found - math.fsum(values)) <= 3 * POINT.step


def test_rounding_is_right_in_the_mean_and_cut_off_at_the_range():
    value, draws = torch.full((20_000,), 0.3 * POINT.step, dtype=torch.float64), torch.Generator().manual_seed(1)
    coded = POINT.encode("x", value, draws)["x"]
    assert coded.unique().tolist() == [0, 1]
    assert abs(coded.double().mean().item() - 0.3) < 4 * math.sqrt(0.21 / 20_000)
    far = torch.tensor([1e30, -1e30, 8.1, 0.0])
    assert POINT.decode(POINT.encode("x", far, None), torch.float32)["x"].tolist() == [8.0, -8.0, 8.0, 0.0]
    assert POINT.room == 128


@pytest.mark.parametrize("bits", [32, 64])
def test_each_masked_message_is_uniform(bits):
    """A message of zeros: all that is seen is the mask."""
    group, keys = group_of(3)
    for client, key in keys.items():
        wire = Vec({"x": torch.zeros(40_000, dtype={32: torch.int32, 64: torch.int64}[bits])})
        seen = np.frombuffer(group.masked(wire, client, key)["x"].numpy().tobytes(), np.uint8)
        counts = np.bincount(seen, minlength=256)
        square = float(((counts - seen.size / 256) ** 2 / (seen.size / 256)).sum())
        # χ² with 255 degrees of freedom has mean 255 and deviation 22.6
        assert abs(square - 255) < 6 * 22.6
        bit = np.unpackbits(seen)
        assert abs(float(bit.mean()) - 0.5) < 6 * 0.5 / math.sqrt(bit.size)
        assert abs(np.corrcoef(seen[:-1], seen[1:])[0, 1]) < 6 / math.sqrt(seen.size)


def test_another_group_nonce_round_or_run_has_other_masks():
    group, keys = group_of(3)
    zero = Vec({"x": torch.zeros(8, dtype=torch.int32)})
    others = [
        Group("run", 1, "n", {**group.keys, "client 9": MaskKey().public}),
        Group("run", 1, "m", group.keys),
        Group("run", 2, "n", group.keys),
        Group("nur", 1, "n", group.keys),
        group,
    ]
    seen = [tuple(other.masked(zero, "client 0", keys["client 0"])["x"].tolist()) for other in others]
    assert len({*seen}) == len(seen)
    assert seen[-1] == tuple(group.masked(zero, "client 0", keys["client 0"])["x"].tolist())


def test_who_was_told_another_key_spoils_the_sum_and_it_is_seen():
    group, keys = group_of(3)
    forged = Group("run", 1, "n", {**group.keys, "client 2": MaskKey().public})
    sent = {client: Vec({"change/w": torch.ones(200, dtype=torch.int32)}) for client in keys}
    masked = [group.masked(sent[c], c, keys[c]) for c in ("client 1", "client 2")]
    masked += [forged.masked(sent["client 0"], "client 0", keys["client 0"])]
    method = sending("fedapm", MASK)
    with refused("beyond what they can add up to"):
        method.opened(added(masked), 3, {"change": Vec({"w": torch.zeros(200)})})
    with refused("not in the group with its own key"):
        group.masked(sent["client 0"], "client 0", MaskKey())
    with refused("nothing secret"):
        keys["client 0"].secret(bytes(32))
    with refused("32 bytes, not 3"):
        MaskKey(b"abc")
    again = MaskKey(keys["client 0"].private)
    assert again.public == keys["client 0"].public
    assert again.secret(keys["client 1"].public) == keys["client 1"].secret(again.public)


def test_a_part_of_a_group_leaves_out_as_many_as_the_threshold():
    draw, group = np.random.default_rng(0), list("abcdefghij")
    part = part_of(group, group[1:], 3, draw)
    assert len(part) == 7
    assert "a" not in part
    assert part == sorted(part)
    assert may_follow(group, part, 3)
    assert len(part_of(group, group[4:], 3, draw)) == 6
    assert part_of(group, group[5:], 3, draw) == []  # half of them: two such parts need have nobody in common
    assert part_of(list("abc"), ["a", "b"], 2, draw) == []
    assert part_of(list("abcde"), list("abcd"), 2, draw) != []
    for second in ("abcdefghij", "abcdefgh", "abc", "abcdefgx"):
        assert not may_follow(group, second, 3), second


@given(st.integers(2, 4), st.integers(4, 14), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_whatever_a_server_asks_for_no_sum_over_fewer_than_the_threshold_is_told(threshold, size, random):
    """Clients that are in the same completed groups cannot be told apart; there are always enough of them."""
    clients = [str(k) for k in range(size)]
    guards = dict.fromkeys(clients, Guard())
    completed: set[frozenset[str]] = set()
    asked = [frozenset(clients)]
    for number in range(12):
        within = sorted(random.choice(asked))
        asked.append(frozenset(random.sample(within, random.randint(1, len(within)))))
        answered = True
        for client in asked[-1]:
            try:
                guards[client] = guards[client].admit(1, Answer(asked[-1], f"{number}", "m"), threshold)
            except FedapmError:
                answered = False
        completed |= {asked[-1]} if answered else set()
    alike = Counter(tuple(client in group for group in completed) for client in clients)
    assert all(count >= threshold for groups, count in alike.items() if any(groups))


def test_a_client_masks_once_for_a_group_and_once_for_a_part():
    whole, part = frozenset("abcdefg"), frozenset("abcd")
    guard = Guard().admit(4, Answer(whole, "1", "x"), 3)
    assert guard.admit(4, Answer(whole, "1", "x"), 3) is guard  # the same message again
    with refused("one mask hides one message"):
        guard.admit(4, Answer(whole, "1", "y"), 3)
    with refused("one mask hides one message"):
        guard.admit(4, Answer(part, "1", "x"), 3)
    with refused("2 clients", "at least 3"):
        guard.admit(5, Answer(frozenset("ab"), "1", "x"), 3)
    with refused("fewer than 3"):
        guard.admit(4, Answer(frozenset("abcdef"), "2", "x"), 3)
    again = guard.admit(4, Answer(part, "2", "x"), 3)
    again = again.admit(4, Answer(whole, "3", "x"), 3)
    with refused("masked for other clients already"):
        again.admit(4, Answer(frozenset("abce"), "4", "x"), 3)
    assert Guard.read(again.note()) == again
    for number in range(ANSWERS - 3):
        again = again.admit(4, Answer(whole, f"more {number}", "x"), 3)
    with refused("too often"):
        again.admit(4, Answer(whole, "once more", "x"), 3)
    for round in range(5, 5 + KEPT):
        again = again.admit(round, Answer(whole, "1", "x"), 3)
    assert len(again.rounds) == KEPT
    with refused("too long ago"):
        again.admit(4, Answer(part, "9", "x"), 3)


@pytest.mark.parametrize("name", [name for name in SENDING if name != "fedapm-paper"])
def test_a_simulation_under_masks_is_the_plain_one_within_the_step(name):
    """Every method, also those that weigh clients; the sums of masked messages are those of the rounded ones."""
    masked, plain = run(sending(name, MASK), 3)[0], run(sending(name, {}), 3)[0]
    for field, vector in plain.server.vectors.items():
        for part, tensor in vector.items():
            assert float((masked.server.vectors[field][part] - tensor).abs().max()) < 2000 * POINT.step, (field, part)


def test_engines_agree_under_masks():
    method = sending("fedapm", MASK)
    one = run(method, 3)[0].server
    for kind in (ProcessEngine, VectorizedEngine):
        other = run(method, 3, kind=kind)[0].server
        assert all(vector.equal(other.vectors[name]) for name, vector in one.vectors.items()), kind


def test_clients_clip_around_the_last_mean_themselves():
    settings = {"aggregate": "centered-clipping", "clip": 0.05}
    masked, plain = run(sending("fedapm", {**settings, **MASK}), 3)[0], run(sending("fedapm", settings), 3)[0]
    for field, vector in plain.server.vectors.items():
        for part, tensor in vector.items():
            assert float((masked.server.vectors[field][part] - tensor).abs().max()) < 2000 * POINT.step, (field, part)


def test_the_sum_of_a_round_is_the_sum_of_the_rounded_messages():
    method = sending("scaffold", MASK)
    problem = problem_of(method)
    like = {"du": problem.u0, "dc": problem.u0}
    stream = torch.Generator().manual_seed(0)
    uploads = []
    for weight in (1.0, 2.0, 0.5):
        sums = {n: v.map(lambda t: torch.randn(t.shape, generator=stream, dtype=t.dtype)) for n, v in like.items()}
        sent = {n: method.method.transform.send(v, 1.0, [stream]) for n, v in sums.items()}
        wire = Vec({f"{n}/{part}": t for n, (_, coded) in sent.items() for part, t in coded.items()})
        uploads.append(Upload({n: arrived for n, (arrived, _) in sent.items()}, weight, wire=wire))
    found = method.aggregate(uploads)
    assert (found.weight, found.count) == (3.5, 3)
    for name in like:
        assert found[name].equal(total(upload.sums[name] for upload in uploads))
    assert method.aggregate([]).count == 0


@pytest.mark.parametrize(
    ("given", "mentions"),
    [
        ({"mask_step": 0.1}, ["upload.mask_step", "mask = true"]),
        ({"mask": True, "compress": "top-k"}, ["upload.compress", "upload.mask"]),
        ({"mask": True, "round_to": "int8"}, ["upload.round_to", "upload.mask"]),
        ({"mask": True, "mask_range": 1e-9}, ["mask_range", "mask_step"]),
        ({"mask": True, "mask_range": 1e30}, ["mask_range", "mask_step"]),
        ({"mask": True, "mask_range": 1000.0}, ["32 bits", "mask_bits = 64"]),
        ({"mask": True, "aggregate": "trimmed-mean"}, ["upload.aggregate", "centered-clipping"]),
        ({"mask": True, "norm_limit": 5.0}, ["upload.norm_limit", "upload.mask"]),
        ({"mask": True, "mask_threshold": 1}, ["upload.mask_threshold", "2"]),
    ],
)
def test_settings_that_make_no_sense_are_refused(given, mentions):
    with pytest.raises(ValueError, match="upload") as error:
        UploadSettings(**given)
    assert all(mention in str(error.value) for mention in mentions)


def test_what_masks_cannot_carry_is_refused():
    with refused("balanced", "upload.mask"):
        sending("fedapm", MASK, rho="balanced")
    with refused("sends nothing"):
        sending("local", MASK)
    method = sending("fedapm", MASK)
    with refused("2 clients", "mask_threshold = 3"):
        method.check(2)
    with refused("room for 128", "mask_bits = 64"):
        method.check(129)
    assert sending("fedapm", {**MASK, "mask_bits": 64}).check(10**6) is None


def test_a_bound_holds_after_rounding():
    """Every number may be moved by nearly a step, so the vector is shortened a little more than to the bound."""
    step, stream = 1e-3, torch.Generator().manual_seed(0)
    transform = Transform(0.05, rounding=FixedPoint(step, 8.0, 32))
    for scale in (1e-3, 1.0, 1e3):
        wanted = Vec({"w": scale * torch.randn(400, generator=stream, dtype=torch.float64)})
        assert transform.send(wanted, 1.0, [stream])[0].norm() <= 0.05
    with refused("upload.mask_step", "smaller step"):
        Transform(0.01, rounding=FixedPoint(step, 8.0, 32)).send(wanted, 1.0, [stream])
