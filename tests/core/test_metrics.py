"""Scores against torchmetrics and scikit-learn, and their distribution against arithmetic by hand."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from fedapm.core.metrics import METRICS, Predictions, Score, _ranks, distribution, one_vs_rest_auc, summarize
from tests.helpers.unit import few

NOTHING = {"accuracy": None, "f1": None, "auc": None}


def classification(logits: torch.Tensor, targets: torch.Tensor) -> dict[str, Score]:
    """The three scores of classes."""
    found = Predictions(logits, targets)
    return {name: METRICS[name].compute(found) for name in NOTHING}


@st.composite
def predictions(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of 2 to 5 classes and the truth, in which every class occurs; coarse logits have many ties."""
    classes = draw(st.integers(2, 5))
    truth = [*range(classes), *draw(st.lists(st.integers(0, classes - 1), max_size=40))]
    stream = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    logits = 2 * torch.randn(len(truth), classes, generator=stream)
    if draw(st.booleans()):
        logits = logits.round()
    return logits, torch.tensor(truth)


@few
@given(predictions())
def test_scores_agree_with_torchmetrics(found: tuple[torch.Tensor, torch.Tensor]) -> None:
    # loaded where it is used: every worker imports this file, and one of them runs it
    from torchmetrics.functional.classification import multiclass_accuracy, multiclass_auroc, multiclass_f1_score

    logits, truth = found
    count = logits.shape[1]
    chance = torch.softmax(logits.double(), 1)
    scores = classification(logits, truth)
    assert scores["accuracy"] == pytest.approx(multiclass_accuracy(logits, truth, count, average="micro").item())
    assert scores["f1"] == pytest.approx(multiclass_f1_score(logits, truth, count, average="weighted").item(), abs=1e-6)
    assert scores["auc"] == pytest.approx(multiclass_auroc(chance, truth, count, average="macro").item(), abs=1e-6)


@few
@given(predictions(), st.data())
def test_classes_missing_from_the_test_set_are_left_out(
    found: tuple[torch.Tensor, torch.Tensor], data: st.DataObject
) -> None:
    logits, truth = found
    count = logits.shape[1]
    gone = data.draw(st.sets(st.integers(0, count - 1), max_size=count - 2))
    kept = torch.tensor([int(t) not in gone for t in truth])
    logits, truth = logits[kept], truth[kept]
    chance, predicted = torch.softmax(logits.double(), 1).numpy(), logits.argmax(1).numpy()
    present = sorted(set(range(count)) - gone)
    areas = [roc_auc_score(truth.numpy() == value, chance[:, value]) for value in present]
    scores = classification(logits, truth)
    assert scores["accuracy"] == pytest.approx(accuracy_score(truth, predicted))
    assert scores["f1"] == pytest.approx(f1_score(truth, predicted, average="weighted", zero_division=0))
    assert scores["auc"] == pytest.approx(statistics.fmean(areas))


def test_equal_scores_are_a_coin_toss() -> None:
    assert one_vs_rest_auc(np.full((6, 2), 0.5), np.array([0, 0, 1, 1, 1, 1])) == 0.5


def test_two_classes_by_hand() -> None:
    logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    scores = classification(logits, torch.tensor([0, 0, 1, 1]))
    assert scores["accuracy"] == 0.75
    # class 0: 2 hits, 3 claimed, 2 true; class 1: 1 hit, 1 claimed, 2 true
    assert scores["f1"] == pytest.approx((2 * 4 / 5 + 2 * 2 / 3) / 4)
    # of the pairs (member of class 1, member of class 0) the first sample beats both, the second none
    assert scores["auc"] == pytest.approx(0.5)


def test_a_class_the_network_never_saw_in_training_counts_as_wrong() -> None:
    scores = classification(torch.eye(3)[[0, 1, 0]], torch.tensor([0, 1, 2]))
    assert scores["accuracy"] == pytest.approx(2 / 3)


@few
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30))
def test_equals_share_their_ranks_as_scipy_says(values: list[int]) -> None:
    numbers = np.array(values, dtype=np.float64)
    assert np.array_equal(_ranks(numbers), rankdata(numbers))


def test_scores_that_are_no_numbers_have_no_auc() -> None:
    scores = np.array([[0.1, 0.9], [math.nan, math.nan], [0.8, 0.2]])
    assert math.isnan(one_vs_rest_auc(scores, np.array([1, 0, 0])) or 0.0)


def test_one_class_has_an_accuracy_but_no_auc() -> None:
    scores = classification(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 1]))
    assert scores == {"accuracy": 0.5, "f1": pytest.approx(2 / 3), "auc": None}


def test_no_test_data_has_no_scores() -> None:
    assert classification(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)) == NOTHING


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_predictions_that_are_no_numbers_are_all_wrong(bad: float) -> None:
    logits = torch.eye(3)
    logits[1, 2] = bad
    assert classification(logits, torch.arange(3)) == {"accuracy": 0.0, "f1": 0.0, "auc": None}


def test_huge_logits_are_still_ranked() -> None:
    scores = classification(1e6 * torch.eye(3), torch.arange(3))
    assert scores == {"accuracy": 1.0, "f1": 1.0, "auc": 1.0}


@pytest.mark.parametrize(("clients", "worst"), [(1, 1), (9, 1), (10, 1), (19, 1), (20, 2), (25, 2)])
def test_mean_spread_and_worst_tenth_by_hand(clients: int, worst: int) -> None:
    values = [((7 * k) % clients) / clients for k in range(clients)]
    found = distribution(values)
    assert found["mean"] == pytest.approx(statistics.fmean(values))
    assert found["std"] == pytest.approx(statistics.pstdev(values))
    assert found["worst10"] == pytest.approx(statistics.fmean(sorted(values)[:worst]))
    assert found["clients"] == clients


@pytest.mark.parametrize(("clients", "worst"), [(1, 1), (9, 1), (10, 1), (19, 1), (20, 2), (25, 2)])
def test_the_worst_tenth_of_a_loss_is_the_highest(clients: int, worst: int) -> None:
    values = [float((7 * k) % clients) for k in range(clients)]
    found = distribution(values, worst_is_high=True)
    assert found["worst10"] == pytest.approx(statistics.fmean(sorted(values)[-worst:]))


def test_clients_without_a_value_are_counted_out() -> None:
    assert distribution([0.5, None, 1.0, math.nan]) == {"mean": 0.75, "std": 0.25, "worst10": 0.5, "clients": 2}
    assert distribution([None, None]) is None
    assert distribution([]) is None


def test_an_evaluation_knows_scores_from_losses_and_says_how_many_have_an_auc() -> None:
    rows = [
        {"accuracy": 0.9, "auc": None, "test_loss": 0.1},
        {"accuracy": 0.5, "auc": 0.8, "test_loss": 3.0},
        {"accuracy": 0.7, "auc": 0.6, "test_loss": math.inf},
    ]
    found = summarize(rows)
    assert found["accuracy"]["worst10"] == 0.5
    assert found["auc"]["mean"] == pytest.approx(0.7)
    assert found["auc"]["clients"] == 2
    assert found["test_loss"]["worst10"] == 3.0
    assert found["per_client"] == {
        "accuracy": [0.9, 0.5, 0.7],
        "auc": [None, 0.8, 0.6],
        "test_loss": [0.1, 3.0, None],
    }


def test_a_score_that_no_client_has_is_left_out() -> None:
    found = summarize([{"accuracy": 1.0, "auc": None}, {"accuracy": 0.0, "auc": None}])
    assert "auc" not in found
    assert found["per_client"]["auc"] == [None, None]
