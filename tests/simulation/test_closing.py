"""The closing phase of a run in a folder: cut off, continued, prolonged, added later."""

import json

import pytest

from fedapm import EarlyStopping, train
from fedapm.errors import FedapmError, Interrupted
from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.runs.files import read_json, read_tensors
from fedapm.runs.folder import is_done
from fedapm.simulation.callbacks import RecordWriter
from fedapm.simulation.engines import sequential
from tests.helpers.unit import blob_clients, two_layers
from tests.simulation.test_resume import assert_same

ROUNDS = 3
SETTINGS = {
    "data": {"name": "digits", "clients": 5},
    "solver": {"epochs": 1},
    "engine": {"rounds": ROUNDS, "seed": 1, "fraction": 0.4, "engine": "sequential", "final_personal_epochs": 2},
}


def plan(**engine):
    return build.plan(build.resolve(SETTINGS, {"engine": engine}))


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The run that nothing happened to."""
    out = tmp_path_factory.mktemp("closing") / "run"
    execute(plan(), out, progress=False)
    return out


def rounds(out):
    return [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]


def interrupted(monkeypatch, out, where, at):
    """Ctrl-C at the so-many-th call of something."""
    owner, name = where
    original, calls = getattr(owner, name), []

    def wrapped(*arguments):
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, wrapped)
        with pytest.raises((Interrupted, KeyboardInterrupt)):
            execute(plan(), out, progress=False)


@pytest.mark.parametrize(
    ("where", "at"),
    [
        ((sequential, "personalize_client"), 3),
        ((sequential, "evaluate_client"), 5 * (ROUNDS + 1) + 2),
        ((RecordWriter, "on_closing"), 1),
        ((RecordWriter, "finish"), 1),
    ],
)
def test_cut_off_anywhere_it_ends_the_same(tmp_path, monkeypatch, straight, where, at):
    out = tmp_path / "run"
    interrupted(monkeypatch, out, where, at)
    assert read_json(out / "run.json")["status"] != "complete"
    execute(plan(), out, resume=True, progress=False)
    assert_same(out, straight)


def test_a_finished_run_resumed_ends_the_same(tmp_path, straight):
    out = tmp_path / "run"
    execute(plan(), out, progress=False)
    execute(plan(), out, resume=True, progress=False)
    assert_same(out, straight)


def test_a_longer_run_goes_on_without_it(tmp_path, straight):
    out = tmp_path / "run"
    execute(plan(rounds=2), out, progress=False)
    assert "closing" in rounds(out)[-1]
    execute(plan(), out, resume=True, progress=False)
    assert_same(out, straight)
    assert ["closing" in row for row in rounds(out)] == [False] * ROUNDS + [True]


def test_it_may_be_added_to_a_finished_run_and_taken_away(tmp_path, straight):
    out = tmp_path / "run"
    execute(plan(final_personal_epochs=0), out, progress=False)
    without = (out / "rounds.jsonl").read_bytes()
    models = {path: read_tensors(path)[0] for path in (out / "models").iterdir()}
    execute(plan(), out, resume=True, progress=False)
    assert_same(out, straight)
    execute(plan(final_personal_epochs=0), out, resume=True, progress=False)
    assert (out / "rounds.jsonl").read_bytes() == without
    assert all(old[n].equal(t) for path, old in models.items() for n, t in read_tensors(path)[0].items())


def test_a_comparison_does_not_take_one_for_the_other(tmp_path, straight):
    assert is_done(straight, plan().settings, "compare elsewhere")
    with pytest.raises(FedapmError, match=r"engine\.final_personal_epochs"):
        is_done(straight, plan(final_personal_epochs=1).settings, "compare elsewhere")


def test_a_folder_of_an_earlier_version_goes_on(tmp_path):
    """It has neither of the new settings, and was run as they now are by default."""
    out = tmp_path / "run"
    execute(plan(rounds=2, final_personal_epochs=0), out, progress=False)
    config = (out / "config.toml").read_text().splitlines(keepends=True)
    old = [line for line in config if not line.startswith(("final_personal_epochs", "unseen"))]
    assert len(old) == len(config) - 2
    (out / "config.toml").write_text("".join(old))
    assert is_done(out, plan(rounds=2, final_personal_epochs=0).settings, "")
    execute(plan(rounds=3, final_personal_epochs=0), out, resume=True, progress=False)
    assert len(rounds(out)) == 4


def test_a_run_that_was_stopped_early_is_closed_too(tmp_path):
    out = tmp_path / "run"
    options = {"rounds": 30, "batch_size": 10, "validation": 0.25, "out": out, "engine": "sequential"}
    stop = lambda: [EarlyStopping(patience=1, min_delta=1.0)]  # noqa: E731
    options |= {"personal": ["head"], "final_personal_epochs": 3}
    result = train(blob_clients(), two_layers, callbacks=stop(), **options)
    assert result.state.stopped
    assert result.records[-1]["closing"]["epochs"] == 3
    before = (out / "rounds.jsonl").read_bytes()
    again = train(blob_clients(), two_layers, callbacks=stop(), resume=True, **options)
    assert (out / "rounds.jsonl").read_bytes() == before
    assert all(t.equal(again.state_dict("b")[n]) for n, t in result.state_dict("b").items())


def test_a_result_and_its_folder_have_the_models_after_it(tmp_path):
    import fedapm

    options = {"personal": ["head"], "rounds": 2, "fraction": 0.4, "engine": "sequential"}
    plain = train(blob_clients(), two_layers, final_personal_epochs=0, **options)
    closed = train(blob_clients(), two_layers, final_personal_epochs=2, **options)
    saved = fedapm.load(closed.save(tmp_path / "saved"), two_layers)
    for client in closed.clients:
        mine, other = closed.state_dict(client), plain.state_dict(client)
        assert not all(mine[n].equal(other[n]) for n in mine)
        assert all(mine[n].equal(t) for n, t in saved.state_dict(client).items())
    x = blob_clients()[0].test
    accuracy = (closed.predict("a", x.inputs[0]).argmax(1) == x.targets).double().mean()
    assert closed.per_client.loc["a", "accuracy"] == pytest.approx(float(accuracy))
