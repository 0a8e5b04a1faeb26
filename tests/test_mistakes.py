"""Mistakes in data, networks and settings: each has one sentence, and none of them is torch's own."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedapm
from fedapm import Federation
from fedapm.experiments.settings import Experiment
from tests.helpers.unit import refused

PATH = Path(__file__).parents[1] / "examples" / "mistakes.py"
FOREIGN = (
    "mat1",
    "mat2",
    "Expected",
    "expected scalar",
    "size mismatch",
    "Traceback",
    "RuntimeError",
    "torch.FloatTensor",
)


def table() -> Any:
    spec = importlib.util.spec_from_file_location("mistakes", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mistakes = table()


def test_there_are_at_least_thirty() -> None:
    assert len(mistakes.MISTAKES) >= 30


@pytest.mark.parametrize("name", list(mistakes.MISTAKES))
def test_a_mistake_has_one_sentence(name: str) -> None:
    make, mentions = mistakes.MISTAKES[name]
    with refused(*mentions.split("|")):
        make()
    said = mistakes.message(make)
    assert not [word for word in FOREIGN if word in said], said
    assert said.endswith((".", "?"))


def blobs(dtype: Any = np.float32) -> tuple[Any, Any, Any]:
    y = np.arange(40) % 2
    x = (np.eye(2, 4)[y] * 5 + np.random.default_rng(0).random((40, 4))).astype(dtype)
    return x, y, ["a", "b"] * 20


@pytest.mark.parametrize(
    ("patterns", "sentence"),
    [({"personal": ["*"]}, "nothing is shared: this is local training"), ({"shared": ["*"]}, "nothing is personal")],
)
def test_a_split_that_splits_nothing_is_remarked_on(patterns, sentence, caplog) -> None:
    with caplog.at_level(logging.WARNING, "fedapm"):
        fedapm.train(Federation.from_arrays(*blobs()), lambda: nn.Linear(4, 2), rounds=1, **patterns)
    assert sentence in caplog.text


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int16, np.uint8, bool, ">f4"])
def test_inputs_of_every_type_train_and_predict(dtype) -> None:
    x, y, who = blobs(dtype)
    result = fedapm.train(Federation.from_arrays(x, y, who), lambda: nn.Linear(4, 2), personal=["bias"], rounds=1)
    assert result.predict("a", x[:3]).shape == (3, 2)


def test_whole_numbers_stay_whole_for_an_embedding() -> None:
    x = np.arange(40).reshape(20, 2) % 10
    model = nn.Sequential(nn.Embedding(10, 2), nn.Flatten(), nn.Linear(4, 2))
    result = fedapm.train(Federation.from_arrays(x, np.arange(20) % 2, ["a"] * 20), model, personal=["2"], rounds=1)
    assert result.federation[0].train.inputs[0].dtype.is_floating_point is False


def test_the_trial_changes_nothing_that_is_learnt(monkeypatch) -> None:
    def history() -> Any:
        def model() -> nn.Module:
            return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))

        return fedapm.train(Federation.from_arrays(*blobs()), model, personal=["3"], rounds=2, fraction=1.0).history

    with_trial = history()
    monkeypatch.setattr("fedapm.experiments.build.check_clients", lambda problem: None)
    assert with_trial.equals(history())


def test_a_setting_in_the_wrong_table_is_pointed_to_the_right_one() -> None:
    with refused("'engine.rounds'"):
        Experiment.from_tables({"solver": {"rounds": 3}})
    with refused("'lr'"):
        Experiment.from_tables({"solver": {"learning_rate": 3}})
