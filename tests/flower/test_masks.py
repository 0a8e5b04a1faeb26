"""Masks on Flower: the server learns sums alone, whatever is lost on the way, and no key is swapped unseen."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from fedapm.core.task import LocalTask
from fedapm.errors import Diverged, FedapmError
from fedapm.flower import client_app
from fedapm.flower.client.handler import MessageHandler
from fedapm.flower.client.masks import NodeMasks
from fedapm.flower.client.node import Node
from fedapm.flower.client.versions import Versions
from fedapm.flower.local.certificates import write_key
from fedapm.flower.server.run import serve
from fedapm.flower.settings import deployment
from fedapm.flower.transport import codec
from fedapm.flower.transport.mask_keys import signed
from fedapm.runs.records import load_run
from fedapm.uploads.masks.keys import MaskKey
from tests.flower.cases import CLIENTS, Case, dropped, tables
from tests.flower.grid import Carried, InProcessGrid, lost
from tests.flower.invariant import assert_as_in_one_process, checked, in_round
from tests.helpers.unit import refused
from tests.test_docs import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "privacy.md"
MASK = {"mask": True, "mask_threshold": 2}
ALL = {"fraction": 1.0}
FEW = {"timeout": 2.0, "retries": 0}


def masked(folder: Path, method: str = "fedapm", rounds: int = 3, **more) -> Case:
    given = {"upload": MASK, "engine": {"rounds": rounds, **ALL, **more.pop("engine", {})}, "flower": FEW, **more}
    return Case.of(folder, method, **given)


def again(case: Case) -> list[Carried]:
    """The second questions."""
    return [carried for carried in case.grid.carried if "again" in carried.asked]


def signing(case: Case, folder: Path, registry: bool = True) -> dict[str, Path]:
    """Give every node a key, and a file that says whose key is whose."""
    keys = {client: folder / "keys" / client for client in CLIENTS}
    for node, client in zip(case.grid.clients, CLIENTS, strict=True):
        write_key(keys[client])
        case.grid.keys[node] = keys[client].with_name(f"{client}.pub").read_bytes()
        case.grid.clients[node]["node-key"] = str(keys[client])
        if registry:
            case.grid.clients[node]["registry"] = str(folder / "clients.toml")
    lines = [f'{client} = "{key.with_name(f"{client}.pub").read_text().strip()}"\n' for client, key in keys.items()]
    (folder / "clients.toml").write_text("".join(lines))
    return keys


def swapping(case: Case, who: str, forged, from_round: int = 1) -> None:
    """A server that gives the others another mask key of one client."""
    original = case.grid._run

    def run(message):
        asked, tensors = codec.decode(message.content)
        keys = asked.get("mask", {}).get("keys", {})
        if who in asked.get("mask", {}).get("clients", ()) and asked["train"] >= from_round and asked["client"] != who:
            asked["mask"]["keys"] = keys | {who: forged(keys.get(who))}
            message.content = codec.records(asked, codec.block(tensors))
        original(message)

    case.grid._run = run


def test_one_message_a_client_and_round_and_none_says_anything(tmp_path, monkeypatch):
    case = masked(tmp_path, rounds=2)
    with checked(case, monkeypatch) as seen:
        records = case.serve()
    assert seen == [0, 1, 2]
    assert dropped(records) == {}
    assert_as_in_one_process(case, records)
    asked = [c for c in case.grid.carried if "round" in c.asked]
    assert len(asked) == 3 * len(CLIENTS)
    keys = [len(c.asked["mask"]["keys"]) for c in asked if c.trains]
    assert keys == [5] * 5 + [0] * 5  # keys go once
    run = case.saved().ledger.run
    totals: dict[str, list[np.ndarray]] = {}
    for carried in (c for c in asked if c.trains == 2):
        versions = Versions(case.grid.state / str(carried.node), run, carried.client)
        plain = versions.load(versions.ids()[-1]).upload.wire
        _, tensors = carried.answered()
        for name, tensor in plain.items():
            sent = tensors[f"sums/wire/{name}"]
            if tensor.dtype == torch.int32:
                totals.setdefault(name, []).append(sent.numpy() - tensor.numpy())
                assert sent.numel() < 4 or not torch.equal(sent, tensor)
        hidden = np.concatenate([t.numpy().ravel() for n, t in tensors.items() if t.dtype == torch.int32])
        counts = np.bincount(np.frombuffer(hidden.tobytes(), np.uint8), minlength=256)
        expected = counts.sum() / 256
        assert abs(float(((counts - expected) ** 2 / expected).sum()) - 255) < 6 * 22.6
    assert all(not sum(masks).any() for masks in totals.values())


@pytest.mark.parametrize("name", ["fedapm", "scaffold", "fedalt"])
def test_lost_late_and_repeated_replies(tmp_path, monkeypatch, name):
    """Every reply comes twice; in round 1 one is lost, in round 2 another comes a round too late."""
    weights = {"weights": "samples"} if name in ("fedalt", "scaffold") else {}
    case = masked(tmp_path, name, rounds=3, engine=weights)
    late: list[Carried] = []

    def fate(carried: Carried):
        if in_round(1, "south")(carried):
            return [lost(carried)]
        if in_round(2, "west")(carried):
            late.append(carried)
            return []
        if late and carried.asked.get("round") == 2 and carried.client == "west":
            return [late.pop().reply, carried.reply]
        return [carried.reply, carried.reply]

    case.grid.fate = fate
    if name == "fedalt":  # its server holds no mean
        records = case.serve()
    else:
        with checked(case, monkeypatch) as seen:
            records = case.serve()
        assert seen == [*range(4)]
    gone = dropped(records)
    assert {round: len(clients) for round, clients in gone.items()} == {1: 2, 2: 2}  # one more is left out with them
    assert CLIENTS.index("south") in gone[1]
    assert CLIENTS.index("west") in gone[2]
    assert [len([c for c in again(case) if c.asked["again"]["round"] == round]) for round in (1, 2)] == [3, 3]
    assert_as_in_one_process(case, records)


@pytest.mark.parametrize("how", ["silent", "refused"])
def test_who_drops_out_when_asked_again_ends_the_round_and_not_the_run(tmp_path, monkeypatch, how):
    case = masked(tmp_path, flower={**FEW, "retries": 1})
    first: list[str] = []

    def fate(carried: Carried):
        if in_round(2, "south")(carried):
            return [lost(carried)]
        if "again" in carried.asked and not first:
            first.append(carried.client)
            note, _ = carried.answered()
            header = {name: note[name] for name in ("protocol", "run", "token")}
            return [] if how == "silent" else [carried.replaced(header | {"refused": "no."}, {})]
        return None

    case.grid.fate = fate
    with checked(case, monkeypatch) as seen:
        records = case.serve()
    assert seen == [*range(4)]
    assert dropped(records) == {2: [*range(5)]}
    assert any("abandoned" in what and first[0] in what for _, _, what in case.events())
    assert case.complete
    assert records[2]["bytes_up"] == 0


def test_a_round_that_too_few_answered_is_abandoned_and_many_in_a_row_end_the_run(tmp_path, monkeypatch):
    case = masked(tmp_path, flower={**FEW, "retries": 1})
    case.grid.fate = lambda c: [lost(c)] if (c.trains or 0) > 1 and c.client in ("south", "east", "north") else None
    with refused("round 3 was abandoned", "last 2", "goes on from there"):
        case.serve()
    assert [record["round"] for record in case.records()] == [0, 1, 2]
    case.grid.fate = None
    with checked(case, monkeypatch):
        records = case.serve()
    # who has masked for a group of round 3 does so for the same one again
    assert dropped(records) == {2: [*range(5)]}
    assert any("2 of 5 masked messages" in what and "mask_threshold" in what for _, _, what in case.events())
    assert again(case) == []
    assert case.complete


def test_a_round_is_not_masked_for_a_group_that_would_give_a_client_away(tmp_path):
    """The server dies in the middle of round 2 and goes on without one of its clients: it could subtract."""
    case = masked(tmp_path, rounds=3)

    class Killed(BaseException):
        pass

    def die(carried: Carried):
        if in_round(2, CLIENTS[-1])(carried):
            raise Killed

    case.grid.fate = die
    with pytest.raises(Killed):
        case.serve()
    case.grid.fate, case.grid.away = None, {100 + CLIENTS.index("south")}
    case.given["flower"]["retries"] = 1
    records = case.serve()
    assert dropped(records) == {2: [*range(5)], 3: [CLIENTS.index("south")]}
    assert any("masked for other clients already" in what for _, _, what in case.events())


def test_who_has_no_finite_result_sends_zeros_and_nobody_is_asked_again(tmp_path, monkeypatch):
    who, plain = {CLIENTS.index("east")}, LocalTask.minimize

    def minimize(self, *args, **kwargs):
        return plain(self, *args, **kwargs) * (float("nan") if self.round == 2 and self.client in who else 1.0)

    monkeypatch.setattr(LocalTask, "minimize", minimize)
    case = masked(tmp_path)
    with checked(case, monkeypatch):
        records = case.serve()
    assert dropped(records) == {2: [*who]}
    assert (2, "east", "its update is not finite") in case.events()
    assert again(case) == []
    assert_as_in_one_process(case, records)
    who |= {*range(5)}
    with pytest.raises(Diverged, match=r"solver\.lr"):
        masked(tmp_path / "all").serve()


def test_a_message_that_is_not_masked_as_it_should_be_spoils_one_round(tmp_path, monkeypatch):
    case = masked(tmp_path, flower={**FEW, "retries": 1})

    def fate(carried: Carried):
        if not in_round(2, "north")(carried):
            return None
        note, tensors = carried.answered()
        return [carried.replaced(note, {n: t + 2**30 if t.dtype == torch.int32 else t for n, t in tensors.items()})]

    case.grid.fate = fate
    with checked(case, monkeypatch):
        records = case.serve()
    assert dropped(records) == {2: [*range(5)]}
    assert any("nobody can say which" in what for _, _, what in case.events())


def test_a_sum_far_longer_than_usual_is_not_used(tmp_path, monkeypatch):
    case = masked(tmp_path, rounds=5, flower={**FEW, "retries": 1})

    def fate(carried: Carried):
        if not in_round(4, "north")(carried):
            return None
        note, tensors = carried.answered()
        return [carried.replaced(note, {n: t + 2**22 if t.dtype == torch.int32 else t for n, t in tensors.items()})]

    case.grid.fate = fate
    with checked(case, monkeypatch):
        records = case.serve()
    assert dropped(records) == {4: [*range(5)]}
    assert any("times as long as usual" in what for _, _, what in case.events())


def test_signed_keys_are_believed_and_swapped_ones_refused(tmp_path):
    case = masked(tmp_path, rounds=2)
    keys = signing(case, tmp_path)
    plain = case.serve()
    assert dropped(plain) == {}

    def forged(_):
        return [MaskKey().public.hex(), "", ""]

    case = masked(tmp_path / "swapped", rounds=2)
    for node, client in zip(case.grid.clients, CLIENTS, strict=True):
        case.grid.clients[node] |= {"node-key": str(keys[client]), "registry": str(tmp_path / "clients.toml")}
    swapping(case, "south", forged)
    with refused("round 1", "signed by nobody, not by the key"):
        case.serve()

    # signed, but by a key of the server's own
    def resigned(_):
        write_key(tmp_path / "server")
        return signed(MaskKey().public, case.saved().ledger.run, "south", tmp_path / "server").note()

    case = masked(tmp_path / "signed", rounds=2)
    for node, client in zip(case.grid.clients, CLIENTS, strict=True):
        case.grid.clients[node] |= {"node-key": str(keys[client]), "registry": str(tmp_path / "clients.toml")}
    swapping(case, "south", resigned)
    with refused("round 1", "the server may have swapped it"):
        case.serve()


@pytest.mark.parametrize("named", [True, False])
def test_without_a_registry_the_first_keys_are_believed_and_no_others(tmp_path, named):
    """Named: nodes have keys, and the next run's are compared with them. Otherwise the first of a run is believed."""
    case = masked(tmp_path, rounds=3)
    if named:
        signing(case, tmp_path, registry=False)
    swapping(case, "south", lambda _: [MaskKey().public.hex(), "", ""], from_round=2)
    case.given["flower"]["retries"] = 0
    with refused("round 2 was abandoned"):
        case.serve()
    said = " ".join(what for _, _, what in case.events())
    assert ("before it was by SHA256:" in said) if named else ("has changed, and nobody signed" in said)
    assert [record["round"] for record in case.records()] == [0, 1]


def test_a_node_key_that_is_not_that_of_the_node_is_said_at_once(tmp_path):
    case = masked(tmp_path, rounds=1, flower={**FEW, "wait": 2.0})
    signing(case, tmp_path)
    write_key(tmp_path / "other")
    case.grid.clients[100]["node-key"] = str(tmp_path / "other")
    with refused("north", "did not show up"):
        case.serve()
    assert any("--node-config node-key" in text for text in case.said)
    case.grid.clients[100]["node-key"] = str(tmp_path / "clients.toml")
    with refused("did not show up"):
        case.serve()
    assert any("is not a private key" in text for text in case.said)


def test_a_node_may_demand_masks(tmp_path):
    case = Case.of(tmp_path, engine={"rounds": 1}, flower={"wait": 2.0})
    case.grid.clients[101]["mask-threshold"] = 3
    with refused("south", "did not show up"):
        case.serve()
    assert any("3 clients or more" in text and "has no masks" in text for text in case.said)
    case = masked(tmp_path / "few", rounds=1, flower={**FEW, "wait": 2.0})
    case.grid.clients[101]["mask-threshold"] = 3
    with refused("south"):
        case.serve()
    assert any("mask_threshold = 2" in text for text in case.said)
    case.given["upload"] = {"mask": True}
    assert dropped(case.serve()) == {}
    # a server that asks for a message without a mask gets none
    carried = next(c for c in case.grid.carried if c.trains == 1)
    note, tensors = codec.decode(carried.message.content)
    node = Node.from_config({**case.grid.clients[carried.node], "state-dir": str(case.grid.state / str(carried.node))})
    client = MessageHandler(node, lambda name: case.data[case.data.position(name)], case.make)
    reply, sent = client.answer({n: v for n, v in note.items() if n != "mask"}, tensors)
    assert "without a mask" in reply["refused"]
    assert sent == {}
    # and one that gives the nonce to another message, none either
    other, sent = client.answer(note, {n: t * 1.5 for n, t in tensors.items()})
    assert "finite" in other.get("trained", {}) or "one mask hides one message" in other["refused"]
    note["token"] = "0" * 12
    other, sent = client.answer(note, {n: t * 1.5 for n, t in tensors.items()})
    assert "one mask hides one message" in other["refused"]


def test_a_killed_server_goes_on_and_ends_as_one_that_was_not(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    case = masked(tmp_path, rounds=2)

    def die(carried: Carried):
        if in_round(2, "east")(carried):
            raise Killed

    case.grid.fate = die
    with pytest.raises(Killed):
        case.serve()
    case.grid.fate = None
    with checked(case, monkeypatch):
        records = case.serve()
    assert dropped(records) == {}
    assert_as_in_one_process(case, records)


def test_a_client_that_lost_its_state_waits_and_its_new_key_is_believed_if_signed(tmp_path, monkeypatch):
    case = masked(tmp_path, "fedalt", rounds=5, flower={**FEW, "retries": 1})
    signing(case, tmp_path)
    folder = case.grid.state / str(100 + CLIENTS.index("south"))

    def fate(carried: Carried):
        if carried.asked.get("round") == 1 and carried.client == CLIENTS[-1]:
            for path in [p for p in folder.rglob("*") if p.is_file() and p.suffix != ""]:
                path.unlink()

    case.grid.fate = fate
    records = case.serve()
    assert case.complete
    assert any("lost" in what for _, client, what in case.events() if client == "south")
    who = CLIENTS.index("south")
    assert [who in record["dropped"] for record in records] == [False, False, False, True, True, False]


@pytest.mark.parametrize(
    ("more", "mentions"),
    [
        ({"upload": {"mask": True}, "engine": {"fraction": 0.4}}, ["2 clients", "mask_threshold = 3"]),
        ({"upload": MASK, "flower": {"lost": "readmit"}}, ["upload.mask", "flower.lost"]),
        ({"upload": {**MASK, "round_to": "int8"}}, ["upload.round_to", "upload.mask"]),
        ({"upload": {**MASK, "mask_range": 2000.0}}, ["mask_bits = 64"]),
    ],
)
def test_what_cannot_go_with_masks_is_refused(more, mentions):
    with refused(*mentions):
        deployment(tables(**more))
    if "lost" in more.get("flower", {}):
        assert deployment(tables("fedavg", **more))


def test_files_that_are_damaged_are_named(tmp_path):
    case = masked(tmp_path, rounds=1)
    case.serve()
    (key,) = (case.grid.state / "100").rglob("mask-key.json")
    assert key.stat().st_mode & 0o077 == 0
    key.write_text('{"key": "00"}')
    node = Node.from_config({"client-id": "north", "state-dir": str(case.grid.state / "100")})
    with pytest.raises(FedapmError, match="32 bytes"):
        NodeMasks(node, key.parent, key.parent.parent.name, "north").own()


@pytest.mark.parametrize("number", [0, 1])
def test_an_experiment_of_the_page_runs_on_flower(tmp_path, number):
    private, masked = blocks(PAGE, "toml")
    given = tomllib.loads((private, masked)[number])
    plan = deployment(given, {"solver": {"epochs": 1}, "flower": {"wait": 20.0}})
    grid = InProcessGrid(client_app(), tmp_path / "nodes", {k: {"partition-id": k} for k in range(5)})
    serve(grid.link(), plan, tmp_path / "run")
    assert load_run(tmp_path / "run").complete
    sent = {t.dtype for c in grid.carried if c.trains == 1 for t in c.answered()[1].values()}
    assert (torch.int32 in sent) == (number == 1)


def test_the_configurations_of_nodes_on_the_page_are_read():
    shown = re.findall(r"--node-config '(.*)'", PAGE.read_text("utf-8"))
    tells, demands, masks = (Node.from_config(tomllib.loads(re.sub(r" (?=[a-z-]+=)", "\n", one))) for one in shown)
    assert tells.tell == {"scores", "epsilon"}
    assert demands.sample_epsilon == 8.0
    assert (masks.node_key, masks.mask_threshold) == (Path("/etc/fedapm/node"), 3)
