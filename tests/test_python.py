"""compare, tune, results in notebooks and the classifier: Python with data and networks of one's own."""

from __future__ import annotations

import json
import logging
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedapm
from fedapm import FedapmError, Federation
from fedapm.loggers.console import ProgressDisplay
from fedapm.loggers.notebook import NotebookBars, in_notebook
from tests.helpers.own import PEOPLE, arrays
from tests.helpers.unit import refused

GIVEN = arrays()
FEDERATION = Federation.from_arrays(GIVEN["x"], GIVEN["y"], GIVEN["client"], name="people")
QUICK: dict[str, Any] = {"rounds": 2, "fraction": 0.5, "epochs": 1, "final_personal_epochs": 0}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> fedapm.Comparison:
    out = tmp_path_factory.mktemp("compare") / "c"
    methods = ["fedapm", "fedavg", "fedprox"]
    return fedapm.compare(FEDERATION, net, methods, (0, 1), personal=["2"], fedprox={"mu": 0.5}, out=out, **QUICK)


def test_a_comparison_has_a_leaderboard_and_everything_behind_it(compared):
    board = compared.leaderboard
    assert set(board.index) == {"FedAPM", "FedAvg", "FedProx"}
    assert board["accuracy"].is_monotonic_decreasing
    assert (board["seeds"] == 2).all()
    by_hand = compared.per_client.loc["fedapm"]["accuracy"].groupby("seed").mean().mean()
    assert board.loc["FedAPM", "accuracy"] == pytest.approx(by_hand)
    assert compared.history.loc[("fedavg", 1)].shape[0] == 3
    assert compared.results["fedprox", 0].settings["algorithm"]["mu"] == 0.5
    assert compared.results["fedapm", 0].settings["data"]["name"] == "people"
    assert compared.results["fedapm", 1].predict("ann", GIVEN["x"][:2]).shape == (2, 3)
    assert "Comparison(accuracy: " in repr(compared)
    assert "<table" in compared._repr_html_()
    assert compared.report().is_file()


def test_a_run_of_a_comparison_is_the_run_that_train_gives(compared):
    alone = fedapm.train(FEDERATION, net, personal=["2"], seed=1, **QUICK)
    assert alone.per_client.equals(compared.results["fedapm", 1].per_client)


def test_a_comparison_that_is_there_is_kept_and_may_grow(compared):
    before = (compared.folder / "fedapm" / "seed-0" / "run.json").stat().st_mtime_ns
    more = fedapm.compare(FEDERATION, net, ["fedapm", "local"], (0,), personal=["2"], out=compared.folder, **QUICK)
    assert (compared.folder / "fedapm" / "seed-0" / "run.json").stat().st_mtime_ns == before
    assert "Local" in more.leaderboard.index or "Local only" in " ".join(more.leaderboard.index)


def test_tuning_takes_own_networks_and_not_the_defaults_of_digits(tmp_path):
    search = {"algorithm.rho": [0.01, 0.1], "model.split": "auto"}
    tuned = fedapm.tune(FEDERATION, net, search=search, trials=3, workers=1, out=tmp_path / "t", lr=0.05, **QUICK)
    assert len(tuned.trials) == 3
    assert list(tuned.leaderboard.index) == ["fedapm"]
    assert "validation data" in repr(tuned)
    trial = fedapm.load(tmp_path / "t" / "trials" / "fedapm" / "0" / "seed-0")
    assert trial.settings["data"] == {"name": "people", "validation": 0.2}
    assert trial.settings["solver"]["lr"] == 0.05
    board = fedapm.compare(FEDERATION, net, ["fedapm"], (0,), personal=["2"], tuned=tuned, **QUICK).leaderboard
    assert len(board) == 1


def test_what_compare_and_tune_refuse_is_one_line():
    with refused("compare() has no keyword 'epoch'", "'epochs'"):
        fedapm.compare(FEDERATION, net, epoch=2)
    with refused("'fedamp'", "'fedapm'"):
        fedapm.compare(FEDERATION, net, ["fedamp"])
    with refused("tune() has no keyword 'learning_rate'", "'lr'"):
        fedapm.tune(FEDERATION, net, learning_rate=2)
    with pytest.raises(TypeError, match="needs a model"):
        fedapm.compare(FEDERATION)


@pytest.fixture(scope="module")
def result() -> fedapm.Result:
    return fedapm.train(FEDERATION, net, personal=["2"], **QUICK)


def test_probabilities_and_labels(result, tmp_path):
    outputs = result.predict("bob", GIVEN["x"][:4])
    torch.testing.assert_close(result.predict_proba("bob", GIVEN["x"][:4]), outputs.softmax(1))
    labels = result.predict_labels("bob", GIVEN["x"][:4])
    assert labels == [("run", "sit", "walk")[k] for k in outputs.argmax(1).tolist()]
    loaded = fedapm.load(result.save(tmp_path / "r"), net)
    assert loaded.predict_labels("bob", GIVEN["x"][:4]) == labels
    torch.testing.assert_close(loaded.predict_proba("bob", GIVEN["x"][:4]), result.predict_proba("bob", GIVEN["x"][:4]))


def test_labels_from_one_come_back_as_they_were():
    y = np.unique(GIVEN["y"], return_inverse=True)[1] + 1
    made = fedapm.train(Federation.from_arrays(GIVEN["x"], y, GIVEN["client"]), net, personal=["2"], **QUICK)
    assert set(made.predict_labels("ann", GIVEN["x"])) <= {1, 2, 3}
    new = fedapm.personalize(made, (GIVEN["x"][:20], y[:20]), epochs=1)
    assert new.train == 16


def test_quantities_have_no_probabilities():
    data = Federation.from_arrays(GIVEN["x"], GIVEN["x"][:, :1], GIVEN["client"])
    made = fedapm.train(data, lambda: nn.Linear(5, 1), personal=["bias"], **QUICK)
    with refused("quantities"):
        made.predict_proba("ann", GIVEN["x"])
    assert made.plot() is not None


def test_a_result_shows_itself(result, tmp_path):
    assert len(repr(result)) < 120
    assert "ann" in result._repr_html_()
    figure = result.plot(tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 10_000
    assert len(figure.axes) == 4


def test_a_notebook_has_bars_that_move(monkeypatch):
    shown: list[str] = []

    class Handle:
        def update(self, content: str) -> None:
            shown.append(content)

    def display(content: str, display_id: bool) -> Handle:
        shown.append(content)
        return Handle()

    fake = types.ModuleType("IPython")
    shell = type("ZMQInteractiveShell", (), {})()
    fake.get_ipython = lambda: shell  # type: ignore[attr-defined]
    fake.display = types.ModuleType("IPython.display")  # type: ignore[attr-defined]
    fake.display.HTML, fake.display.display = str, display  # type: ignore[attr-defined]
    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setitem(sys.modules, "IPython.display", fake.display)  # type: ignore[attr-defined]
    assert in_notebook()
    with ProgressDisplay() as bars:
        for done in range(4):
            bars.update("rounds <1>", done, 3, "accuracy 0.5")
    assert 'value="3" max="3"' in shown[-1]
    assert "rounds &lt;1&gt;" in shown[-1]
    assert "3/3" in shown[-1]
    assert NotebookBars().as_html() == "<table></table>"


def test_the_classifier_is_one_model_for_each_client():
    from fedapm import FedAPMClassifier

    made = FedAPMClassifier(rounds=4).fit(GIVEN["x"], GIVEN["y"], client=GIVEN["client"])
    assert made.clients_ == list(PEOPLE)
    assert made.score(GIVEN["x"], GIVEN["y"], client=GIVEN["client"]) > 0.8
    alone = made.predict_proba(GIVEN["x"][:3], client="bob")
    assert alone.shape == (3, 3)
    assert np.allclose(alone.sum(1), 1)
    for wrong, mentions in (({}, "client="), ({"client": "bbo"}, "'bob'"), ({"client": ["bob"]}, "one id for each")):
        with pytest.raises(ValueError, match=mentions):
            made.predict(GIVEN["x"][:3], **wrong)
    with pytest.raises(ValueError, match="NaN"):
        made.fit(GIVEN["x"], GIVEN["y"], client=np.full(96, np.nan))
    with pytest.raises(ValueError, match="'hiden'"):
        FedAPMClassifier(hyperparameters={"hiden": 3}).fit(GIVEN["x"], GIVEN["y"])


def test_the_classifier_passes_the_checks_of_scikit_learn():
    from sklearn.utils.estimator_checks import check_estimator

    from fedapm import FedAPMClassifier

    quick = FedAPMClassifier(rounds=3, epochs=3, hidden=8, lr=0.3)
    checked = check_estimator(quick, on_fail=None, on_skip=None)
    failed = [c["check_name"] for c in checked if c["status"] == "failed"]
    assert failed == []
    assert sum(c["status"] == "passed" for c in checked) > 30


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb")), ids=lambda p: p.stem)
def test_a_notebook_runs_from_top_to_bottom(path, monkeypatch, tmp_path, caplog):
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert len([line for cell in cells for line in cell["source"] if line.strip()]) < 30
    names: dict[str, Any] = {"__name__": "__main__"}
    caplog.set_level(logging.ERROR, "fedapm")
    sources = ["".join(cell["source"]) for cell in cells]
    assert any('"rounds": 10' in source for source in sources) == (path.stem == "own_data")
    for number, source in enumerate(sources, start=1):
        exec(compile(source.replace('"rounds": 10', '"rounds": 4'), f"{path.name}, cell {number}", "exec"), names)
    if "scores" in names:
        assert names["scores"][0] > names["scores"][1]
    else:
        assert names["new"].after["accuracy"] > names["new"].before["accuracy"]
        assert np.allclose(names["logits"], names["new"].predict(names["mine"]), atol=1e-5)


def test_an_interrupted_run_is_no_error_of_the_users():
    assert not issubclass(fedapm.Interrupted, FedapmError)
