"""Waiting for a run on Flower: what is shown, and how its end is noticed."""

from contextlib import ExitStack

from fedapm.flower.local import follow
from fedapm.flower.local.flower_cli import FlowerCli, RunStatus
from fedapm.runs.folder import locked
from tests.flower.cases import Case
from tests.helpers.unit import refused


class ScriptedCli(FlowerCli):
    """A SuperLink with prepared answers."""

    def __new__(cls, *answers):
        made = object.__new__(cls)
        object.__setattr__(made, "answers", list(answers))
        object.__setattr__(made, "asked", [])
        return made

    def __init__(self, *answers):
        super().__init__("local")

    def call(self, *arguments):
        self.asked.append(arguments)
        return self.answers.pop(0)


def listed(status, details=""):
    return {"runs": [{"status": status, "status-details": details}]}


def test_a_run_that_fails_is_an_error_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "POLL", 0.0)
    monkeypatch.setattr(follow, "STATUS_POLL", 0.0)
    flower = ScriptedCli(
        listed("running"), listed("finished:failed", "ServerApp failed with exception: no client is there.\n")
    )
    with refused("no client is there", "ended early"):
        follow.follow(flower, "7", tmp_path / "run", 3, lambda _: None)
    # the folder of a server elsewhere is not here, and its run is over all the same
    follow.follow(
        ScriptedCli(listed("running"), listed("finished:completed")), "7", tmp_path / "run", 3, lambda _: None
    )
    assert not RunStatus("7", "running", "").finished


def test_a_server_that_is_gone_is_noticed_at_once(tmp_path, monkeypatch):
    out = tmp_path / "run"
    monkeypatch.setattr(follow, "POLL", 0.0)
    monkeypatch.setattr(follow, "STATUS_TRIES", 2)
    lock = ExitStack()
    lock.enter_context(locked(out))
    looked = []

    def show_nothing(path):
        looked.append(path)
        if len(looked) == 3:
            lock.close()
        return original(path)

    original = follow.is_locked
    monkeypatch.setattr(follow, "is_locked", show_nothing)
    with refused("process ended", "same command"):
        follow.follow(ScriptedCli(listed("running"), listed("running")), "7", out, 3, lambda _: None)


def test_rounds_are_shown_once_each(tmp_path, monkeypatch):
    case = Case.of(tmp_path, engine={"rounds": 2})
    shown = []
    monkeypatch.setattr(follow, "POLL", 0.0)
    original = follow.finished

    def finished(out, rounds):
        if not case.out.exists():
            case.serve()
            return False
        return original(out, rounds)

    monkeypatch.setattr(follow, "finished", finished)
    follow.follow(ScriptedCli(), "7", case.out, 2, lambda record: shown.append(record["round"]))
    assert shown == [0, 1, 2]
    assert not original(case.out, 3)


def test_a_run_under_way_is_joined_and_a_dead_one_replaced(tmp_path):
    out = tmp_path / "run"
    first = ScriptedCli({"run-id": "1"})
    assert follow.submit(first, tmp_path, out) == "1"
    with locked(out):
        assert follow.submit(ScriptedCli(), tmp_path, out) == "1"
    again = ScriptedCli({}, {"run-id": "2"})
    assert follow.submit(again, tmp_path, out) == "2"
    assert again.asked[0][:2] == ("stop", "1")


def test_what_is_waited_for_is_said_again_and_again(tmp_path, monkeypatch):
    out, log = tmp_path / "run", tmp_path / "superlink.log"
    for name in ("POLL", "NOTICE"):
        monkeypatch.setattr(follow, name, 0.0)
    monkeypatch.setattr(follow, "STATUS_POLL", 0.0)
    log.write_text('"POST /v1/runtime/send-task-heartbeat HTTP/1.1" 401\n' * 5)
    said: list[str] = []

    class Growing(ScriptedCli):
        def call(self, *arguments):
            with log.open("a") as file:
                file.write('"POST /v1/runtime/pull-task-input HTTP/1.1" 401\n')
            return super().call(*arguments)

    answers = [listed("running")] * 3 + [listed("finished:completed")]
    follow.follow(Growing(*answers), "7", out, 3, lambda _: None, said.append, log)
    assert "waiting for Flower to start the server's app" in said[0], "what another run has left counts not"
    assert "started again and again" in said[-1]
    waits = follow.waiting_for(True, 2, 31.0, b"INFO : \x1b[31mround 3: waiting for clients a, b\nother\n")
    assert waits == "after round 2: waiting for clients a, b (31 s)"
    assert follow.waiting_for(True, -1, 31.0) == "before round 0: waiting for the clients' replies (31 s)"


def test_a_note_of_a_submitted_run_that_is_damaged_is_named(tmp_path):
    out = tmp_path / "run"
    follow.submit(ScriptedCli({"run-id": "1"}), tmp_path, out)
    (note,) = tmp_path.glob("*.json")
    note.write_text('{"superlink": "local"}')
    with refused(note.name, "remove it"):
        follow.submit(ScriptedCli(), tmp_path, out)
