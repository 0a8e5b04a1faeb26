"""One client cannot stop a run, spoil its state or be taken for another; nor can a server harm a node."""

import json
import math
import time
from pathlib import Path

import pytest
import torch
from attacks.hostile import BAD, bad_fields, bad_records, bad_tensors, changed, packed, places
from flwr.app import Context, Message, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedapm.core.algorithm import Upload
from fedapm.core.metrics import ACCURACY, TEST_LOSS, TRAIN_LOSS
from fedapm.core.vec import Vec
from fedapm.data import Federation
from fedapm.errors import Diverged, FedapmError
from fedapm.experiments import build
from fedapm.flower import client_app
from fedapm.flower.client.time_limit import within
from fedapm.flower.problem import UploadForm
from fedapm.flower.server import exchange
from fedapm.flower.server.norm_limit import NormLimit, remembered
from fedapm.flower.server.replies import ClientReply, Expected, ReplyForm, read
from fedapm.flower.settings import FlowerSettings
from fedapm.flower.text import one_line
from fedapm.flower.transport import codec
from fedapm.models import DigitsNet
from fedapm.simulation.engines.sequential import SequentialEngine
from tests.flower.cases import CLIENTS, Case, dropped, same
from tests.flower.cases import changed as with_settings
from tests.flower.grid import Carried
from tests.flower.invariant import assert_as_in_one_process, checked, in_round, selected
from tests.helpers.running import play
from tests.helpers.unit import refused

RUN, TOKEN = "0" * 32, "a" * 12
FORM = ReplyForm(
    UploadForm({"change": {"w": ((2, 3), torch.float64)}, "numbers": {"rho": ((1,), torch.float64)}}, weighed=True),
    views=("model",),
    metrics=(ACCURACY, TRAIN_LOSS, TEST_LOSS),
    gaps=2,
)
EXPECTED = Expected(
    FORM, RUN, TOKEN, "north", "000001-" + "b" * 12, 2, True, False, 0.5, 40.0, {"numbers": {"rho": 0.25}}
)
HONEST = {
    "protocol": codec.PROTOCOL,
    "run": RUN,
    "token": TOKEN,
    "client": "north",
    "remarks": ["it is warm"],
    "scores": {"model": {"accuracy": 0.5, "train_loss": 1.0, "test_loss": None}},
    "drift": [0.5, 0.25],
    "trained": {
        "round": 2,
        "finite": True,
        "weight": 0.5,
        "sums": {"change": ["w"], "numbers": ["rho"]},
        "log": [{"epochs": 1.0, "loss": 0.5, "xi": None, "residual": None, "steps": 3}],
    },
}
TENSORS = {
    "sums/change/w": torch.ones(2, 3, dtype=torch.float64),
    "sums/numbers/rho": torch.full((1,), 0.25, dtype=torch.float64),
}


def parsed(content: RecordDict) -> ClientReply:
    return read(*codec.decode(content, FORM.limit), EXPECTED)


def taken(content: RecordDict) -> ClientReply | None:
    """A reply, or None where it is refused in one line."""
    reply = why = None
    try:
        reply = parsed(content)
    except FedapmError as error:
        why = str(error)
    assert why is None or len(why.splitlines()) == 1
    assert reply is None or reply.trained is None or reply.trained.upload.is_finite()
    return reply


def test_an_honest_reply_is_taken():
    reply = parsed(packed(HONEST, TENSORS))
    assert reply.bad is None
    assert reply.trained.upload.weight == 0.5
    assert reply.remarks == ("it is warm",)


@pytest.mark.parametrize(
    ("path", "value", "mentions"),
    [
        (("remarks",), 3, ["remarks"]),
        (("remarks",), [3], ["remarks"]),
        (("trained", "weight"), "x", ["weight"]),
        (("trained", "weight"), 0.75, ["weight", "0.5", "registered samples"]),
        (("trained", "weight"), 0, ["weight"]),
        (("trained", "weight"), 1e9, ["weight"]),
        (("trained", "log", 0, "epochs"), "x", ["epochs"]),
        (("trained", "log", 0, "steps"), 1.5, ["steps"]),
        (("trained", "log", 0, "xi"), float("nan"), ["ξ"]),
        (("trained", "log", 0, "more"), 1, ["unknown field 'more'"]),
        (("trained", "round"), 3, ["round 2"]),
        (("trained", "finite"), "yes", ["finite"]),
        (("scores", "model", "accuracy"), 3.0, ["accuracy", "3.0"]),
        (("scores", "model", "accuracy"), True, ["accuracy"]),
        (("scores", "model", "train_loss"), 1e300, ["train_loss"]),
        (("scores",), None, ["scores"]),
        (("drift",), [1.0] * 3, ["drift", "at most 2"]),
        (("drift",), [-1.0], ["drift"]),
        (("protocol",), 1, ["protocol 1"]),
        (("lost",), "000001-" + "c" * 12, ["not asked for"]),
    ],
)
def test_a_field_out_of_its_range_is_named(path, value, mentions):
    note = changed(HONEST, path, lambda holder, key: holder.__setitem__(key, value))
    with refused(*mentions):
        parsed(packed(note, TENSORS))


def test_a_lost_version_is_shown_in_a_few_words():
    note = {k: HONEST[k] for k in ("protocol", "run", "token", "client")}
    has = [f"{k:06d}-" + "d" * 12 for k in range(1000)]
    reply = parsed(packed({**note, "lost": EXPECTED.accepted, "has": has, "why": "gone"}, {}))
    assert reply.lost is not None
    assert len(reply.lost) < 200
    for odd in ([3], ["../x"], "x", [[]]):
        with refused("version"):
            parsed(packed({**note, "lost": EXPECTED.accepted, "has": odd}, {}))


def test_numbers_that_do_not_depend_on_data_cannot_be_forged():
    for forged in (-0.25, 1e-30, 0.0, 1e30):
        numbers = torch.full((1,), forged, dtype=torch.float64)
        with refused("rho", "must be 0.25"):
            parsed(packed(HONEST, {**TENSORS, "sums/numbers/rho": numbers}))


@pytest.mark.parametrize(
    "attempts", [bad_records(), bad_fields(HONEST), bad_tensors(TENSORS)], ids=["form", "fields", "tensors"]
)
def test_every_bad_reply_is_refused_in_one_line_or_harmless(attempts):
    tried = [taken(change(HONEST, TENSORS)) for _, change in attempts]
    assert len(tried) >= 10
    for reply in (reply for reply in tried if reply is not None):
        assert all(len(remark) <= 500 and remark.isprintable() for remark in reply.remarks)
        scores = [row["accuracy"] for row in (reply.scores or {}).values()]
        assert all(score is None or not math.isfinite(score) or 0 <= score <= 1 for score in scores)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(list(BAD.values())[:16]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
PLACES = list(places(HONEST))


@given(st.lists(st.tuples(st.sampled_from(PLACES), JSON), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_reply_raises_anything_but_a_sentence(edits):
    note = HONEST
    for path, value in edits:
        try:
            note = changed(note, path, lambda holder, key, value=value: holder.__setitem__(key, value))
        except (KeyError, IndexError, TypeError, AttributeError):
            continue
    taken(packed(note, TENSORS))


@given(st.binary(max_size=400), st.integers(0, 400))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_no_bytes_raise_anything_but_a_sentence(data, at):
    from safetensors.torch import save

    whole = save(TENSORS)
    for content in (data, whole[:at] + data + whole[at:], whole[:at] + data[:8] + whole[at + 8 :]):
        taken(packed(HONEST, content or b"x"))


def test_texts_of_others_are_one_printable_line():
    assert one_line("\x1b[31mred\x1b[0m\r\n\x07and \x1b]0;title\x07blue") == "red and blue"
    assert one_line("\ud800a\u202eb") == "a b"
    assert len(one_line("x" * 10_000_000)) == 500
    assert one_line("a" * 500) == "a" * 500


def of(length: float) -> Upload:
    return Upload({"change": Vec({"w": torch.full((4,), length / 2, dtype=torch.float64)})})


def test_an_update_far_longer_than_usual_is_refused():
    limit, seen = NormLimit(50.0), {}
    assert limit.refused(seen, {0: of(1.0), 1: of(1000.0)}) == {}, "two are too few to tell"
    assert list(limit.refused(seen, {0: of(1.0), 1: of(2.0), 2: of(1000.0)})) == [2]
    seen = remembered(seen, [of(1.0), of(2.0), of(3.0)])
    assert seen["change"] == pytest.approx([1.0, 2.0, 3.0])
    assert list(limit.refused(seen, {5: of(101.0)})) == [5]
    assert limit.refused(seen, {5: of(99.0)}) == {}
    assert NormLimit(0.0).refused(seen, {5: of(1e9)}) == {}
    assert list(NormLimit(0.0).refused(seen, {5: of(1e300), 6: of(1e120)})) == [5, 6]
    for _ in range(40):
        seen = remembered(seen, [of(4.0)] * 4)
    assert len(seen["change"]) == 100


@pytest.mark.parametrize("method", [{"name": "fedapm"}, {"name": "fedapm", "server": "all"}, {"name": "scaffold"}])
def test_honest_updates_stay_far_below_the_limit(method):
    """Few of twenty clients take part in a round, so some are new when others have trained for long."""
    tables = {"data": {"name": "digits"}, "algorithm": method, "solver": {"epochs": 1}}
    engine = {"rounds": 20, "fraction": 0.1, "evaluate_every": 20, "engine": "sequential", "final_personal_epochs": 0}
    plan = build.plan(build.resolve(tables | {"engine": engine}))
    fifth, seen, judged = NormLimit(FlowerSettings().norm_limit / 5), {}, 0

    class Judged(SequentialEngine):
        def _train(self, round, selected, broadcast):
            nonlocal seen, judged
            result = super()._train(round, selected, broadcast)
            uploads = {k: one.update.upload for k, one in zip(selected, result._good, strict=True)}
            assert fifth.refused(seen, uploads) == {}, round
            seen, judged = remembered(seen, uploads.values()), judged + len(uploads)
            return result

    play(plan.problem, plan.algorithm, plan.schedule, engine=Judged(plan.problem, plan.algorithm))
    assert judged == 40


@pytest.mark.parametrize(
    ("value", "why"),
    [(1e300, "too long to be added"), (1e30, "times as long as usual"), (1e200, "too long to be added")],
)
def test_a_finite_update_that_would_destroy_the_state_is_left_out(tmp_path, monkeypatch, value, why):
    case = Case.of(tmp_path)
    who = selected(case, 3)[1]

    def fate(carried: Carried):
        if not in_round(3, who)(carried):
            return None
        note, tensors = carried.answered()
        return [
            carried.replaced(note, {n: torch.full_like(t, value) if t.numel() > 1 else t for n, t in tensors.items()})
        ]

    case.grid.fate = fate
    with checked(case, monkeypatch):
        records = case.serve()
    assert dropped(records) == {3: [CLIENTS.index(who)]}
    assert any(round == 3 and client == who and why in what for round, client, what in case.events())
    assert_as_in_one_process(case, records)


def test_the_state_is_tried_before_it_is_put_in_place(tmp_path):
    """Without a norm limit, in single precision: each update is finite, and their sum is not."""
    case = Case.of(tmp_path, "fedavg", lambda: DigitsNet(width=16, features=8), flower={"norm_limit": 0})
    single = Federation.from_clients(
        {c.id: (c.train.inputs[0].float(), c.train.targets) for c in case.data.clients},
        test={c.id: (c.test.inputs[0].float(), c.test.targets) for c in case.data.clients},
    )
    case.data, case.grid.app = single, client_app(data=lambda n: single[single.position(n)], model=case.make)
    who = selected(case, 2)[:2]

    def fate(carried: Carried):
        if not in_round(2, *who)(carried):
            return None
        note, tensors = carried.answered()
        return [carried.replaced(note, {n: torch.full_like(t, 3e38) for n, t in tensors.items()})]

    case.grid.fate = fate
    # the one of them that is left is finite, but no model any more
    with pytest.raises(Diverged):
        case.serve()
    assert (2, who[0], "with its update the server's state would not be finite") in case.events()
    assert case.saved().state.server.is_finite()


def test_a_checkpoint_never_holds_what_is_not_finite(tmp_path):
    case = Case.of(tmp_path, engine={"rounds": 1})
    case.serve()
    saved = case.saved()
    from dataclasses import replace

    from fedapm.flower.server.checkpoint import ServerCheckpoints

    broken = replace(saved.state, server=saved.state.server.replace(u=saved.state.server.u * math.inf))
    with pytest.raises(Diverged, match="not finite"):
        ServerCheckpoints(None).save(case.out / "checkpoints", broken, saved.ledger, saved.record)
    assert case.saved().state.server.is_finite()


def test_the_norms_are_part_of_the_checkpoint_and_of_what_is_resumed(tmp_path):
    """A run that stops and goes on refuses the same update for the same reason as one that does not."""
    said = []
    for stops in (False, True):
        case = Case.of(tmp_path / str(stops))
        who = selected(case, 4)[0]

        def fate(carried: Carried, who=who):
            if not in_round(4, who)(carried):
                return None
            note, tensors = carried.answered()
            return [carried.replaced(note, {n: t * 1000 if t.numel() > 1 else t for n, t in tensors.items()})]

        case.grid.fate = fate
        if stops:
            with_settings(case, engine={"rounds": 3}).serve()
        case.serve()
        said.append([row for row in case.events() if row[1] == who])
        assert case.saved().ledger.norms
    assert said[0] == said[1] != []


def test_remarks_are_few_short_and_printable(tmp_path):
    case = Case.of(tmp_path)
    noise = ["\x1b[2J" + "x" * 5000 + str(k) for k in range(300)]

    def fate(carried: Carried):
        if "hello" in carried.asked or carried.client != "west":
            return None
        note, tensors = carried.answered()
        return [
            carried.replaced(
                note | {"remarks": [f"{k} {carried.asked['round']} {text}" for k, text in enumerate(noise)]}, tensors
            )
        ]

    case.grid.fate = fate
    case.serve()
    assert all(text.isprintable() and len(text) <= 500 for text in case.said)
    assert len(case.said) < 100
    assert any("west has more to remark" in text for text in case.said)
    assert case.complete


def honest_message(case: Case) -> Carried:
    case.serve()
    return next(c for c in case.grid.carried if (c.trains == 2 and c.client == CLIENTS[0]) or c.trains == 1)


def test_a_node_refuses_every_bad_broadcast(tmp_path):
    case = Case.of(tmp_path, engine={"rounds": 1, "fraction": 1.0})
    carried = honest_message(case)
    note, tensors = codec.decode(carried.message.content)
    attempts = [*bad_records(), *list(bad_tensors(tensors))[::2], *list(bad_fields(note, ("settings", "u0")))[::4]]
    for k, (what, change) in enumerate(attempts):
        state = tmp_path / "state" / str(k)
        context = Context(1, 1, {"client-id": carried.client, "state-dir": str(state)}, RecordDict(), {})
        message = Message(change(note, tensors), 1, carried.message.metadata.message_type)
        reply, _ = codec.decode(case.grid.app(message, context).content)
        if "refused" in reply:
            assert len(reply["refused"].splitlines()) == 1, what
            assert len(json.dumps(reply)) < 5000, what
            assert not list(state.rglob("*.safetensors")), what


@pytest.mark.parametrize(
    ("change", "mentions"),
    [
        (lambda n, t: ({k: v for k, v in n.items() if k != "accepted"}, t), ["lacks", "accepted"]),
        (lambda n, t: (n | {"position": 99}, t), ["position"]),
        (lambda n, t: (n | {"train": 7}, t), ["round 7"]),
        (lambda n, t: (n | {"down": {"u": 3}}, t), ["other parameters"]),
        (lambda n, t: (n | {"run": "../../x"}, t), ["run's id"]),
        (lambda n, t: (n, {k: v.float() for k, v in t.items()}), ["float32"]),
        (lambda n, t: (n, {k: v[..., :1] for k, v in t.items()}), ["broadcast"]),
        (lambda n, t: (n, {k: v * math.nan for k, v in t.items()}), ["not finite"]),
        (lambda n, t: (n, {**t, "down/u/more": torch.ones(2)}), ["also holds"]),
        (lambda n, t: (n, {}), ["lacks"]),
        (lambda n, t: (n | {"settings": {"engine": {"rounds": -1}}}, t), ["engine.rounds"]),
    ],
)
def test_a_node_names_what_is_wrong_with_a_broadcast(tmp_path, change, mentions):
    case = Case.of(tmp_path, engine={"rounds": 1, "fraction": 1.0})
    carried = honest_message(case)
    note, tensors = change(*codec.decode(carried.message.content))
    context = Context(1, 1, {"client-id": carried.client, "state-dir": str(tmp_path / "x")}, RecordDict(), {})
    message = Message(codec.records(note, codec.block(tensors)), 1, carried.message.metadata.message_type)
    reply, _ = codec.decode(case.grid.app(message, context).content)
    for word in mentions:
        assert word in reply["refused"]


def key(path: Path) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    from fedapm.flower.local.certificates import write_key

    write_key(path)
    public = load_ssh_public_key(path.with_name(f"{path.name}.pub").read_bytes())
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.fixture
def keyed(tmp_path) -> Case:
    case = Case.of(tmp_path)
    case.grid.keys = {100 + k: key(tmp_path / "keys" / name) for k, name in enumerate(CLIENTS)}
    return case


def imposter(case: Case, number: int, client: str, own: bytes) -> None:
    """The client's node is away, and another one with a key of its own says it is that client."""
    case.grid.away = {100 + CLIENTS.index(client)}
    case.grid.clients[number] = {"client-id": client}
    case.grid.keys[number] = own


def test_a_node_with_another_key_is_not_taken_for_a_client(keyed, tmp_path):
    who = selected(keyed, 2)[0]
    stranger = key(tmp_path / "stranger")

    def fate(carried: Carried):
        if carried.asked.get("round") == 0:
            imposter(keyed, 500, who, stranger)

    keyed.grid.fate = fate
    keyed.serve()
    assert set(keyed.saved().ledger.keys) == set(CLIENTS)
    assert not any(c.node == 500 and "hello" not in c.asked for c in keyed.grid.carried)
    assert any("node 500" in what and repr(who) in what and "SHA256:" in what for _, _, what in keyed.events())


def test_a_key_stays_that_of_its_client_when_a_run_goes_on(keyed, tmp_path):
    with_settings(keyed, engine={"rounds": 2}).serve()
    imposter(keyed, 500, "north", key(tmp_path / "stranger"))
    keyed.serve()
    assert not any(c.node == 500 and "hello" not in c.asked for c in keyed.grid.carried)
    assert any("node 500" in text and "'north'" in text for text in keyed.said)
    # and a key is that of one client only
    keyed.grid.clients[101] = {"client-id": "north"}
    with_settings(keyed, engine={"rounds": 6}).serve()
    assert any("node 101" in text and "'north'" in text for text in keyed.said)


def test_a_registry_says_whose_key_is_whose(keyed, tmp_path):
    lines = [f'{name} = "{(tmp_path / "keys" / f"{name}.pub").read_text().strip()}"' for name in CLIENTS]
    registry = tmp_path / "keys.toml"
    registry.write_text("\n".join(lines))
    case = with_settings(keyed, flower={"registry": str(registry), "wait": 2.0}, engine={"rounds": 1})
    case.serve()
    assert case.complete
    case = with_settings(case, engine={"rounds": 2})
    # the key has changed, and the registry says so
    case.grid.keys[100] = key(tmp_path / "keys" / "north")
    case.serve()
    assert any("node 100" in text and "flower.registry" in text for text in case.said)
    lines[0] = f'north = "{(tmp_path / "keys" / "north.pub").read_text().strip()}"'
    registry.write_text("\n".join(lines))
    case.said.clear()
    with_settings(case, engine={"rounds": 3}).serve()
    assert not any("node 100" in text for text in case.said)
    for text, mention in (
        ("\n".join(lines[1:]), "lacks client 'north'"),
        ("north = 3", "public key"),
        ('nord = "x"', "did you mean 'north'"),
        ("\n".join([*lines[1:], lines[1].replace("south", "north")]), "key of another"),
        ("north = ", "keys.toml"),
    ):
        registry.write_text(text)
        with refused(mention):
            with_settings(case, engine={"rounds": 4}).serve()


def test_keys_need_not_be_bound(keyed, tmp_path):
    case = with_settings(keyed, flower={"bind_keys": False}, engine={"rounds": 1})
    case.serve()
    case.grid.keys[100] = key(tmp_path / "new")
    case = with_settings(case, engine={"rounds": 2})
    assert dropped(case.serve()) == {}


def test_a_client_that_never_ends_its_work_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "SPARE", 0.0)
    case = Case.of(tmp_path, flower={"timeout": 0.3, "retries": 0}, engine={"rounds": 2})
    who = selected(case, 1)[0]
    seen: list[str] = []

    def data(name: str):
        seen.append(name)
        if name == who and seen.count(name) == 2:
            time.sleep(1.5)
        return case.data[case.data.position(name)]

    case.grid.app = client_app(data=data, model=case.make)
    records = case.serve()
    time.sleep(1.5)
    assert CLIENTS.index(who) in dropped(records)[1]
    assert any(client == who and "given up after 0.3 s" in what for _, client, what in case.events())
    assert same(case.saved().state.server, case.sequential(dropped(records))[0].server)


def test_work_within_its_time_gives_its_result_or_its_error():
    assert within(5.0, lambda: 3) == 3
    with pytest.raises(KeyError):
        within(5.0, lambda: {}["x"])
    with refused("given up after 0.01 s"):
        within(0.01, lambda: time.sleep(0.3))


def test_a_client_that_is_silent_is_named(tmp_path):
    case = Case.of(tmp_path, flower={"timeout": 2.0, "retries": 0})
    who = selected(case, 2)[0]
    case.grid.fate = lambda carried: [] if in_round(2, who)(carried) else None
    case.serve()
    assert (2, who, "no reply within 2 s (flower.timeout)") in case.events()
