"""The Python interface: from arrays to personal models in five lines, and nothing of the user's is changed."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import tempfile
import typing
from collections import OrderedDict
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedapm
from fedapm import METHODS, EarlyStopping, FedAlt, FedAPM, Federation, FedProx, Interrupted, Metric, Result
from fedapm.algorithms import PRESETS
from fedapm.core.solver import SGDConfig
from fedapm.experiments.settings import EngineSettings
from fedapm.report import write_report
from fedapm.runs.files import read_tensors
from fedapm.runs.records import load_run
from fedapm.simulation.engines.sequential import SequentialEngine
from tests.helpers.unit import blob_clients, blobs, refused, two_layers, unless_refused

QUICK: dict[str, Any] = {"personal": ["head"], "rounds": 3, "fraction": 1.0, "batch_size": 5}


@pytest.fixture(scope="module")
def result() -> Result:
    x, y = blobs(90)
    clients = np.repeat(["north", "south", "west"], 30)
    federation = Federation.from_arrays(x, y, clients)
    return fedapm.train(federation, two_layers, **QUICK)


@pytest.fixture(scope="module")
def fedalt() -> Result:
    return fedapm.train(blob_clients(), two_layers, algorithm="fedalt", **QUICK)


def accuracy(model: nn.Module, client: fedapm.ClientData) -> float:
    with torch.no_grad():
        return (model(*client.test.inputs).argmax(1) == client.test.targets).double().mean().item()


HEAVY = ("matplotlib", "pandas", "sklearn", "scipy", "optuna", "flwr", "torchmetrics", "typer", "jinja2")


def test_every_method_can_be_imported_from_the_package() -> None:
    for kind in (METHODS | PRESETS).values():
        assert getattr(fedapm, kind.__name__) is kind
    assert {*dir(fedapm)} >= {*fedapm.__all__}
    assert {kind.__name__ for kind in (METHODS | PRESETS).values()} <= {*fedapm.__all__}


def test_importing_the_package_is_light() -> None:
    code = f"import sys, fedapm; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_train_names_every_setting_of_solver_and_engine_with_its_type() -> None:
    hints = typing.get_type_hints(fedapm.train)
    parameters = inspect.signature(fedapm.train).parameters
    for kind in (SGDConfig, EngineSettings):
        types = typing.get_type_hints(kind)
        for name in (field.name for field in fields(kind)):
            assert parameters[name].default is None, name
            assert hints[name] == types[name] | None, name
    own = ["data", "model", "algorithm", "personal", "shared", "frozen", "preset", "loss", "metrics", "callbacks"]
    others = {*own, "lora", "validation", "features", "unseen", "upload", "privacy"}
    others |= {"out", "resume", "progress", "hyperparameters"}
    assert {*parameters} - others == {f.name for kind in (SGDConfig, EngineSettings) for f in fields(kind)}


def test_the_history_has_a_row_a_round(result: Result) -> None:
    history = result.history
    assert history.index.tolist() == [0, 1, 2, 3]
    assert history.index.name == "round"
    scores = ["accuracy", "f1", "auc", "train_loss", "test_loss", "accuracy_worst10"]
    traffic = ["bytes_up", "bytes_down", "total_bytes_up", "total_bytes_down"]
    assert set(history.columns) >= {*scores, *traffic, "drift", "selected", "dropped", "local.train_loss"}
    assert history[scores].notna().all(axis=None)
    assert history["selected"].tolist() == [0, 3, 3, 3]
    assert history["total_bytes_up"].tolist() == history["bytes_up"].cumsum().tolist()


def test_training_learns(result: Result) -> None:
    assert result.history["train_loss"].iloc[-1] < result.history["train_loss"].iloc[0] / 2
    assert result.history["accuracy"].iloc[-1] > 0.8


def test_per_client_is_the_last_evaluation_client_by_client(result: Result) -> None:
    assert result.per_client.index.tolist() == ["north", "south", "west"]
    assert result.per_client["accuracy"].mean() == pytest.approx(result.history["accuracy"].iloc[-1])
    assert result.per_client["accuracy"].min() == result.history["accuracy_worst10"].iloc[-1]


def test_a_model_is_a_plain_module_with_the_recorded_accuracy(result: Result) -> None:
    for client in result.federation.clients:
        model = result.model(client.id)
        assert type(model) is nn.Sequential
        assert not model.training
        assert accuracy(model, client) == pytest.approx(result.per_client.loc[client.id, "accuracy"])


def test_a_model_is_the_users_to_change(result: Result) -> None:
    before = result.state_dict("north")
    model = result.model("north")
    assert all(p.requires_grad for p in model.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    after = result.state_dict("north")
    assert all(torch.equal(before[n], after[n]) for n in before)


def test_models_are_told_apart_by_id_and_by_place(result: Result) -> None:
    assert torch.equal(result.model("south").head.weight, result.model(1).head.weight)
    assert not torch.equal(result.model("south").head.weight, result.model("north").head.weight)


def test_fedalt_clients_share_the_shared_part_to_the_bit_and_nothing_else(fedalt: Result) -> None:
    a, b = fedalt.state_dict("a"), fedalt.state_dict("b")
    for name in a:
        assert torch.equal(a[name], b[name]) == name.startswith("body"), name


def test_fedavg_clients_have_one_model() -> None:
    made = fedapm.train(blob_clients(), two_layers, algorithm="fedavg", **QUICK)
    a, b = made.state_dict("a"), made.state_dict("b")
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_local_clients_share_nothing_and_send_nothing() -> None:
    made = fedapm.train(blob_clients(), two_layers, algorithm="local", **QUICK)
    a, b = made.state_dict("a"), made.state_dict("b")
    assert not any(torch.equal(a[name], b[name]) for name in a)
    assert made.history[["total_bytes_up", "total_bytes_down"]].iloc[-1].tolist() == [0, 0]


def test_same_seed_same_numbers_other_seed_other_numbers() -> None:
    first, again, other = (fedapm.train(blob_clients(), two_layers, seed=s, **QUICK) for s in (1, 1, 2))
    pd.testing.assert_frame_equal(first.history, again.history, check_exact=True)
    assert not first.history["train_loss"].equals(other.history["train_loss"])


def test_rounds_without_evaluation_have_no_scores() -> None:
    history = fedapm.train(blob_clients(), two_layers, **(QUICK | {"rounds": 5}), evaluate_every=2).history
    assert history["accuracy"].notna().tolist() == [True, False, True, False, True, True]


def test_saving_writes_the_folder_the_run_would_have_written(tmp_path: Path) -> None:
    made = fedapm.train(blob_clients(), two_layers, out=tmp_path / "during", **QUICK)
    saved = made.save(tmp_path / "after")
    tensors = ["checkpoints/round-000003.safetensors", "models/client-0001.safetensors"]
    for name in ["config.toml", "run.json", "rounds.jsonl", *tensors]:
        assert (tmp_path / "during" / name).read_bytes() == (saved / name).read_bytes(), name


def test_models_are_only_saved_where_they_are_wanted(tmp_path: Path) -> None:
    fedapm.train(blob_clients(), two_layers, out=tmp_path / "run", save_models=False, **QUICK)
    assert not (tmp_path / "run" / "models").exists()
    assert load_run(tmp_path / "run").complete


def test_a_saved_run_can_be_loaded_and_reported(result: Result, tmp_path: Path) -> None:
    run = load_run(result.save(tmp_path / "run"))
    assert run.complete
    assert [c["id"] for c in run.info["clients"]] == ["north", "south", "west"]
    assert run.info["clients"][0] == {"id": "north", "train": 24, "test": 6, "classes": 3}
    assert run.info["split"] == {
        "shared": ["body.weight", "body.bias"],
        "personal": ["head.weight", "head.bias"],
        "frozen": [],
    }
    recorded = [row["evaluations"]["model"]["accuracy"]["mean"] for row in run.rounds]
    assert recorded == result.history["accuracy"].tolist()
    page = write_report(tmp_path / "run").read_text("utf-8")
    assert "FedAPM" in page
    assert "north" in page


def test_the_report_can_be_written_without_a_folder(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    path = result.report(tmp_path / "report.html")
    assert "FedAPM" in path.read_text("utf-8")
    assert list((tmp_path / "scratch").iterdir()) == [], "what it needed on the way is gone"


@pytest.mark.parametrize("ids", [["1", "2", "3"], ["2", "0", "1"], ["a", "b", "c"]])
def test_every_saved_model_is_that_of_its_own_client(ids: list[str], tmp_path: Path) -> None:
    federation = Federation.from_clients({name: blobs(20, seed=k) for k, name in enumerate(ids)})
    made = fedapm.train(federation, two_layers, out=tmp_path / "run", **QUICK)
    for name in ids:
        fedapm.load(tmp_path / "run").export(name, tmp_path / f"{name}.safetensors")
        exported, _ = read_tensors(tmp_path / f"{name}.safetensors")
        kept = made.engine.client_state(federation.position(name)).state
        assert torch.equal(exported["head.weight"], kept.v["head.weight"]), f"client {name}"


def test_an_unknown_client_is_refused(result: Result) -> None:
    for ask in (result.model, result.state_dict):
        with refused("'east'", "north, south, west"):
            ask("east")


def test_saving_over_something_is_refused(result: Result, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with refused(str(tmp_path), "not empty"):
        result.save(tmp_path)
    with refused("mine.txt", "is a file"):
        result.save(tmp_path / "mine.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
    result.save(tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_bytes()
    with refused("already holds a run"):
        result.save(tmp_path / "run")
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_an_existing_folder_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with refused("not empty"):
        fedapm.train(blob_clients(), two_layers, out=tmp_path, **QUICK)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("device", ["nonsense", "cuda:77", ""])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with refused(f"device {device!r}"):
        fedapm.train(blob_clients(), two_layers, device=device, **QUICK)


def state_of(module: nn.Module) -> dict[str, Any]:
    return {
        "values": {n: t.tolist() for n, t in module.state_dict().items()},
        "training": module.training,
        "gradients": {n: (p.requires_grad, p.grad) for n, p in module.named_parameters()},
    }


@pytest.mark.parametrize("algorithm", ["fedapm", "fedavg", "local"])
def test_the_users_module_is_not_touched(algorithm: str) -> None:
    module = two_layers()
    before = state_of(module)
    fedapm.train(blob_clients(), module, algorithm=algorithm, **QUICK)
    assert state_of(module) == before


def test_a_module_that_a_function_hands_out_is_not_touched_either() -> None:
    module = two_layers()
    before = state_of(module)
    fedapm.train(blob_clients(), lambda: module, **QUICK)
    assert state_of(module) == before


def test_a_module_is_where_training_starts() -> None:
    module = two_layers()
    made = fedapm.train(blob_clients(), module, **(QUICK | {"epochs": 0, "rounds": 1, "final_personal_epochs": 0}))
    assert all(torch.equal(t, made.state_dict("b")[n]) for n, t in module.state_dict().items())


def test_the_global_random_state_is_the_users_own() -> None:
    network = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3))
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    fedapm.train(blob_clients(), network, **(QUICK | {"personal": ["2"]}))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])


def test_an_algorithm_may_be_given_as_an_object() -> None:
    named = fedapm.train(blob_clients(), two_layers, algorithm="fedalt", **QUICK)
    same = fedapm.train(blob_clients(), two_layers, algorithm=FedAlt(), **QUICK)
    other = fedapm.train(blob_clients(), two_layers, algorithm=FedAlt(epochs_v=0), final_personal_epochs=0, **QUICK)
    pd.testing.assert_frame_equal(named.history, same.history, check_exact=True)
    assert torch.equal(other.model("a").head.weight, other.model("b").head.weight), "without epochs v_i stays v_0"


def test_hyperparameters_may_be_given_as_keywords() -> None:
    named = fedapm.train(blob_clients(), two_layers, rho=0.5, sigma=0.2, **QUICK)
    same = fedapm.train(blob_clients(), two_layers, algorithm=FedAPM(rho=0.5, sigma=0.2), **QUICK)
    pd.testing.assert_frame_equal(named.history, same.history, check_exact=True)
    assert named.spec.settings["algorithm"]["rho"] == 0.5


def error_rate(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(1) != targets).double().mean()


def test_metrics_of_ones_own_stand_beside_the_others(tmp_path: Path) -> None:
    from torchmetrics.classification import MulticlassAccuracy

    confident = Metric(
        "confident", "Confident", lambda predictions: float(predictions.outputs.abs().max()), data="train"
    )
    own = [error_rate, MulticlassAccuracy(3, average="micro"), confident]
    made = fedapm.train(blob_clients(), two_layers, metrics=own, out=tmp_path / "run", **QUICK)
    assert np.allclose(made.history["error_rate"], 1 - made.history["accuracy"])
    assert np.allclose(made.history["MulticlassAccuracy"], made.history["accuracy"])
    assert np.allclose(made.per_client["error_rate"], 1 - made.per_client["accuracy"])
    assert made.per_client["confident"].notna().all()
    run = load_run(tmp_path / "run")
    assert [metric["name"] for metric in run.info["metrics"]][-3:] == ["error_rate", "MulticlassAccuracy", "confident"]
    assert "error_rate" in run.rounds[-1]["evaluations"]["model"]
    write_report(tmp_path / "run")
    plain = fedapm.train(blob_clients(), two_layers, **QUICK)
    pd.testing.assert_frame_equal(made.history[plain.history.columns], plain.history, rtol=1e-9)


class Rounds(fedapm.Callback):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_round_end(self, progress: Any, record: dict[str, Any], seconds: float) -> None:
        self.heard.append(f"{progress.round} {record['round']}")

    def on_run_end(self, progress: Any, status: str) -> None:
        self.heard.append(status)


def test_callbacks_follow_a_run() -> None:
    rounds = Rounds()
    fedapm.train(blob_clients(), two_layers, callbacks=[rounds], **QUICK)
    assert rounds.heard == ["0 0", "1 1", "2 2", "3 3", "complete"]


STOPPING: dict[str, Any] = QUICK | {"rounds": 30, "validation": 0.25, "checkpoint_every": 3}


def test_early_stopping_ends_a_run_that_can_be_loaded_and_reported(tmp_path: Path) -> None:
    made = fedapm.train(
        blob_clients(), two_layers, callbacks=[EarlyStopping(patience=2)], out=tmp_path / "run", **STOPPING
    )
    last = made.state.round
    assert last < 30
    accuracy = made.history["accuracy"]
    assert accuracy.iloc[-2:].max() <= accuracy.iloc[:-2].max(), "two evaluations in a row were no better"
    run = load_run(tmp_path / "run")
    assert run.complete
    assert run.info["finished"] == last
    assert "accuracy has not improved for 2 evaluations" in run.info["stopped"]
    assert (tmp_path / "run" / "models" / "client-0002.safetensors").is_file()
    write_report(tmp_path / "run")
    saved = made.save(tmp_path / "saved")
    assert (saved / "run.json").read_bytes() == (tmp_path / "run" / "run.json").read_bytes()


@pytest.mark.parametrize("callbacks", [(), (EarlyStopping(patience=2),)])
def test_a_run_that_was_stopped_early_is_not_continued(
    callbacks: tuple[EarlyStopping, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = STOPPING | {"out": tmp_path / "run"}
    made = fedapm.train(blob_clients(), two_layers, callbacks=[EarlyStopping(patience=2)], **options)
    info = (tmp_path / "run" / "run.json").read_bytes()
    with caplog.at_level("INFO", "fedapm"):
        again = fedapm.train(blob_clients(), two_layers, callbacks=callbacks, resume=True, **options)
    pd.testing.assert_frame_equal(made.history, again.history, check_exact=True)
    assert (tmp_path / "run" / "run.json").read_bytes() == info
    assert "stopped early after round" in caplog.text


def test_early_stopping_counts_on_where_an_interrupted_run_left_off(tmp_path: Path) -> None:
    class Interrupt(Rounds):
        def on_round_end(self, progress: Any, record: dict[str, Any], seconds: float) -> None:
            if progress.round == 4:
                raise KeyboardInterrupt

    stopping = EarlyStopping(patience=6)
    whole = fedapm.train(blob_clients(), two_layers, callbacks=[stopping], **STOPPING)
    assert 6 < whole.state.round < 30
    with pytest.raises(Interrupted):
        fedapm.train(blob_clients(), two_layers, callbacks=[stopping, Interrupt()], out=tmp_path / "run", **STOPPING)
    rest = fedapm.train(blob_clients(), two_layers, callbacks=[stopping], out=tmp_path / "run", resume=True, **STOPPING)
    pd.testing.assert_frame_equal(whole.history, rest.history, check_exact=True)


def test_early_stopping_without_validation_data_leaves_no_folder(tmp_path: Path) -> None:
    with refused("validation"):
        fedapm.train(blob_clients(), two_layers, callbacks=[EarlyStopping()], out=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()
    federation = blob_clients().for_validation(0.25, seed=0)
    fedapm.train(federation, two_layers, callbacks=[EarlyStopping()], **QUICK)


def test_a_validation_share_of_a_named_data_set(digits: Result) -> None:
    made = fedapm.train("digits", validation=0.25, rounds=1, fraction=0.1, callbacks=[EarlyStopping()])
    assert made.spec.settings["data"]["validation"] == 0.25
    assert len(made.federation[0].train) < len(digits.federation[0].train)


def smoothed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs, targets, label_smoothing=0.5)


def test_a_loss_may_be_given() -> None:
    made = fedapm.train(blob_clients(), two_layers, loss=smoothed, **QUICK)
    client = made.federation[0]
    by_hand = smoothed(made.model("a")(*client.test.inputs), client.test.targets).item()
    assert made.per_client.loc["a", "test_loss"] == pytest.approx(by_hand, rel=1e-5)
    assert not made.history.equals(fedapm.train(blob_clients(), two_layers, **QUICK).history)


@pytest.fixture(scope="module")
def digits() -> Result:
    return fedapm.train("digits", rounds=1, fraction=0.1)


def test_a_named_data_set_brings_its_network(digits: Result) -> None:
    assert len(digits.per_client) == 20
    assert type(digits.model(3)).__name__ == "DigitsNet"


def test_a_loss_for_a_named_data_set_is_used(digits: Result) -> None:
    made = fedapm.train("digits", loss=smoothed, rounds=1, fraction=0.1)
    assert made.history["train_loss"].iloc[-1] != digits.history["train_loss"].iloc[-1]


def test_an_own_network_for_a_named_data_set_needs_no_stages() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    made = fedapm.train("digits", network, algorithm="fedavg", rounds=1, fraction=0.1)
    assert made.history["bytes_down"].iloc[-1] == 2 * 4 * 650


def test_a_federation_without_a_network_is_a_programming_error() -> None:
    with pytest.raises(TypeError, match="needs a model"):
        fedapm.train(blob_clients())


@pytest.mark.parametrize(
    ("options", "mentions"),
    [
        ({"round": 3}, ["'round'", "'rounds'"]),
        ({"epoch": 3}, ["'epoch'", "'epochs'"]),
        ({"learning_rate": 3}, ["'learning_rate'", "lr"]),
        ({"roh": 3}, ["'roh'", "'rho'"]),
        ({"rho": -1}, ["rho", "-1"]),
        ({"rho": "large"}, ["algorithm.rho", "'large'"]),
        ({"rho": 1.0, "algorithm": "fedavg"}, ["'rho'"]),
        ({"mu": 1.0, "algorithm": FedProx()}, ["'mu'", "FedProx(mu=1.0)"]),
        ({"personel": ["head"]}, ["'personel'", "'personal'"]),
        ({"metrics": [3]}, ["int"]),
        ({"metrics": [lambda outputs, targets: 0.0]}, ["<lambda>"]),
        ({"metrics": [fedapm.METRICS["accuracy"]]}, ["'accuracy'"]),
        ({"validation": 1.5}, ["1.5"]),
        ({"algorithm": "fedamp"}, ["'fedamp'", "'fedapm'"]),
        ({"lr": -1}, ["solver.lr", "-1"]),
        ({"batch_size": "big"}, ["solver.batch_size", "'big'"]),
        ({"personal": ["haed"]}, ["'haed'", "'head'"]),
        ({"fraction": 0.0}, ["fraction", "0.0"]),
        ({"count": 4}, ["4", "3"]),
        ({"model": 3}, ["nn.Module", "int"]),
        ({"model": lambda: "net"}, ["str", "nn.Module"]),
        ({"model": lambda a, b: None}, ["function that makes models"]),
        ({"data": "digit"}, ["'digit'", "'digits'"]),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], mentions: list[str]) -> None:
    with refused(*mentions):
        fedapm.train(**({"data": blob_clients(), "model": two_layers} | QUICK | options))


@pytest.mark.parametrize("options", [{"fraction": 0.0}, {"fraction": 1.5}, {"count": 4}, {"count": 0}])
def test_a_selection_that_cannot_be_leaves_no_folder(options: dict[str, Any], tmp_path: Path) -> None:
    with refused():
        fedapm.train(blob_clients(), two_layers, out=tmp_path / "run", **(QUICK | options))
    assert not (tmp_path / "run").exists()


def test_a_network_with_fewer_outputs_than_classes_is_refused_in_one_line() -> None:
    with refused("2", "3"):
        fedapm.train(blob_clients(), lambda: two_layers(classes=2), **QUICK)


def test_classes_below_zero_are_refused_in_one_line() -> None:
    x, y = blobs(20)
    with refused("-1"):
        fedapm.train(Federation.from_clients({"a": (x, y - 1)}), two_layers, **QUICK)


def test_two_classes_told_apart_by_one_output_are_scored_right_or_refused() -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.binary_cross_entropy_with_logits(outputs.squeeze(1), targets.float())

    x, y = blobs(40, classes=2)
    federation = Federation.from_clients({"a": (x, y)})
    made = unless_refused(lambda: fedapm.train(federation, lambda: two_layers(classes=1), loss=loss, **QUICK))
    if made is not None:
        test = federation[0].test
        right = ((made.model("a")(*test.inputs).squeeze(1) > 0) == (test.targets == 1)).double().mean().item()
        assert made.per_client.loc["a", "accuracy"] == pytest.approx(right)


def test_batch_normalisation_survives_a_last_batch_of_one() -> None:
    def normalised() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))

    federation = Federation.from_clients({"a": blobs(21)}, test={"a": blobs(9, seed=1)})
    made = fedapm.train(federation, normalised, **(QUICK | {"personal": ["2"], "batch_size": 10}))
    assert made.history["train_loss"].iloc[-1] < made.history["train_loss"].iloc[0]


def test_every_client_keeps_running_statistics_of_its_own() -> None:
    def normalised() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))

    x, y = blobs(20)
    federation = Federation.from_clients({"low": (x - 10, y), "high": (x + 10, y)})
    made = fedapm.train(federation, normalised, **(QUICK | {"personal": ["1"], "batch_size": 8}))
    assert (made.model("low")[0].running_mean < -3).all()
    assert (made.model("high")[0].running_mean > 3).all()


def test_one_client_with_a_loss_beyond_all_numbers_does_not_break_the_records(tmp_path: Path) -> None:
    x, _ = blobs(20)
    y = x[:, :1]
    federation = Federation.from_clients({"usual": (x, y), "huge": (x, y * 1e20)})
    options = {"personal": ["bias"], "rounds": 1, "fraction": 1.0, "lr": 1e-3, "evaluate": "local"}
    options["final_personal_epochs"] = 0  # which would put the shared part that is beyond all numbers into all models
    fedapm.train(federation, lambda: nn.Linear(4, 1), out=tmp_path / "run", **options)
    last = load_run(tmp_path / "run").rounds[-1]
    assert last["evaluations"]["model"]["per_client"]["train_loss"][1] is None


def test_a_longer_run_goes_on_where_the_shorter_one_ended(tmp_path: Path) -> None:
    whole = fedapm.train(blob_clients(), two_layers, **QUICK)
    fedapm.train(blob_clients(), two_layers, out=tmp_path / "run", **(QUICK | {"rounds": 1}))
    rest = fedapm.train(blob_clients(), two_layers, out=tmp_path / "run", resume=True, **QUICK)
    pd.testing.assert_frame_equal(whole.history, rest.history, check_exact=True)
    rounds = [json.loads(line)["round"] for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert rounds == [0, 1, 2, 3]


def test_a_run_interrupted_while_it_evaluates_can_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = QUICK | {"count": 3, "checkpoint_every": 0, "engine": "sequential"}
    federation = blob_clients(6)
    whole = fedapm.train(federation, two_layers, **options)
    evaluate, asked = SequentialEngine.evaluate, []

    def interrupted_in_round_1(self: SequentialEngine, *arguments: Any) -> Any:
        asked.append(arguments)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return evaluate(self, *arguments)

    monkeypatch.setattr(SequentialEngine, "evaluate", interrupted_in_round_1)
    with pytest.raises(Interrupted):
        fedapm.train(federation, two_layers, out=tmp_path / "run", **options)
    rest = fedapm.train(federation, two_layers, out=tmp_path / "run", resume=True, **options)
    pd.testing.assert_frame_equal(whole.history, rest.history, check_exact=True)


def same_state(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_outputs_for_new_samples(result: Result) -> None:
    x, _ = blobs(7, seed=5)
    outputs = result.predict("south", x.astype(np.float64))
    assert torch.equal(outputs, result.model("south")(torch.from_numpy(x)).detach())
    with refused("south", "(7, 3)"):
        result.predict("south", x[:, :3])
    with refused("no samples"):
        result.predict("south", x[:0])


def test_a_result_fits_on_a_screen(result: Result) -> None:
    assert re.fullmatch(r"Result\(FedAPM on own data, 3 clients, 3 rounds, accuracy [\d.]+\)", repr(result))


@pytest.mark.parametrize("algorithm", ["fedapm", "ditto", "fedrod", "fedcp"])
def test_a_run_of_a_named_data_set_comes_back_from_its_folder(algorithm: str, tmp_path: Path) -> None:
    made = fedapm.train("digits", algorithm=algorithm, rounds=1, fraction=0.1, out=tmp_path / "run")
    loaded = fedapm.load(tmp_path / "run")
    pd.testing.assert_frame_equal(loaded.history, made.history, check_exact=True)
    pd.testing.assert_frame_equal(loaded.per_client, made.per_client, check_exact=True)
    assert loaded.records == made.records
    assert loaded.settings == made.settings
    assert loaded.clients == made.clients
    assert repr(loaded) == repr(made).replace("Result(", "LoadedResult(", 1)
    x = made.federation[3].test.inputs[0]
    for view in made.views:
        assert same_state(loaded.state_dict("3", view), made.state_dict("3", view))
        assert type(loaded.model(3, view)) is type(made.model(3, view))
        assert torch.equal(loaded.predict("3", x, view), made.predict("3", x, view))
    with refused("'Q'"):
        loaded.model("3", "Q")
    loaded.report(tmp_path / "report.html")


def test_a_run_comes_back_in_a_fresh_process(tmp_path: Path) -> None:
    made = fedapm.train("digits", rounds=1, fraction=0.1, out=tmp_path / "run")
    x = made.federation[0].test.inputs[0][:2]
    code = (
        f"import fedapm, torch; loaded = fedapm.load({str(tmp_path / 'run')!r}); x = torch.tensor({x.tolist()}); "
        "print(loaded.predict('0', x).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert np.allclose(json.loads(done.stdout), made.predict("0", x), atol=1e-6)


def test_a_folder_of_an_earlier_version_comes_back_too(tmp_path: Path) -> None:
    made = fedapm.train("digits", rounds=1, fraction=0.1, out=tmp_path / "run")
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    for key in ("classes", "input_shapes", "metrics"):
        del info[key]
    (tmp_path / "run" / "run.json").write_text(json.dumps(info))
    loaded = fedapm.load(tmp_path / "run")
    assert same_state(loaded.model("3").state_dict(), made.state_dict("3"))


def test_a_network_of_ones_own_comes_back_if_it_is_given(result: Result, tmp_path: Path) -> None:
    folder = result.save(tmp_path / "run")
    alone = fedapm.load(folder)
    assert alone.history["accuracy"].tolist() == result.history["accuracy"].tolist()
    assert same_state(alone.state_dict("west"), result.state_dict("west"))
    with refused("your own (Sequential)", "model=..."):
        alone.model("west")
    x, _ = blobs(5)
    for given in (two_layers, two_layers()):
        assert torch.equal(fedapm.load(folder, given).predict("west", x), result.predict("west", x))
    with refused("'head.weight'", "(4, 6)", "(3, 6)", "west"):
        fedapm.load(folder, lambda: two_layers(classes=4)).model("west")
    with refused("'extra.weight'", "lacks", "west"):
        fedapm.load(folder, lambda: nn.Sequential(OrderedDict(head=nn.Linear(6, 3), extra=nn.Linear(3, 3)))).model(2)
    with refused("'east'"):
        alone.state_dict("east")


@dataclass(frozen=True)
class Unregistered(FedAPM):
    """A method that only this file knows."""

    name = "unregistered"


def test_a_run_of_a_method_of_ones_own_comes_back(tmp_path: Path) -> None:
    made = fedapm.train(blob_clients(), two_layers, algorithm=Unregistered(), out=tmp_path / "run", **QUICK)
    assert same_state(fedapm.load(tmp_path / "run", two_layers).model("b").state_dict(), made.state_dict("b"))


def test_networks_that_differ_from_client_to_client_come_back(tmp_path: Path) -> None:
    def network(client: fedapm.ClientData) -> nn.Module:
        return two_layers(classes=client.classes)

    federation = Federation.from_clients({k: blobs(30, classes=k, seed=k) for k in (2, 4)})
    made = fedapm.train(federation, network, out=tmp_path / "run", **QUICK)
    loaded = fedapm.load(tmp_path / "run", network)
    x, _ = blobs(5)
    for client in ("2", "4"):
        assert torch.equal(loaded.predict(client, x), made.predict(client, x))


def test_what_cannot_be_loaded_is_refused_in_one_line(tmp_path: Path) -> None:
    with refused("not a run folder"):
        fedapm.load(tmp_path)
    fedapm.train(blob_clients(), two_layers, out=tmp_path / "run", save_models=False, **QUICK)
    with refused("client a", "not saved"):
        fedapm.load(tmp_path / "run", two_layers).model("a")


AUTO: dict[str, Any] = {"rounds": 2, "fraction": 1.0, "batch_size": 20}


def test_a_split_that_is_not_given_is_searched(tmp_path: Path) -> None:
    result = fedapm.train(blob_clients(), two_layers, out=tmp_path / "run", **AUTO)
    chosen = json.loads((tmp_path / "run" / "split" / "split.json").read_text())["chosen"]
    assert result.settings["model"]["personal"] == chosen["personal"]
    # what the method leaves open is decided, too
    decided = {name: result.settings["algorithm"][name] for name in ("rho", "sigma", "evaluate")}
    assert decided["evaluate"] != "auto"
    explicit = fedapm.train(blob_clients(), two_layers, personal=chosen["personal"], **decided, **AUTO)
    assert explicit.records == result.records
    loaded = fedapm.load(tmp_path / "run", two_layers)
    assert loaded.state_dict("a").keys() == result.state_dict("a").keys()
    again = fedapm.train(blob_clients(), two_layers, out=tmp_path / "run", resume=True, **AUTO)
    assert again.records == result.records
    named = fedapm.train(blob_clients(), two_layers, personal="auto", **AUTO)
    assert named.settings == result.settings


@pytest.mark.parametrize(
    ("options", "personal"),
    [
        ({"personal": []}, []),
        ({"frozen": ["body"]}, []),
        ({"preset": "output"}, None),
        ({"algorithm": "fedavg"}, []),
        ({"algorithm": "fedrod"}, []),
        ({"algorithm": "fedper"}, []),
    ],
)
def test_a_split_is_not_searched_where_it_is_given_or_of_no_use(
    options: dict[str, Any], personal: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedapm.tuning.split.with_split", None)

    class Net(nn.Sequential):
        stages: typing.ClassVar = {"output": ("head",), "head": ("head",)}

    result = fedapm.train(blob_clients(), lambda: Net(OrderedDict(two_layers().named_children())), **AUTO | options)
    if personal is not None:
        assert result.settings["model"]["personal"] == personal


def test_a_named_data_set_keeps_its_own_split_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"rounds": 1, "fraction": 0.1}
    assert fedapm.train("digits", **options).settings["model"]["preset"] == "output"
    asked = []

    def search(experiment: Any, *_: object, **__: object) -> Any:
        asked.append(experiment.model.split)
        return replace(experiment, model=experiment.model.with_patterns(["stem"]))

    monkeypatch.setattr("fedapm.tuning.split.with_split", search)
    assert fedapm.train("digits", personal="auto", **options).settings["model"]["personal"] == ["stem"]
    assert asked == ["auto"]


def test_networks_that_differ_are_searched_where_they_agree() -> None:
    def make(client: fedapm.ClientData) -> nn.Module:
        return nn.Sequential(OrderedDict(body=nn.Linear(4, 5), head=nn.Linear(5, client.classes)))

    federation = Federation.from_clients({"few": blobs(40, 4, 2), "many": blobs(40, 4, 3)})
    result = fedapm.train(federation, make, **AUTO)
    assert {"shared", "personal"} & {k for k, v in result.settings["model"].items() if v}
    assert (result.model("few").head.out_features, result.model("many").head.out_features) == (2, 3)
    with refused("nothing can be shared"):
        fedapm.train(federation, lambda client: nn.Linear(4, client.classes), **AUTO)


@pytest.mark.parametrize(
    ("says", "options"),
    [
        ("no values yet", {"model": lambda: nn.Sequential(nn.LazyLinear(3))}),
        ("no values yet", {"model": lambda: nn.Linear(4, 3, device="meta")}),
        ("'meta' cannot be used", {"device": "meta"}),
        ("solver.lr = 1e+300: should be at most", {"lr": 1e300}),
        ("solver.weight_decay", {"weight_decay": 10**400}),
    ],
)
def test_what_no_run_can_be_made_of_is_one_sentence(says: str, options: dict[str, Any]) -> None:
    with refused(says):
        fedapm.train(blob_clients(), options.pop("model", two_layers), personal=[], rounds=1, **options)


def test_a_billion_rounds_begin_at_once() -> None:
    class Stop(fedapm.Callback):
        def on_round_end(self, state: Any, record: Any, seconds: float) -> None:
            raise fedapm.StopRun("enough")

    made = fedapm.train(blob_clients(), two_layers, personal=["head.*"], rounds=10**9, callbacks=[Stop()])
    assert len(made.records) == 1
