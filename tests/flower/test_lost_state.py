"""A client that lost its state is restored or begins anew, by somebody's decision, and is never counted twice."""

import shutil

import pytest

from fedapm.core.algorithm import Aggregate
from fedapm.core.batched import numbers
from fedapm.flower.server import readmission
from fedapm.flower.server.contributions import Contributions, withdrawn
from fedapm.flower.transport import codec
from tests.flower.cases import CLIENTS, Case, changed, gap, same
from tests.flower.invariant import REMEMBERING, TINY, assert_as_in_one_process, checked, selected
from tests.helpers.unit import refused


def forget(case: Case, client: str) -> None:
    """A disk is gone."""
    shutil.rmtree(case.grid.state / str(100 + CLIENTS.index(client)))


def losing(case: Case, client: str, after: int):
    """A client loses its disk when it hears of the result of a round; gives where the lost folder was put."""
    backup = case.grid.state.parent / "backup"

    original = case.grid._run

    def run(message):
        asked, _ = codec.decode(message.content)
        folder = case.grid.state / str(100 + CLIENTS.index(client))
        if asked.get("client") == client and asked.get("round") == after and folder.exists() and not backup.exists():
            shutil.move(folder, backup)
        original(message)

    case.grid._run = run
    return backup


def early(case: Case) -> str:
    """A client that is selected in round 1, so that it has something to lose, and again from round 3 on."""
    assert "west" in set(selected(case, 1)) & set(selected(case, 3)) & set(selected(case, 4))
    return "west"


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_client_that_lost_its_state_waits_until_it_is_restored(tmp_path, monkeypatch, name):
    case = Case.of(tmp_path, name, engine={"rounds": 3})
    who = early(case)
    backup = losing(case, who, after=2)
    with checked(case, monkeypatch) as seen:
        # what the server means is on the backup; that it still counts is what the invariant says
        monkeypatch.setattr(Case, "acknowledged", with_backup(Case.acknowledged, backup, who))
        records = case.serve()
    assert seen == [0, 1, 2, 3]
    k = CLIENTS.index(who)
    assert records[2]["evaluations"]["model"]["per_client"]["train_loss"][k] is None
    assert len([what for _, client, what in case.events() if client == who and "restore its folder" in what]) == 1
    # the operator brings the disk back and the run is prolonged: the client goes on where it was
    forget(case, who)
    shutil.move(backup, case.grid.state / str(100 + k))
    longer = changed(case, engine={"rounds": 5})
    records = longer.serve()
    assert all(k not in r["dropped"] for r in records[4:])
    assert_as_in_one_process(longer, records)


def with_backup(original, backup, who):
    def acknowledged(self, saved=None):
        if not backup.exists():
            return original(self, saved)
        folder = self.grid.state / str(100 + CLIENTS.index(who))
        aside = folder.with_name("aside")
        if folder.exists():
            folder.rename(aside)
        shutil.copytree(backup, folder)
        try:
            return original(self, saved)
        finally:
            shutil.rmtree(folder)
            if aside.exists():
                aside.rename(folder)

    return acknowledged


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_client_that_lost_its_state_may_begin_anew_and_is_never_counted_twice(tmp_path, monkeypatch, name):
    case = Case.of(tmp_path, name, flower={"lost": "readmit"}, engine={"rounds": 6})
    who = early(case)
    k = CLIENTS.index(who)
    losing(case, who, after=2)
    with checked(case, monkeypatch) as seen:
        records = case.serve()
    assert seen == [0, 1, 2, 3, 4, 5, 6]
    assert any(client == who and "begins anew" in what for _, client, what in case.events())
    back = [r["round"] for r in records[4:] if k in r["selected"]]
    assert back, "the seed should select it again"
    assert all(k not in r["dropped"] for r in records[4:])
    assert case.saved().ledger.entry(k).accepted.startswith(f"{back[-1]:06d}-")


def test_an_operator_may_re_admit_a_client(tmp_path, monkeypatch):
    case = Case.of(tmp_path, engine={"rounds": 3})
    who = early(case)
    k = CLIENTS.index(who)
    losing(case, who, after=2)
    case.serve()
    before = case.saved().state.server
    assert case.saved().ledger.entry(k).accepted
    assert who in readmission.request(case.out, who)
    longer = changed(case, engine={"rounds": 6})
    with checked(longer, monkeypatch) as seen:
        records = longer.serve()
    assert seen == [4, 5, 6]
    assert not same(before, longer.saved().state.server)
    assert any(client == who and "begins anew" in what for _, client, what in case.events())
    assert any(k in r["selected"] and k not in r["dropped"] for r in records[5:])


def test_re_admission_is_refused_where_it_would_be_wrong(tmp_path):
    case = Case.of(tmp_path, flower={"keep_contributions": False, "lost": "readmit"}, engine={"rounds": 3})
    who = early(case)
    losing(case, who, after=2)
    case.serve()
    assert any(client == who and "keep_contributions is off" in what for _, client, what in case.events())
    with refused("backup"):
        readmission.request(case.out, who)
    with refused("nobody", "north"):
        readmission.request(case.out, "nobody")
    with refused("no checkpoint"):
        readmission.request(tmp_path, who)


def test_who_has_never_been_accepted_needs_no_re_admission(tmp_path):
    case = Case.of(tmp_path, engine={"rounds": 1})
    case.serve()
    never = next(name for name in CLIENTS if name not in selected(case, 1))
    with refused(never, "by itself"):
        readmission.request(case.out, never)


@pytest.mark.parametrize("name", ["fedalt", "fedavg", "ditto"])
def test_where_the_server_remembers_nobody_a_lost_client_simply_begins_anew(tmp_path, name):
    case = Case.of(tmp_path, name, engine={"rounds": 6})
    who = early(case)
    losing(case, who, after=2)
    records = case.serve()
    k = CLIENTS.index(who)
    assert any(client == who and "begins anew" in what for _, client, what in case.events())
    assert any(k in r["selected"] and k not in r["dropped"] for r in records[4:])
    assert not (case.out / "contributions").exists()


@pytest.mark.parametrize("name", REMEMBERING)
def test_taking_everybody_back_leaves_what_there_was_at_the_start(tmp_path, name):
    """What a method says it remembers is all that the server keeps of clients."""
    case = Case.of(tmp_path, name)
    case.serve()
    saved, method = case.saved(), case.plan.experiment.algorithm
    files = Contributions(case.out / "contributions", method.cumulative)
    sums = withdrawn(files.read(e.contribution) for e in saved.ledger.entries.values() if e.contribution)
    u = saved.state.server.u
    # beside what is taken back, the round has one upload, in which nothing moves
    more = {"scaffold": {"du": u.zeros()}, "fedapm-paper": {}}.get(name, {"numbers": numbers(u, rho=1.0, kappa=0.2)})
    total = Aggregate({**more, **sums}, 1.0, 1, {} if name == "scaffold" else sums)
    after = method.server_update(saved.state.server, total, len(CLIENTS))
    start = method.server_init(case.problem().u0)
    field = {"scaffold": "c", "fedapm-paper": "u"}.get(name, "pi")
    assert gap(after[field], start[field]) < TINY
    if name != "fedapm-paper":
        assert gap(after.u, u) < TINY


def test_a_damaged_state_is_a_lost_one(tmp_path):
    case = Case.of(tmp_path, engine={"rounds": 3})
    who = early(case)
    original, done = case.grid._run, []

    def run(message):
        asked, _ = codec.decode(message.content)
        if asked.get("client") == who and asked.get("round") == 2 and not done:
            for path in (case.grid.state / str(100 + CLIENTS.index(who))).rglob("0*.safetensors"):
                content = bytearray(path.read_bytes())
                content[len(content) // 2] ^= 1
                path.write_bytes(content)
            done.append(True)
        original(message)

    case.grid._run = run
    case.serve()
    assert any(client == who and "lost" in what for _, client, what in case.events())
