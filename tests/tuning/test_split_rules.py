"""How the search of the split spends its budget and how it decides, with answers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedapm.core.metrics import ACCURACY, AUC, TEST_LOSS
from fedapm.tuning.split.ladder import Rung, cost, ladder
from fedapm.tuning.split.options import SplitOptions
from fedapm.tuning.split.results import Standings
from fedapm.tuning.split.scores import DIVERGED, Score, gap, score_run
from tests.helpers.unit import refused

SEEDS = (0, 1)
LAST = Rung(3, 4, SEEDS)


def test_candidates_are_halved_and_rounds_doubled() -> None:
    rungs = ladder(12, 200, 50, SEEDS)
    assert [(r.candidates, r.seeds) for r in rungs] == [(12, (0,)), (6, (0,)), (3, SEEDS)]
    assert [r.rounds for r in rungs] == [5, 10, 21]
    # 12 × 5, then 6 × 5 more, then 3 × 11 more and 3 × 21 with the second seed
    assert cost(rungs) == 60 + 30 + 33 + 63


@pytest.mark.parametrize("candidates", range(2, 13))
@pytest.mark.parametrize("budget", [40, 100, 1000])
def test_the_budget_is_kept_and_nearly_used(candidates: int, budget: int) -> None:
    rungs = ladder(candidates, budget, 10**6, SEEDS)
    assert cost(rungs) <= budget
    assert cost(rungs) >= budget - 60
    assert rungs[-1].candidates <= 4
    assert rungs[-1].seeds == SEEDS


def test_no_run_is_longer_than_the_one_the_split_is_for() -> None:
    assert ladder(12, 10**6, 20, SEEDS)[-1].rounds == 20


def test_nobody_is_dropped_where_the_budget_is_enough_for_everyone() -> None:
    assert ladder(5, 500, 50, SEEDS) == (Rung(5, 50, SEEDS),)
    assert len(ladder(5, 499, 50, SEEDS)) > 1
    assert ladder(5, 500, 50, SEEDS, continued=False) == (Rung(5, 50, SEEDS),)


def test_every_candidate_gets_a_round_unless_the_budget_says_otherwise() -> None:
    rungs = ladder(12, 4, 1, SEEDS)
    assert rungs == (Rung(12, 1, (0,)), Rung(3, 1, SEEDS))
    assert cost(rungs) == 15
    with refused("budget of 14", "at least 15"):
        ladder(12, 14, 50, SEEDS, asked=True)
    assert ladder(12, 15, 50, SEEDS, asked=True) == rungs


def test_runs_that_start_again_cost_more() -> None:
    rungs = ladder(12, 200, 50, SEEDS, continued=False)
    assert cost(rungs, continued=False) <= 200
    assert cost(rungs, continued=False) == sum(r.candidates * r.rounds * len(r.seeds) for r in rungs)


def test_with_one_seed_the_interval_is_that_of_a_paired_t_test() -> None:
    rng = np.random.default_rng(0)
    left, right = rng.normal(0.3, 1, (1, 12)), rng.normal(0, 1, (1, 12))
    test = stats.ttest_rel(left[0], right[0])
    interval = test.confidence_interval(0.95)
    found = gap(left, right)
    assert (found.mean, found.low, found.high) == pytest.approx(
        (float(np.mean(left - right)), interval.low, interval.high)
    )


def test_equal_seeds_say_no_more_than_one() -> None:
    rng = np.random.default_rng(1)
    once = rng.normal(size=(1, 9))
    twice = np.repeat(once, 2, axis=0)
    zero = np.zeros_like
    assert gap(twice, zero(twice)).low == pytest.approx(gap(once, zero(once)).low)


def test_a_seed_that_moves_all_clients_widens_the_interval() -> None:
    rng = np.random.default_rng(2)
    noise = rng.normal(scale=0.01, size=(2, 30))
    moved = noise + np.array([[0.2], [0.0]])
    calm, shaken = gap(noise + 0.1, 0 * noise), gap(moved, 0 * noise)
    assert calm.clear
    assert not shaken.clear
    assert shaken.mean == pytest.approx(calm.mean, abs=0.01)


def test_clients_without_a_value_are_left_out() -> None:
    left = np.array([[1.0, 2.0, math.nan, 4.0]])
    right = np.array([[0.5, 1.0, math.nan, 3.0]])
    assert gap(left, right) == gap(left[:, [0, 1, 3]], right[:, [0, 1, 3]])


def test_one_client_with_one_seed_has_no_interval() -> None:
    found = gap(np.array([[0.6]]), np.array([[0.5]]))
    assert (found.low, found.high) == (None, None)
    assert found.clear


def standings(*means: float | None, spread: float = 0.01, sign: int = 1) -> Standings:
    """Candidates with these means on the last rung, each with its own noise; None is one that diverged."""
    rng = np.random.default_rng(3)
    scores = {}
    for candidate, middle in enumerate(means):
        for seed in SEEDS:
            values = tuple((middle + rng.normal(scale=spread, size=20)).tolist()) if middle is not None else None
            scores[candidate, LAST.rounds, seed] = Score(values, 10.0) if values is not None else DIVERGED
    return Standings(scores, sign)


@pytest.mark.parametrize(
    ("means", "chosen"),
    [
        ((0.9, 0.9, 0.9), 0),
        ((0.9, 0.901, 0.8), 0),
        ((0.7, 0.9, 0.901), 1),
        ((0.7, 0.8, 0.9), 2),
        ((0.9, 0.8, 0.7), 0),
        ((None, 0.8, 0.7), 1),
        ((None, 0.7, 0.8), 2),
    ],
)
def test_the_simplest_that_is_not_clearly_worse_is_chosen(means: tuple[float | None, ...], chosen: int) -> None:
    assert standings(*means).choose([0, 1, 2], LAST) == chosen


@pytest.mark.parametrize(
    ("behind", "rule", "chosen"),
    [(0.5, "one-se", 0), (1.5, "one-se", 1), (1.5, "simplest", 0), (3.0, "simplest", 1), (-1e-17, "one-se", 0)],
)
def test_one_standard_error_is_half_as_patient(behind: float, rule: str, chosen: int) -> None:
    rng = np.random.default_rng(4)
    noise = rng.normal(scale=0.01, size=(1, 40))
    error = gap(noise, 0 * noise).error
    # the first is so many standard errors behind the second
    found = {0: noise - noise.mean() + 0.8 - behind * error, 1: 0 * noise + 0.8}
    scores = {(k, LAST.rounds, 0): Score(tuple(values[0].tolist()), 1.0) for k, values in found.items()}
    assert Standings(scores, 1, rule).choose([0, 1], Rung(2, LAST.rounds, (0,))) == chosen


def test_what_differs_by_rounding_alone_is_equal() -> None:
    scores = {(k, LAST.rounds, 0): Score((0.7 + k * 1e-16, 0.7), 1.0) for k in range(3)}
    assert Standings(scores, 1, "one-se").choose([0, 1, 2], Rung(3, LAST.rounds, (0,))) == 0


def test_of_a_loss_the_lowest_is_best() -> None:
    assert standings(0.9, 0.5, 0.8, sign=-1).choose([0, 1, 2], LAST) == 1
    assert standings(0.9, 0.5, 0.8, sign=-1).ranked([0, 1, 2], LAST) == [1, 2, 0]


def test_sharing_everything_is_never_dropped() -> None:
    table = standings(0.1, 0.5, 0.7, 0.6)
    assert table.kept([0, 1, 2, 3], LAST, 2) == [0, 2]
    assert table.kept([0, 1, 2, 3], LAST, 3) == [0, 2, 3]
    assert standings(None, 0.5, 0.7, 0.6).kept([0, 1, 2, 3], LAST, 2) == [2, 3]


def record(round: int, selected: list[int], values: list[float | None], name: str = "accuracy") -> dict:
    scores = {name: {"mean": 0.5, "clients": 3}, "per_client": {name: values}}
    sent = {"total_bytes_up": 100 * round, "total_bytes_down": 20 * round}
    return {"round": round, "selected": selected, "dropped": [], "evaluations": {"model": scores}} | sent


def test_only_clients_that_have_taken_part_are_scored() -> None:
    start = record(0, [], [0.1, 0.2, 0.3])
    found = score_run([start, record(1, [2], [0.4, 0.5, 0.6]), record(2, [0, 2], [0.7, 0.8, 0.9])], ACCURACY)
    assert found.values == (0.7, None, 0.9)
    assert found.bytes == 240 / 3


def test_a_client_whose_loss_is_no_number_makes_the_run_diverge() -> None:
    assert score_run([record(1, [0, 1], [0.4, None, 0.6], "test_loss")], TEST_LOSS) == DIVERGED
    assert score_run([record(1, [0, 2], [0.4, None, 0.6], "test_loss")], TEST_LOSS).values == (0.4, None, 0.6)


def test_a_client_whose_data_gives_no_score_is_left_out() -> None:
    assert score_run([record(1, [0, 1], [0.4, None, 0.6], "auc")], AUC).values == (0.4, None, None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budget": 0}, ["--budget 0"]),
        ({"choose": "one-see"}, ["--choose 'one-see'", "'one-se'"]),
        ({"metric": "acuracy"}, ["acuracy", "accuracy"]),
        ({"seeds": (1, 1)}, ["seed"]),
        ({"validation": 1.0}, ["validation"]),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict, words: list[str]) -> None:
    with refused(*words):
        SplitOptions(**options)
