"""Messages that are clipped, compressed and rounded: a deployment gives what one process gives, whatever is lost."""

import math

import pytest
import torch

from fedapm.flower.client.versions import Versions
from fedapm.flower.transport import codec
from fedapm.uploads.compression import MASK
from tests.flower.cases import CLIENTS, Case, dropped
from tests.flower.grid import Carried, lost
from tests.flower.invariant import assert_as_in_one_process, checked, in_round, selected
from tests.flower.test_lost_state import early, losing
from tests.helpers.unit import refused

ROUNDS = 6
FEW = {"clip": 1.0, "compress": "top-k", "keep": 0.2, "round_to": "int8"}
KEEPING = [
    ("fedapm", FEW),
    ("fedapm", {"compress": "low-rank", "rank": 1, "round_to": "bf16"}),
    ("fedapm-paper", FEW),
    ("fedadmm", {"round_to": "int8"}),
    ("scaffold", {"compress": "top-k", "keep": 0.05}),
]


def failing(case: Case):
    """Every reply comes twice; in round 2 one is lost, in round 4 another comes a round too late."""
    gone, slow = selected(case, 2)[0], selected(case, 4)[-1]
    late: list[Carried] = []

    def fate(carried: Carried):
        if in_round(2, gone)(carried):
            return [lost(carried)]
        if in_round(4, slow)(carried):
            late.append(carried)
            return []
        if late and carried.asked.get("round") == 4 and carried.client == slow:
            old = late.pop()
            return [old.reply, carried.reply]
        return [carried.reply, carried.reply]

    return fate, {2: [CLIENTS.index(gone)], 4: [CLIENTS.index(slow)]}


@pytest.mark.parametrize(("name", "upload"), [*KEEPING, ("fedalt", FEW)])
def test_lost_late_and_repeated_replies(tmp_path, monkeypatch, name, upload):
    more = {"algorithm": {"name": name, "max_epochs": 2}} if name == "fedapm-paper" else {}
    flower = {"timeout": 2.0, "retries": 0}
    case = Case.of(tmp_path, name, upload=upload, engine={"rounds": ROUNDS}, flower=flower, **more)
    case.grid.fate, missed = failing(case)
    if name == "fedalt":  # its server holds no mean
        records = case.serve()
    else:
        with checked(case, monkeypatch) as seen:
            records = case.serve()
        assert seen == [*range(ROUNDS + 1)]
    assert dropped(records) == missed
    assert_as_in_one_process(case, records)


def test_what_goes_over_the_wire_is_what_the_records_say(tmp_path):
    case = Case.of(tmp_path, upload=FEW, engine={"rounds": 2})
    records = case.serve()
    replies = [c.answered() for c in case.grid.carried if c.trains == 1]
    sizes = [sum(t.numel() * t.element_size() for t in tensors.values()) + 8 for _, tensors in replies]
    assert records[1]["bytes_up"] == sum(sizes)
    plain = Case.of(tmp_path / "plain", engine={"rounds": 2}).serve()[1]["bytes_up"]
    assert records[1]["bytes_up"] < plain / 20
    assert {t.dtype for t in replies[0][1].values()} == {torch.int8, torch.uint8, torch.float32, torch.float64}


def test_a_message_that_is_sent_again_is_the_same(tmp_path):
    case = Case.of(tmp_path, upload=FEW, engine={"rounds": 1})
    case.serve()
    trained = next(c for c in case.grid.carried if c.trains == 1)
    versions = Versions(case.grid.state / str(trained.node), case.saved().ledger.run, trained.client)
    stored = versions.load(versions.ids()[-1]).upload.wire
    _, sent = trained.answered()
    assert {f"sums/wire/{n}": t.tolist() for n, t in stored.items()} == {n: t.tolist() for n, t in sent.items()}


@pytest.mark.parametrize(
    ("part", "forged", "said"),
    [
        (f"change/{MASK}", lambda t: torch.full_like(t, 255), "coordinates"),
        ("change/values|scale", lambda t: torch.full_like(t, math.inf), "not finite"),
        ("change/values|scale", lambda t: -t - 1, "which is none"),
        ("change/values", lambda t: t[1:], "of shape"),
        ("change/values", lambda t: t.float(), "torch.float32"),
    ],
)
def test_a_forged_message_is_refused_and_the_run_goes_on(tmp_path, part, forged, said):
    case = Case.of(tmp_path, upload=FEW, engine={"rounds": 2})
    bad = selected(case, 2)[0]

    def fate(carried: Carried):
        if not in_round(2, bad)(carried):
            return None
        note, tensors = carried.answered()
        label = f"sums/wire/{part}"
        return [carried.replaced(note, tensors | {label: forged(tensors[label])})]

    case.grid.fate = fate
    records = case.serve()
    assert dropped(records) == {2: [CLIENTS.index(bad)]}
    assert any(said in what for _, client, what in case.events() if client == bad)
    assert_as_in_one_process(case, records)


def test_a_lost_client_is_taken_back_with_what_was_really_counted(tmp_path, monkeypatch):
    case = Case.of(tmp_path, upload=FEW, engine={"rounds": 6}, flower={"lost": "readmit"})
    who = early(case)
    losing(case, who, after=2)
    with checked(case, monkeypatch) as seen:
        case.serve()
    assert seen == [*range(7)]
    assert any("begins anew" in what for _, client, what in case.events() if client == who)


@pytest.mark.parametrize("name", ["fedapm", "fedapm-paper", "scaffold"])
def test_a_broadcast_in_changes(tmp_path, monkeypatch, name):
    more = {"algorithm": {"name": name, "max_epochs": 2}} if name == "fedapm-paper" else {}
    flower, upload = {"timeout": 2.0, "retries": 0}, {"broadcast": "int8", "round_to": "bf16"}
    case = Case.of(tmp_path, name, upload=upload, engine={"rounds": ROUNDS}, flower=flower, **more)
    case.grid.fate, missed = failing(case)
    with checked(case, monkeypatch) as seen:
        records = case.serve()
    assert seen == [*range(ROUNDS + 1)]
    assert dropped(records) == missed
    assert_as_in_one_process(case, records)
    asked = [c for c in case.grid.carried if "down" in c.asked]
    sizes = {c.asked.get("base") is None: codec.size(c.message.content) for c in asked}
    assert sizes[False] < sizes[True] - 0.8 * case.saved().state.server.u.nbytes
    # whole are the first, and those after an answer that did not come
    whole = [(c.asked["round"], c.client) for c in asked if c.asked.get("base") is None]
    lost_in = {(round, CLIENTS[k]) for round, clients in missed.items() for k in clients}
    assert set(whole) == {(0, client) for client in CLIENTS} | lost_in


def test_a_node_that_lost_the_broadcast_before_gets_the_next_one_whole(tmp_path):
    case = Case.of(tmp_path, upload={"broadcast": "bf16"}, engine={"rounds": 5})
    who = selected(case, 3)[0]
    folder = case.grid.state / str(100 + CLIENTS.index(who))

    def fate(carried: Carried):
        if carried.client == who and carried.asked.get("round") == 1:
            for path in folder.rglob("broadcast.safetensors"):
                path.unlink()
        return

    case.grid.fate = fate
    records = case.serve()
    assert dropped(records) == {3: [CLIENTS.index(who)]}
    assert any("broadcast.safetensors is missing" in what for _, client, what in case.events() if client == who)
    assert_as_in_one_process(case, records)


@pytest.mark.parametrize(
    ("forged", "said"),
    [
        (lambda n, t: t.to(torch.float32), "as"),
        (lambda n, t: t * math.nan if t.is_floating_point() else t, "which is none"),
    ],
)
def test_a_forged_change_is_refused_by_the_node(tmp_path, forged, said):
    case = Case.of(tmp_path, upload={"broadcast": "int8"}, engine={"rounds": 3})
    who = selected(case, 3)[0]
    original = case.grid._run

    def run(message):
        asked, tensors = codec.decode(message.content)
        if asked.get("client") == who and asked.get("round") == 2:
            message.content = codec.records(asked, codec.block({n: forged(n, t) for n, t in tensors.items()}))
        original(message)

    case.grid._run = run
    records = case.serve()
    assert CLIENTS.index(who) in dropped(records)[3]
    assert any(said in what for round, client, what in case.events() if (round, client) == (3, who))


def test_a_method_without_messages_is_refused_before_anybody_is_called(tmp_path):
    with refused("Local only sends nothing", "[upload]"):
        Case.of(tmp_path, "local", upload={"round_to": "int8"}).serve()
