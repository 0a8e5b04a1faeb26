"""Logs for TensorBoard and MLflow: every number of every round once, however often a run is cut off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedapm.core.record import RoundRecord
from fedapm.errors import Interrupted
from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.loggers import log_callbacks, log_folder
from fedapm.loggers.guarded import Guarded
from fedapm.loggers.scalars import flat, scalars
from fedapm.runs.records import load_run
from fedapm.simulation.loop import Callback
from fedapm.simulation.spec import RunSpec
from fedapm.simulation.state import RunState
from tests.helpers.cli import QUICK, assert_refused, fedapm
from tests.helpers.unit import refused

SETTINGS = {"data": {"clients": 4}, "engine": {"rounds": 4, "fraction": 0.5, "checkpoint_every": 2}}


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tracking server from the environment of whoever runs the tests."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A place for MLflow that several tests share, because making one takes long."""
    pytest.importorskip("mlflow")
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'shared.db'}"


@pytest.fixture(params=["tensorboard", "mlflow"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each kind of log, MLflow's with a tracking server from the environment."""
    if request.param == "mlflow":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", request.getfixturevalue("database"))
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    return str(request.param)


def plan(**algorithm: Any) -> RunSpec:
    return build.plan(build.resolve(SETTINGS, {"algorithm": algorithm}))


class StopRule(Callback):
    """Ctrl-C in a round."""

    def __init__(self, round: int) -> None:
        self.round = round

    def __call__(self, plan: RunSpec, folder: Path | None, last: int) -> Callback:
        return self

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        if state.round == self.round:
            signal.raise_signal(signal.SIGINT)

    def on_run_end(self, state: RunState, status: str) -> None:
        """Nothing to do."""


def expected(folder: Path) -> dict[str, dict[int, float]]:
    """What a log should hold: each number by its name and round."""
    found: dict[str, dict[int, float]] = {}
    for record in load_run(folder).rounds:
        for name, value in scalars(record).items():
            found.setdefault(name, {})[record["round"]] = value
    return found


def in_tensorboard(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(folder / "logs" / "tensorboard"), size_guidance={"scalars": 0})
    log.Reload()
    return {tag: [(event.step, event.value) for event in log.Scalars(tag)] for tag in log.Tags()["scalars"]}


def in_mlflow(address: str, folder: Path) -> dict[str, list[tuple[int, float]]]:
    client, run = mlflow_run(address, folder)
    return {
        name: sorted((metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name))
        for name in run.data.metrics
    }


def mlflow_run(address: str, folder: Path) -> tuple[Any, Any]:
    import mlflow

    client = mlflow.tracking.MlflowClient(tracking_uri=address)
    return client, client.get_run(json.loads((folder / "logs" / "mlflow.json").read_text())["run_id"])


def logged(kind: str, folder: Path) -> dict[str, list[tuple[int, float]]]:
    return in_tensorboard(folder) if kind == "tensorboard" else in_mlflow(os.environ["MLFLOW_TRACKING_URI"], folder)


def assert_whole(found: dict[str, list[tuple[int, float]]], folder: Path) -> None:
    wanted = expected(folder)
    assert {"accuracy/mean", "accuracy/worst10", "train_loss/mean", "drift", "local/train_loss"} <= wanted.keys()
    assert {"bytes/up", "bytes/down", "bytes/total_up", "bytes/total_down"} <= wanted.keys()
    assert found.keys() == wanted.keys()
    for name, values in found.items():
        assert [step for step, _ in values] == sorted(wanted[name]), name
        # event files hold single precision
        assert [value for _, value in values] == pytest.approx(list(wanted[name].values()), rel=1e-6), name


def test_the_numbers_of_a_round() -> None:
    summary = {"mean": 0.5, "std": 0.1, "worst10": 0.2, "clients": 3}
    record = {
        "round": 3,
        "evaluations": {"P": {"accuracy": summary, "per_client": {"accuracy": [1]}}, "G": {"f1": summary}},
        "drift": None,
        "local": {"train_loss": 0.3, "epochs": 2},
        "stationarity": None,
        "bytes_up": 10,
        "bytes_down": 20,
        "total_bytes_up": 30,
        "total_bytes_down": 40,
    }
    assert scalars(record) == {
        "P/accuracy/mean": 0.5,
        "P/accuracy/worst10": 0.2,
        "G/f1/mean": 0.5,
        "G/f1/worst10": 0.2,
        "local/train_loss": 0.3,
        "local/epochs": 2.0,
        "bytes/up": 10.0,
        "bytes/down": 20.0,
        "bytes/total_up": 30.0,
        "bytes/total_down": 40.0,
    }
    assert list(scalars(record))[-1] == "bytes/total_up", "what tells that a round is logged comes last"
    assert scalars({"round": 0, "drift": float("nan"), "evaluations": None}) == {}


def test_settings_as_plain_values() -> None:
    found = flat({"a": {"b": 1, "c": {"d": True}}, "e": [1, "x"]})
    assert found == {"a.b": 1, "a.c.d": True, "e": '[1, "x"]'}


def test_a_run_can_be_read_back_from_its_event_files(tmp_path: Path) -> None:
    outcome = fedapm("run", "--rounds", 2, "--log", "tensorboard", "--out", tmp_path / "run", *QUICK)
    assert outcome.code == 0, outcome.err
    assert_whole(in_tensorboard(tmp_path / "run"), tmp_path / "run")
    same = build.resolve(SETTINGS, {"engine": {"rounds": 2, "checkpoint_every": 10}})
    execute(build.plan(same), tmp_path / "plain", progress=False)
    for name in ("config.toml", "rounds.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
    assert not (tmp_path / "plain" / "logs").exists()


def test_the_settings_are_hyperparameters(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    execute(plan(rho=0.25), tmp_path / "run", progress=False, callbacks=log_callbacks(["tensorboard"], tmp_path))
    log = EventAccumulator(str(tmp_path / "run" / "logs" / "tensorboard"))
    log.Reload()
    held = {tag: HParamsPluginData.FromString(data) for tag, data in log.PluginTagToContent("hparams").items()}
    start = held["_hparams_/session_start_info"].session_start_info.hparams
    assert start["algorithm.rho"].number_value == 0.25
    assert start["algorithm.name"].string_value == "fedapm"
    metrics = [info.name.tag for info in held["_hparams_/experiment"].experiment.metric_infos]
    assert "accuracy/mean" in metrics


def test_a_resumed_run_goes_on_in_its_log_without_a_round_twice(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "all" / "run"
    follow = log_callbacks([kind], tmp_path / "all")
    for stop in (1, 3, 3):
        with pytest.raises(Interrupted):
            execute(plan(), folder, resume=True, progress=False, callbacks=[*follow, StopRule(stop)])
        # as after a kill: only the checkpoint of round 2 is there, and the log is ahead of it
        for path in (folder / "checkpoints").glob("round-*.safetensors"):
            if path.name != "round-000002.safetensors":
                path.unlink()
    execute(plan(), folder, resume=True, progress=False, callbacks=follow)
    assert load_run(folder).complete
    assert_whole(logged(kind, folder), folder)


def test_a_log_that_begins_late_has_the_rounds_before_it(tmp_path: Path, kind: str) -> None:
    with pytest.raises(Interrupted):
        execute(plan(), tmp_path / "run", progress=False, callbacks=[StopRule(3)])
    execute(plan(), tmp_path / "run", resume=True, progress=False, callbacks=log_callbacks([kind], tmp_path))
    assert_whole(logged(kind, tmp_path / "run"), tmp_path / "run")


def test_a_run_that_is_in_its_folder_can_be_logged_afterwards(tmp_path: Path, kind: str) -> None:
    execute(plan(), tmp_path / "run", progress=False)
    for _ in range(2):
        log_folder([kind], tmp_path / "run")
        assert_whole(logged(kind, tmp_path / "run"), tmp_path / "run")


def test_without_a_server_mlflow_is_beside_the_runs(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    root = tmp_path / "with space"
    arguments = ["--methods", "fedavg,ditto", "--seeds", "1", "--rounds", 1, "--log", "mlflow", *QUICK]
    outcome = fedapm("compare", *arguments, "--set", "ditto.lam=1e38", "--out", root)
    assert outcome.code == 0, outcome.err
    address = f"sqlite:///{root / 'mlflow.db'}"
    client, run = mlflow_run(address, root / "fedavg" / "seed-1")
    assert run.info.run_name == "fedavg/seed-1"
    assert run.info.status == "FINISHED"
    assert run.data.params["algorithm.name"] == "fedavg"
    assert run.data.params["engine.rounds"] == "1"
    assert run.data.tags["method"] == "fedavg"
    _, other = mlflow_run(address, root / "ditto" / "seed-1")
    assert other.info.status == "FAILED", "it diverged"
    assert {"P/accuracy/mean", "G/accuracy/mean"} <= other.data.metrics.keys()
    assert client.get_experiment(run.info.experiment_id).name == "fedapm"
    assert len(client.search_runs([run.info.experiment_id])) == 2


def test_the_server_and_the_experiment_are_those_of_the_environment(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "another")
    execute(plan(), tmp_path / "run", progress=False, callbacks=log_callbacks(["mlflow"], tmp_path))
    assert not (tmp_path / "mlflow.db").exists()
    client, run = mlflow_run(database, tmp_path / "run")
    assert client.get_experiment(run.info.experiment_id).name == "another"
    assert run.data.params["data.clients"] == "4"


def test_a_server_that_is_none_is_one_line_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://nowhere")
    outcome = fedapm(
        "run", "--rounds", 1, "--log", "mlflow", "--engine", "sequential", "--out", tmp_path / "run", *QUICK
    )
    assert_refused(outcome, "MLflow cannot be used", "MLFLOW_TRACKING_URI")
    assert not (tmp_path / "run").exists()


class Broken(Callback):
    """A log that cannot write."""

    def __init__(self) -> None:
        self.calls = 0

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        self.calls += 1
        raise OSError(28, "No space left on device")

    def on_run_end(self, state: RunState, status: str) -> None:
        self.calls += 1


def test_a_log_that_breaks_does_not_break_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = Broken()
    execute(plan(), tmp_path / "run", progress=False, callbacks=[lambda *_: Guarded(broken, "TensorBoard")])
    assert load_run(tmp_path / "run").complete
    assert broken.calls == 1
    (message,) = caplog.messages
    assert "No space left" in message
    assert "the run itself goes on" in message


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow"])
def test_a_missing_library_is_one_line_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setitem(sys.modules, kind, None)
    outcome = fedapm("run", "--rounds", 1, "--log", kind, "--out", tmp_path / "run", *QUICK)
    assert_refused(outcome, f"--log {kind}", f"pip install 'fedapm[{kind}]'")
    assert not (tmp_path / "run").exists()


def test_an_unknown_kind_is_named() -> None:
    with refused("'tensorbord'", "'tensorboard'"):
        log_callbacks(["tensorboard", "tensorbord"], Path())


def test_a_log_needs_a_folder(tmp_path: Path) -> None:
    with refused("'tensorboard'", "folder"):
        execute(plan(), None, progress=False, callbacks=log_callbacks(["tensorboard"], tmp_path))


def test_nobody_who_does_not_ask_imports_a_logging_library(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom fedapm import loggers as logs\nfrom fedapm.cli import app as cli\n"
        "from fedapm.experiments.run import execute\n"
        "print([m for m in ('tensorboard', 'mlflow', 'torch.utils.tensorboard') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"


def test_observers_are_made_with_the_last_round_that_is_there(tmp_path: Path) -> None:
    seen: list[tuple[Path | None, int]] = []

    def make(plan: RunSpec, folder: Path | None, last: int) -> Callback:
        seen.append((folder, last))
        return StopRule(-1)

    with pytest.raises(Interrupted):
        execute(plan(), tmp_path / "run", progress=False, callbacks=[make, StopRule(3)])
    result = execute(plan(), tmp_path / "run", resume=True, progress=False, callbacks=[make])
    whole = execute(plan(), None, progress=False, callbacks=[make])
    assert seen == [(tmp_path / "run", -1), (tmp_path / "run", 3), (None, -1)]
    assert torch.equal(result.state_dict("0")["head.weight"], whole.state_dict("0")["head.weight"]), (
        "observers have no part in the results"
    )
