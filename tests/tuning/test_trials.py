"""Trials that go well, badly or not on: several seeds, diverged, pruned, refused."""

from __future__ import annotations

import json
import math
import re
import runpy
from pathlib import Path

import pytest
import torch

from fedapm.core.metrics import METRICS, Metric, Predictions
from fedapm.data import Federation
from fedapm.runs.records import load_run
from fedapm.tuning import Options, tuned_layer
from fedapm.tuning.scorer import Scorer
from tests.helpers.unit import refused
from tests.tuning.searches import search


def test_several_seeds_count_by_their_mean(tmp_path: Path) -> None:
    options = Options(trials=2, rounds=1, search=("solver.lr=0.1",), seeds=(3, 5), select="best")
    (found,) = search(tmp_path / "out", options=options, methods=["local"], workers=1).methods
    folder = tmp_path / "out" / "trials" / "local" / "0"
    scores = [Scorer("accuracy", "best").run_score(load_run(folder / f"seed-{s}").rounds) for s in (3, 5)]
    assert found.default == pytest.approx(sum(scores) / 2)
    assert scores[0] != scores[1]


def test_a_trial_that_diverges_is_recorded_and_not_chosen(tmp_path: Path) -> None:
    options = Options(trials=3, rounds=1, search=("solver.lr=1e30,0.1",), metric="-test_loss")
    (found,) = search(tmp_path / "out", options=options, methods=["local"]).methods
    assert (found.complete, found.diverged) == (2, 1)
    assert found.settings["solver.lr"] < 1
    run = load_run(tmp_path / "out" / "trials" / "local" / "1" / "seed-0")
    assert run.info["status"] == "diverged"


def test_a_method_whose_trials_all_diverge_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = Options(trials=2, rounds=1, search=("solver.lr=1e30",))
    layer = {"local": {"solver": {"lr": 1e29}}}
    found = search(tmp_path / "out", layer, options=options, methods=["local"])
    assert (found.methods[0].best, found.methods[0].diverged) == (None, 2)
    assert "every trial of Local only diverged" in caplog.text
    assert "every trial diverged" in found.path.read_text("utf-8")
    with refused("local"):
        tuned_layer(found.path, ["local"])


def test_a_pruned_trial_can_be_told_and_is_not_chosen(tmp_path: Path) -> None:
    values = "0.3,0.1,0.4,0.25,0.15,1e-7"
    options = Options(trials=7, rounds=5, search=(f"solver.lr={values}",))
    (found,) = search(tmp_path / "out", options=options, methods=["local"], workers=1).methods
    assert found.complete + found.pruned == found.trials == 7
    assert found.pruned >= 1
    assert found.number != 6
    run = load_run(tmp_path / "out" / "trials" / "local" / "6" / "seed-0")
    assert run.info["status"] == "interrupted"
    assert 0 < run.info["finished"] < 5
    assert run.rounds[-1]["round"] == run.info["finished"]
    record = json.loads((tmp_path / "out" / "tune.json").read_text("utf-8"))
    assert record["depends_on_workers"] is False, "with one worker it does not"


def test_a_trial_never_starts_processes_of_its_own(tmp_path: Path) -> None:
    options = Options(trials=1, rounds=1, search=("solver.lr=0.1",))
    for engine, ran in (("processes", "sequential"), ("vectorized", "vectorized"), ("auto", "sequential")):
        search(tmp_path / engine, {"engine": {"engine": engine}}, options=options, methods=["local"])
        folder = tmp_path / engine / "trials" / "local" / "0" / "seed-0"
        assert json.loads((folder / "engine.json").read_text("utf-8"))["engine"] == ran


def test_the_python_of_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2].joinpath("docs/how-to/tune.md").read_text("utf-8")
    (shown,) = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    (tmp_path / "shown.py").write_text(shown, "utf-8")
    found = runpy.run_path("shown.py")
    assert {*found["layer"]} == {"engine", "fedapm", "local"}
    assert capsys.readouterr().out.startswith("FedAPM 0.")


def test_a_score_that_no_client_has_is_named(tmp_path: Path) -> None:
    one_class = [
        (torch.randn(20, 64).numpy(), [k % 2] * 20)  # each client knows a single class, so that there is no AUC
        for k in range(3)
    ]
    clients = Federation.from_clients({str(k): pair for k, pair in enumerate(one_class)}, name="flat")
    options = Options(trials=1, rounds=1, metric="auc")
    with refused("auc", "--metric"):
        search(tmp_path / "out", {"model": {"name": "mlp"}}, options=options, methods=["local"], clients=clients)


def test_trials_can_be_scored_by_a_metric_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def brier(predictions: Predictions) -> float:
        shares = torch.softmax(predictions.outputs, 1)
        truth = torch.nn.functional.one_hot(predictions.targets, shares.shape[1])
        return (shares - truth).square().sum(1).mean().item()

    monkeypatch.setitem(METRICS._items, "brier", Metric("brier", "Brier score", brier, higher_is_better=False))
    options = Options(trials=3, rounds=1, search=("solver.lr=1e-9,0.1",), metric="brier", pruner="none")
    (found,) = search(tmp_path / "out", options=options, methods=["local"], workers=1).methods
    assert found.settings["solver.lr"] >= 0.1, "a lower score is better"
    assert found.best is not None
    assert -2 < found.best < 0
    assert options.text(found.best) == f"{-found.best:.4f}"
    assert options.scorer.worst == -math.inf
