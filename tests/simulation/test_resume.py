"""A run that is cut off at any moment and resumed ends exactly as if nothing had happened."""

import signal
import time
from pathlib import Path

import pytest

from fedapm.errors import FedapmError, Interrupted
from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.runs.files import read_json, read_tensors, write_tensors
from fedapm.simulation.engines import sequential
from fedapm.simulation.loop import Callback
from fedapm.simulation.stores.disk import checkpoint_files
from tests.helpers.cli import fedapm
from tests.helpers.forked import Forked, program

ROUNDS = 8
SETTINGS = {
    "data": {"name": "digits", "clients": 6},
    "solver": {"epochs": 1},
    "engine": {"rounds": ROUNDS, "checkpoint_every": 3, "seed": 1, "fraction": 0.5, "engine": "sequential"},
}


def plan(**engine):
    return build.plan(build.resolve(SETTINGS, {"engine": engine}))


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    """The run that nothing happened to."""
    out = tmp_path_factory.mktemp("straight") / "run"
    execute(plan(), out, progress=False)
    return out


def assert_same(out: Path, straight: Path) -> None:
    assert (out / "rounds.jsonl").read_bytes() == (straight / "rounds.jsonl").read_bytes()
    expected = [*(straight / "models").iterdir(), checkpoint_files(straight / "checkpoints")[0]]
    for path in expected:
        mine, _ = read_tensors(out / path.relative_to(straight))
        theirs, _ = read_tensors(path)
        assert mine.keys() == theirs.keys()
        assert all(mine[k].equal(theirs[k]) for k in mine), path.name
    assert not list(out.rglob("*.tmp"))
    assert read_json(out / "run.json")["status"] == "complete"


def interrupt_at(monkeypatch, method: str, round: int) -> None:
    """Ctrl-C in the middle of training or of evaluation, at the second client."""
    original = getattr(sequential, method)
    calls = {"round": -1, "client": 0}

    def wrapped(problem, algorithm, client, *rest):
        # training names its round, evaluations start with round 0 and go over all clients in order
        now = rest[-1] if method == "train_client" else calls["round"] + (client == 0)
        calls["client"] = calls["client"] + 1 if now == calls["round"] else 1
        calls["round"] = now
        if now == round and calls["client"] == 2:
            raise KeyboardInterrupt
        return original(problem, algorithm, client, *rest)

    monkeypatch.setattr(sequential, method, wrapped)


@pytest.mark.parametrize("method", ["train_client", "evaluate_client"])
@pytest.mark.parametrize("round", [1, 4, ROUNDS])
def test_ctrl_c_anywhere_in_a_round_loses_only_that_round(tmp_path, monkeypatch, straight, method, round):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt_at(patch, method, round)
        with pytest.raises(Interrupted, match=f"after round {round - 1} of {ROUNDS}"):
            execute(plan(), out, progress=False)
    assert read_json(out / "run.json")["status"] == "interrupted"
    assert checkpoint_files(out / "checkpoints")[0].name == f"round-{round - 1:06d}.safetensors"
    execute(plan(), out, resume=True, progress=False)
    assert_same(out, straight)


def test_a_longer_run_continues_a_shorter_one(tmp_path, straight):
    out = tmp_path / "run"
    execute(plan(rounds=5), out, progress=False)
    execute(plan(rounds=ROUNDS), out, resume=True, progress=False)
    assert_same(out, straight)


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(tmp_path, straight, caplog):
    out = tmp_path / "run"
    execute(plan(rounds=7), out, progress=False)
    newest, _older = checkpoint_files(out / "checkpoints")
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    execute(plan(), out, resume=True, progress=False)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert str(newest) in said[0]
    assert "damaged" in said[0]
    assert_same(out, straight)


def test_with_no_whole_checkpoint_the_run_starts_again(tmp_path, straight, caplog):
    out = tmp_path / "run"
    execute(plan(rounds=4), out, progress=False)
    for path in checkpoint_files(out / "checkpoints"):
        path.write_bytes(path.read_bytes()[:100])
    execute(plan(), out, resume=True, progress=False)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert_same(out, straight)


def test_a_line_that_was_cut_off_is_written_again(tmp_path, straight):
    out = tmp_path / "run"
    execute(plan(rounds=5), out, progress=False)
    with (out / "rounds.jsonl").open("a") as file:
        file.write('{"round":6,"selec')
    execute(plan(), out, resume=True, progress=False)
    assert_same(out, straight)


def test_resuming_with_other_settings_is_refused_and_changes_nothing(tmp_path):
    out = tmp_path / "run"
    execute(plan(rounds=2), out, progress=False)
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    with pytest.raises(FedapmError, match=r"engine\.fraction"):
        execute(plan(rounds=4, fraction=0.9), out, resume=True, progress=False)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_what_does_not_change_results_may_change(tmp_path, straight):
    out = tmp_path / "run"
    execute(plan(rounds=5), out, progress=False)
    execute(plan(checkpoint_every=1), out, resume=True, progress=False)
    assert_same(out, straight)


def test_a_finished_run_resumed_does_nothing(tmp_path, straight):
    out = tmp_path / "run"
    execute(plan(), out, progress=False)
    execute(plan(), out, resume=True, progress=False)
    assert_same(out, straight)


def test_missing_records_are_not_papered_over(tmp_path):
    out = tmp_path / "run"
    execute(plan(rounds=4), out, progress=False)
    lines = (out / "rounds.jsonl").read_text().splitlines(keepends=True)
    (out / "rounds.jsonl").write_text("".join(lines[:2]))
    with pytest.raises(FedapmError, match="does not hold rounds 0 to 4"):
        execute(plan(), out, resume=True, progress=False)


def command(out: Path, *more: str) -> list[str]:
    given = [f"--set={t}.{k}={v}" for t, table in SETTINGS.items() for k, v in table.items() if k != "name"]
    return ["run", "--data", "digits", *given, "--out", str(out), *more]


def start(out: Path, lines: int, monkeypatch) -> Forked:
    """A run in a process of its own in which so many rounds are recorded."""
    rounds, original = out / "rounds.jsonl", sequential.train_client

    def slowly(*arguments):
        time.sleep(0.05)
        return original(*arguments)

    with monkeypatch.context() as patch:
        # so that a signal finds it at work
        patch.setattr(sequential, "train_client", slowly)
        process = program(*command(out), said=out.with_name("said"))
    return process.until(lambda: rounds.is_file() and rounds.read_bytes().count(b"\n") >= lines)


@pytest.mark.parametrize("lines", [pytest.param(1, marks=pytest.mark.slow), 5, pytest.param(9, marks=pytest.mark.slow)])
def test_kill_9_and_resume_in_real_processes(tmp_path, monkeypatch, straight, lines):
    out = tmp_path / "run"
    assert start(out, lines, monkeypatch).end() == -signal.SIGKILL
    done = fedapm(*command(out, "--resume"))
    assert done.code == 0, done.err
    assert_same(out, straight)


def test_ctrl_c_in_a_real_process_says_how_to_go_on(tmp_path, monkeypatch, straight):
    out = tmp_path / "run"
    process = start(out, 4, monkeypatch)
    code, said = process.end(signal.SIGINT), process.said.read_text()
    assert code == 130, said
    last = said.strip().splitlines()[-1]
    assert last.startswith("fedapm: interrupted after round")
    assert last.endswith("Continue with --resume.")
    assert "Traceback" not in said
    execute(plan(), out, resume=True, progress=False)
    assert_same(out, straight)


@pytest.mark.parametrize("round", [1, 4, ROUNDS])
def test_a_follower_that_fails_after_a_round_loses_only_that_round(tmp_path, straight, round):
    class Fails(Callback):
        def on_round_end(self, progress, record, seconds):
            if progress.round == round:
                raise OSError(28, "No space left on device")

        def on_run_end(self, progress, status):
            pass

    out = tmp_path / "run"
    with pytest.raises(OSError, match="No space"):
        execute(plan(), out, progress=False, callbacks=[lambda *_: Fails()])
    execute(plan(), out, resume=True, progress=False)
    assert_same(out, straight)


@pytest.mark.parametrize("side", ["server", "client"])
def test_a_checkpoint_of_a_version_that_kept_other_fields_is_refused(tmp_path, side):
    out = tmp_path / "run"
    execute(plan(rounds=3), out, progress=False)
    before = (out / "rounds.jsonl").read_bytes()
    for path in checkpoint_files(out / "checkpoints"):
        tensors, about = read_tensors(path)
        states = [about["server"]] if side == "server" else [note["state"] for note in about["clients"].values()]
        for state in states:
            state.pop([*state][-1])
        write_tensors(path, tensors, about)
    with pytest.raises(FedapmError, match="another version of fedapm") as refused:
        execute(plan(rounds=6), out, resume=True, progress=False)
    assert len(str(refused.value).splitlines()) == 1
    assert (out / "rounds.jsonl").read_bytes() == before
