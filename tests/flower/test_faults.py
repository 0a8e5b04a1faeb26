"""Whatever is lost, repeated, late or spoilt: the server's state is that of the answers it accepted, each once."""

from collections import Counter

import pytest
import torch
from flwr.app import Message

from fedapm.errors import Diverged, FedapmError
from fedapm.flower import client_app
from fedapm.flower.problem import NodeProblem
from fedapm.models import DigitsNet
from tests.flower.cases import CLIENTS, Case, dropped, same
from tests.flower.grid import Carried, lost
from tests.flower.invariant import REMEMBERING, assert_as_in_one_process, checked, in_round, selected
from tests.helpers.unit import refused


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_run_without_faults_keeps_the_mean(tmp_path, monkeypatch, name):
    case = Case.of(tmp_path, name, engine={"rounds": 3})
    with checked(case, monkeypatch) as seen:
        case.serve()
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize("name", REMEMBERING)
@pytest.mark.parametrize("how", ["said", "silent"])
def test_lost_replies(tmp_path, monkeypatch, name, how):
    case = Case.of(tmp_path, name, engine={"rounds": 4})
    first, second = selected(case, 2)[0], selected(case, 3)[-1]

    def fate(carried: Carried):
        if in_round(2, first)(carried) or in_round(3, second)(carried):
            return [lost(carried)] if how == "said" else []
        return None

    case.grid.fate = fate
    with checked(case, monkeypatch):
        records = case.serve()
    assert dropped(records) == {2: [CLIENTS.index(first)], 3: [CLIENTS.index(second)]}
    assert_as_in_one_process(case, records)
    if how == "said":
        assert (2, first, "no reply: the node is gone") in case.events()


@pytest.mark.parametrize("name", REMEMBERING)
def test_replies_that_come_twice(tmp_path, monkeypatch, name):
    case = Case.of(tmp_path, name, engine={"rounds": 3})
    case.grid.fate = lambda carried: [carried.reply, carried.reply]
    with checked(case, monkeypatch):
        records = case.serve()
    assert dropped(records) == {}
    assert_as_in_one_process(case, records)


@pytest.mark.parametrize("name", REMEMBERING)
def test_replies_that_come_too_late(tmp_path, monkeypatch, name):
    """A reply of round 2 arrives in round 3, once as itself and once as if it answered the newer question."""
    case = Case.of(tmp_path, name, flower={"timeout": 2.0, "retries": 0}, engine={"rounds": 3})
    slow = selected(case, 2)[0]
    late: list[Carried] = []

    def fate(carried: Carried):
        if in_round(2, slow)(carried):
            late.append(carried)
            return []
        if late and carried.asked.get("round") == 2 and carried.client == slow:
            old = late.pop()
            forged = Message(old.reply.content, reply_to=carried.message)
            return [old.reply, forged, carried.reply]
        return None

    case.grid.fate = fate
    with checked(case, monkeypatch):
        records = case.serve()
    assert not late
    assert records[2]["dropped"] == [CLIENTS.index(slow)]
    assert_as_in_one_process(case, records)


def test_who_is_asked_twice_answers_the_same_and_counts_once(tmp_path, monkeypatch):
    """The first replies of round 2 are held back until the round is announced again."""
    case = Case.of(tmp_path, flower={"timeout": 2.0, "retries": 2, "minimum": 3})
    held: list[Carried] = []
    trained: Counter[tuple[int, int]] = Counter()
    original = NodeProblem.task

    def counted(self, client, round):
        trained[self.position, round] += 1
        return original(self, client, round)

    monkeypatch.setattr(NodeProblem, "task", counted)

    def fate(carried: Carried):
        if carried.trains == 2:
            held.append(carried)
            if len(held) <= 3:
                return []
            return [held[len(held) - 4].reply, carried.reply]
        return None

    case.grid.fate = fate
    with checked(case, monkeypatch):
        records = case.serve()
    assert len(held) == 6
    assert set(trained.values()) == {1}
    for before, after in zip(held[:3], held[3:], strict=True):
        assert before.answered()[0] == after.answered()[0]
        first, second = before.answered()[1], after.answered()[1]
        assert all(torch.equal(first[n], second[n]) for n in first)
    assert dropped(records) == {}
    assert_as_in_one_process(case, records)
    assert any("announced again" in what for _, _, what in case.events())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", REMEMBERING)
def test_replies_that_are_no_numbers_are_named_and_left_out(tmp_path, monkeypatch, name, bad):
    case = Case.of(tmp_path, name, engine={"rounds": 3})
    who = selected(case, 2)[1]

    def fate(carried: Carried):
        if not in_round(2, who)(carried):
            return None
        note, tensors = carried.answered()
        next(iter(tensors.values())).view(-1)[0] = bad
        return [carried.replaced(note, tensors)]

    case.grid.fate = fate
    with checked(case, monkeypatch):
        records = case.serve()
    assert dropped(records) == {2: [CLIENTS.index(who)]}
    assert (2, who, "its update is not finite") in case.events()
    assert_as_in_one_process(case, records)


def test_a_client_with_another_shared_shape_is_refused_by_name(tmp_path, monkeypatch):
    case = Case.of(tmp_path)
    usual, other = (
        case.grid.app,
        client_app(
            data=lambda name: case.data[case.data.position(name)],
            model=lambda: DigitsNet(width=17, features=8).double(),
        ),
    )
    odd = CLIENTS.index("west")
    original = case.grid._run

    def run(message):
        case.grid.app = other if message.metadata.dst_node_id == 100 + odd else usual
        original(message)

    monkeypatch.setattr(case.grid, "_run", run)
    with checked(case, monkeypatch):
        records = case.serve()
    assert dropped(records) == {r["round"]: [odd] for r in records if odd in r["selected"]}
    said = [what for _, client, what in case.events() if client == "west"]
    assert said
    assert all("shape" in what and "west" in what for what in said)
    assert all(r["evaluations"]["model"]["per_client"]["accuracy"][odd] is None for r in records)
    absent = {r["round"]: r["dropped"] for r in records}
    assert same(case.saved().state.server, case.sequential(absent)[0].server)


def test_too_few_replies_stop_the_run_where_it_can_go_on(tmp_path, monkeypatch):
    case = Case.of(tmp_path, flower={"timeout": 2.0, "retries": 1, "minimum": 2})
    case.grid.fate = lambda carried: [lost(carried)] if carried.trains == 3 else None
    with refused("round 3", "0 of 3", "the node is gone", "goes on from there"):
        case.serve()
    assert case.saved().state.round == 2
    assert [r["round"] for r in case.records()] == [0, 1]
    case.grid.fate = None
    with checked(case, monkeypatch) as seen:
        records = case.serve()
    assert seen == [3, 4, 5]
    assert dropped(records) == {}
    _, expected = case.sequential()
    assert records == expected


def test_when_nobody_answers_at_all_it_is_an_error(tmp_path):
    case = Case.of(tmp_path, flower={"timeout": 1.0, "retries": 2})
    case.grid.fate = lambda carried: None if "hello" in carried.asked else []
    with refused("round 1", "no reply"):
        case.serve()
    assert case.saved().state.round == 0


def test_at_the_end_everybody_is_waited_for(tmp_path):
    """Only then every node has its model, and nothing is held up by it."""
    case = Case.of(tmp_path)
    failed: list[str] = []

    def fate(carried: Carried):
        if carried.asked.get("finish") and carried.client == "east" and len(failed) < 3:
            failed.append(carried.client)
            return [lost(carried)]
        return None

    case.grid.fate = fate
    found, (_, expected) = case.serve(), case.sequential()
    assert len(failed) == 3
    assert found == expected
    case = Case.of(tmp_path / "without")
    gone = 100 + CLIENTS.index("east")
    case.grid.fate = lambda carried: case.grid.away.add(gone) if carried.asked.get("round") == 4 else None
    found = case.serve()
    assert case.complete
    assert found[-1]["evaluations"]["model"]["per_client"]["accuracy"][CLIENTS.index("east")] is None


def test_nodes_that_come_and_go(tmp_path, monkeypatch):
    case = Case.of(tmp_path)
    gone = CLIENTS.index(selected(case, 2)[0])

    def fate(carried: Carried):
        rounds = carried.asked.get("round", 0)
        case.grid.away = {100 + gone} if rounds == 1 else set()
        return

    # it is away from the broadcast of round 1 to that of round 2
    case.grid.fate = fate
    with checked(case, monkeypatch):
        records = case.serve()
    assert case.complete
    assert_as_in_one_process(case, records)


def test_clients_that_all_diverge_stop_the_run_with_advice(tmp_path):
    case = Case.of(tmp_path, solver={"lr": 1e38, "epochs": 50})
    with pytest.raises(Diverged, match=r"solver\.lr"):
        case.serve()
    assert case.saved().state.round == 0
    assert not any("Traceback" in text for text in case.said)


def test_errors_on_a_node_are_passed_on_in_one_line(tmp_path):
    def broken(name: str):
        raise FedapmError(f"the disk of {name} is on fire.")

    case = Case.of(tmp_path, flower={"wait": 2.0})
    case.grid.app = client_app(data=broken, model=case.make)
    with refused("did not show up", *CLIENTS):
        case.serve()
    assert any("the disk of north is on fire" in text for text in case.said)
    assert not case.out.exists()
