"""A server that dies at any moment goes on as if nothing had happened, and clients keep no more than that takes."""

import json
import shutil

import pytest

from fedapm.flower.client.versions import Versions
from fedapm.flower.server.checkpoint import ServerCheckpoints
from fedapm.runs.files import read_json, write_json
from fedapm.runs.records import JsonLines
from fedapm.simulation.stores.disk import checkpoint_files
from tests.flower.cases import CLIENTS, Case, changed, same
from tests.helpers.unit import refused


class Killed(BaseException):
    """The power is gone."""


def assert_as_if_nothing_had_happened(case: Case) -> None:
    records = case.serve()
    progress, expected = case.sequential()
    assert records == expected
    assert same(case.saved().state.server, progress.server)
    for k, state in enumerate(case.acknowledged().values()):
        assert same(state, progress.store.get(k).state), CLIENTS[k]
    assert case.complete
    assert [row["round"] for row in JsonLines(case.out / "timings.jsonl")] == [r["round"] for r in records]


def serve_until_killed(case, at):
    """Run the server until a message for which ``at`` is true."""

    def fate(carried):
        if at(carried):
            raise Killed

    case.grid.fate = fate
    with pytest.raises(Killed):
        case.serve()
    case.grid.fate = None


@pytest.mark.parametrize("message", [6, 12, 21, 34])
def test_killed_while_messages_are_under_way(tmp_path, message):
    case = Case.of(tmp_path)
    serve_until_killed(case, lambda carried: len(case.grid.carried) == message)
    assert_as_if_nothing_had_happened(case)


@pytest.mark.parametrize("round", [0, 1, 3])
@pytest.mark.parametrize("when", ["before the checkpoint", "after the checkpoint", "before the record"])
def test_killed_between_two_writes(tmp_path, monkeypatch, round, when):
    case = Case.of(tmp_path, engine={"rounds": 3})
    save, append = ServerCheckpoints.save, JsonLines.append

    def killing_save(self, folder, progress, ledger, record):
        if progress.round == round and when == "before the checkpoint":
            raise Killed
        save(self, folder, progress, ledger, record)
        if progress.round == round and when == "after the checkpoint":
            raise Killed

    def killing_append(self, row):
        if when == "before the record" and self.path.name == "rounds.jsonl" and row["round"] == round:
            raise Killed
        append(self, row)

    with monkeypatch.context() as patch:
        patch.setattr(ServerCheckpoints, "save", killing_save)
        patch.setattr(JsonLines, "append", killing_append)
        with pytest.raises(Killed):
            case.serve()
    assert_as_if_nothing_had_happened(case)


def test_a_round_is_saved_before_it_is_announced(tmp_path):
    case = Case.of(tmp_path, engine={"evaluate_every": 2})
    announced = []

    def fate(carried):
        if "round" in carried.asked:
            announced.append(carried.asked["round"])
            assert case.saved().state.round == carried.asked["round"]

    case.grid.fate = fate
    case.serve()
    assert set(announced) == set(range(6))


def test_killed_again_and_again(tmp_path):
    case = Case.of(tmp_path, "scaffold")
    deaths = 0

    def fate(carried):
        if carried.trains is not None and len(case.grid.carried) % 13 == 0:
            raise Killed
        return

    case.grid.fate = fate
    for _ in range(20):
        try:
            case.serve()
            break
        except Killed:
            deaths += 1
    assert deaths >= 2
    case.grid.fate = None
    assert_as_if_nothing_had_happened(case)


@pytest.mark.parametrize("name", ["fedapm", "ditto"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_still_has_its_clients(tmp_path, name):
    case = Case.of(tmp_path, name)
    serve_until_killed(case, lambda carried: carried.trains == 5)
    newest, _ = checkpoint_files(case.out / "checkpoints")
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    assert_as_if_nothing_had_happened(case)
    assert any(str(newest) in text and "damaged" in text for text in case.said)


def test_without_any_checkpoint_it_begins_again(tmp_path):
    case = Case.of(tmp_path)
    case.serve()
    first = case.saved().ledger.run
    shutil.rmtree(case.out / "checkpoints")
    write_json(case.out / "run.json", read_json(case.out / "run.json") | {"status": "running"})
    assert_as_if_nothing_had_happened(case)
    assert case.saved().ledger.run != first


def test_a_complete_run_is_left_as_it_is(tmp_path):
    case = Case.of(tmp_path)
    case.serve()
    before = {p: p.read_bytes() for p in case.out.rglob("*") if p.is_file()}
    sent = len(case.grid.carried)
    case.serve()
    assert len(case.grid.carried) == sent
    assert {p: p.read_bytes() for p in case.out.rglob("*") if p.is_file()} == before
    assert any("complete already" in text for text in case.said)


def test_a_longer_run_continues_a_shorter_one(tmp_path):
    case = Case.of(tmp_path, engine={"rounds": 3})
    case.serve()
    assert_as_if_nothing_had_happened(changed(case, engine={"rounds": 5}))


def test_other_settings_are_refused(tmp_path):
    case = Case.of(tmp_path, engine={"rounds": 1})
    case.serve()
    with refused("solver.lr", "another folder"):
        changed(case, solver={"lr": 0.3}).serve()
    with refused("flower.keep_contributions"):
        changed(case, flower={"keep_contributions": False}).serve()
    with refused("flower.clients"):
        changed(case, flower={"clients": [*CLIENTS[:-1], "centre"]}).serve()
    with refused("engine.rounds"):
        changed(case, engine={"rounds": 3}, solver={"lr_schedule": "cosine"}).serve()
    changed(case, flower={"timeout": 3.0}).serve()


def test_other_folders_are_left_alone(tmp_path):
    case = Case.of(tmp_path, engine={"rounds": 1})
    case.out.mkdir()
    (case.out / "letter.txt").write_text("dear")
    with refused("not empty"):
        case.serve()
    (case.out / "letter.txt").unlink()
    write_json(case.out / "run.json", {"method": "fedapm", "seed": 0, "status": "complete", "clients": []})
    with refused("not one on Flower"):
        case.serve()
    shutil.rmtree(case.out)
    case.out.write_text("a file")
    with refused("is a file"):
        case.serve()


def test_two_servers_do_not_share_a_folder(tmp_path):
    case = Case.of(tmp_path, engine={"rounds": 1})
    inner: list[str] = []

    def fate(carried):
        if not inner:
            inner.append("asked")
            with refused("another server"):
                case.serve()
        return

    case.grid.fate = fate
    case.serve()
    assert inner


def test_clients_keep_only_what_a_server_could_go_back_to(tmp_path):
    case = Case.of(tmp_path, engine={"rounds": 5, "fraction": 1.0})
    case.serve()
    run = case.saved().ledger.run
    for k, name in enumerate(CLIENTS):
        ids = Versions(case.grid.state / str(100 + k), run, name).ids()
        assert [int(i.split("-")[0]) for i in ids] == [4, 5]
    files = list((case.out / "contributions").iterdir())
    assert len(files) == 2 * len(CLIENTS)
    assert len(checkpoint_files(case.out / "checkpoints")) == 2


def test_who_changes_machines_is_known_by_its_own_id(tmp_path):
    """A client's node is replaced by one with another number and the same folder."""
    case = Case.of(tmp_path)
    moved = CLIENTS.index("west")

    def fate(carried):
        last = carried.node == 100 + len(CLIENTS) - 1
        if carried.asked.get("round") == 2 and last and 100 + moved in case.grid.clients:
            config = case.grid.clients.pop(100 + moved)
            case.grid.clients[999] = config | {"state-dir": str(case.grid.state / str(100 + moved))}
        return

    case.grid.fate = fate
    records = case.serve()
    assert case.complete
    progress, _ = case.sequential({r["round"]: r["dropped"] for r in records})
    assert same(case.saved().state.server, progress.server)
    assert any(c.node == 999 and c.trains for c in case.grid.carried)


def test_records_say_nothing_of_time_or_place(tmp_path):
    case = Case.of(tmp_path, engine={"rounds": 2})
    case.serve()
    text = (case.out / "rounds.jsonl").read_text()
    assert str(tmp_path) not in text
    usual = {"round", "selected", "dropped", "drift", "local", "server", "evaluations"}
    sent = {"bytes_up", "bytes_down", "total_bytes_up", "total_bytes_down"}
    assert set(json.loads(text.splitlines()[1])) == usual | sent
