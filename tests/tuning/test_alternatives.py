"""What a method leaves to itself is decided on validation data, by whole runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedapm
from fedapm import FedAlt, FedAPM, Interrupted
from fedapm.core.metrics import ACCURACY, TEST_LOSS
from fedapm.runs.files import read_json
from fedapm.runs.layout import ALTERNATIVES_INFO
from fedapm.tuning.split.alternatives import _best, with_alternative
from fedapm.tuning.split.scores import DIVERGED, Score
from tests.helpers.unit import blob_clients, two_layers
from tests.tuning.test_split import TINY


def scores(*seeds: list[float]) -> list[Score]:
    return [Score(tuple(values), 1.0) for values in seeds]


def test_the_alternatives_of_fedapm_are_fedalt_the_correction_both_at_once_and_own_copies() -> None:
    cautious, corrected, joint, copies = FedAPM(kappa=0.3).alternatives().values()
    apart = FedAPM(kappa=0.3, phases="alternating")
    assert cautious == replace(apart, rho=0.0, sigma=0.0, evaluate="shared")
    assert corrected == replace(apart, evaluate="shared")
    assert joint == FedAPM(kappa=0.3, phases="joint", evaluate="shared")
    assert copies == replace(apart, evaluate="local")


def test_where_nothing_is_personal_there_is_nothing_to_do_at_once() -> None:
    assert not any(each.phases == "joint" for each in FedAPM().alternatives(personal=False).values())


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({"rho": 0.1}, 3),
        ({"sigma": 0.0}, 3),
        ({"evaluate": "local"}, 3),
        ({"rho": 0.1, "evaluate": "shared"}, 2),
        ({"rho": 0.1, "evaluate": "shared", "phases": "joint"}, 1),
        ({"lr_v": 0.1, "rho": 0.1}, 2),
    ],
)
def test_what_was_said_is_not_tried_otherwise(given: dict[str, Any], count: int) -> None:
    found = list(FedAPM(**given).alternatives().values())
    assert len(found) == count
    assert all(getattr(each, name) == value for each in found[-1:] for name, value in given.items())


def test_without_correction_it_is_fedalt_to_the_bit() -> None:
    settings = {"personal": ["head"], "rounds": 3, "fraction": 0.5, "seed": 4, "engine": "sequential"}
    cautious = next(iter(FedAPM().alternatives().values()))
    found = fedapm.train(blob_clients(), two_layers, algorithm=cautious, **settings)
    expected = fedapm.train(blob_clients(), two_layers, algorithm=FedAlt(), **settings)
    same = ["accuracy", "train_loss", "test_loss", "drift"]
    assert found.history[same].equals(expected.history[same])


CAUTIOUS = [0.5, 0.6, 0.7, 0.8]


class TestChoosing:
    def test_a_better_one_is_taken(self) -> None:
        better = [v + 0.1 + 0.01 * k for k, v in enumerate(CAUTIOUS)]
        found = {"a": scores(CAUTIOUS), "b": scores([0.1] * 4), "c": scores(better)}
        name, sentence = _best(found, 1, ACCURACY)
        assert name == "c"
        assert "better on validation data than a" in sentence

    def test_one_that_is_better_by_less_than_its_standard_error_is_not(self) -> None:
        noisy = [0.9, 0.3, 0.95, 0.5]
        name, sentence = _best({"a": scores(CAUTIOUS), "b": scores(noisy)}, 1, ACCURACY)
        assert name == "a"
        assert "nothing else was better" in sentence

    def test_a_lower_loss_is_better(self) -> None:
        lower = [v - 0.2 - 0.01 * k for k, v in enumerate(CAUTIOUS)]
        assert _best({"a": scores(CAUTIOUS), "b": scores(lower)}, -1, TEST_LOSS)[0] == "b"

    def test_those_that_diverged_are_left_out(self) -> None:
        assert _best({"a": [DIVERGED], "b": scores(CAUTIOUS)}, 1, ACCURACY)[0] == "b"
        assert _best({"a": [DIVERGED], "b": [DIVERGED]}, 1, ACCURACY)[0] == "a"


def test_what_was_decided_is_kept_and_not_decided_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = replace(TINY, model=TINY.model.with_patterns(["head"]))
    decided = with_alternative(experiment, blob_clients(), tmp_path, model=two_layers, progress=False)
    kept = read_json(tmp_path / ALTERNATIVES_INFO)
    assert decided.algorithm == replace(experiment.algorithm, **kept["settings"])
    assert decided.algorithm.evaluate != "auto"
    assert replace(decided, algorithm=experiment.algorithm) == experiment
    monkeypatch.setattr("fedapm.tuning.split.alternatives.decide", None)
    assert with_alternative(experiment, blob_clients(), tmp_path, model=two_layers, progress=False) == decided


def test_after_an_interruption_it_ends_as_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = replace(TINY, model=TINY.model.with_patterns(["head"]))
    whole = with_alternative(experiment, blob_clients(), tmp_path / "whole", model=two_layers, progress=False)
    rounds = 0

    def interrupt(*_: object) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 7:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedapm.tuning.split.display.FollowRounds.on_round_end", interrupt)
        with pytest.raises(Interrupted, match="interrupted"):
            with_alternative(experiment, blob_clients(), tmp_path / "cut", model=two_layers, progress=False)
    resumed = with_alternative(experiment, blob_clients(), tmp_path / "cut", model=two_layers, progress=False)
    assert resumed == whole
    sentences = [read_json(tmp_path / name / ALTERNATIVES_INFO)["sentence"] for name in ("cut", "whole")]
    assert sentences[0] == sentences[1]


def test_a_method_that_leaves_nothing_open_is_just_run(tmp_path: Path) -> None:
    experiment = replace(TINY, algorithm=FedAlt(), model=TINY.model.with_patterns(["head"]))
    assert with_alternative(experiment, blob_clients(), tmp_path, model=two_layers, progress=False) == experiment
    assert not list(tmp_path.iterdir())
