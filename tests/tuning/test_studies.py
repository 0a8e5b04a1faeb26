"""Trials on disk: what was begun is gone on with, what is finished stays, and restarts change no draw."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedapm.tuning import Options
from fedapm.tuning.method_search import MethodSearch, method_searches
from fedapm.tuning.study import Study, quiet, storage
from fedapm.tuning.trial import Outcome
from tests.helpers.unit import refused

EMPTY: list[Path] = []
LAYER = {"data": {"clients": 4}, "engine": {"rounds": 4}}


def method_search(options: Options) -> MethodSearch:
    (found,) = method_searches(["fedapm"], [LAYER], options, 4)
    return found


@pytest.fixture(scope="module", autouse=True)
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A database without studies, made once because that takes long."""
    path = tmp_path_factory.mktemp("empty") / "trials.db"
    with quiet():
        storage(path)
    EMPTY.append(path)
    yield
    EMPTY.clear()


def study(folder: Path, options: Options) -> Study:
    if not (folder / "trials.db").exists():
        shutil.copy(EMPTY[0], folder / "trials.db")
    with quiet():
        return Study(storage(folder / "trials.db"), method_search(options), options)


def searched(folder: Path, options: Options, reopen: bool, peak: float = 0.3) -> list[Any]:
    """All trials, one after the other, with a new process's view of the file in the middle of each one or not."""
    current = study(folder, options)
    while True:
        found = current.next_trial()
        if found is None:
            return current.rows()
        number, settings = found
        if reopen and number > 3:
            current = study(folder, options)
            assert current.next_trial() == (number, settings), "a trial that was begun is the next one again"
        current.finish(number, Outcome("complete", (1.0 - abs(float(settings["solver.lr"]) - peak),)))


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_restarts_change_no_draw(tmp_path: Path, sampler: str) -> None:
    options = Options(trials=6, sampler=sampler)
    rows = []
    for name, reopen in (("once", False), ("often", True)):
        (tmp_path / name).mkdir()
        rows.append(searched(tmp_path / name, options, reopen))
    assert rows[0] == rows[1]
    assert [row.number for row in rows[0]] == list(range(6))
    assert len({str(row.settings) for row in rows[0]}) == 6


def test_tpe_goes_where_earlier_trials_did_well(tmp_path: Path) -> None:
    late = {}
    for peak in (0.1, 0.9):
        (tmp_path / str(peak)).mkdir()
        rows = searched(tmp_path / str(peak), Options(trials=14, search=("solver.lr=lin:0.01:0.99",)), False, peak)
        late[peak] = [row.settings["solver.lr"] for row in rows[7:]]
    assert sum(late[0.9]) / 7 > sum(late[0.1]) / 7 + 0.2


def test_trials_that_were_left_running_come_first(tmp_path: Path) -> None:
    options = Options(trials=4, sampler="random")
    first = study(tmp_path, options)
    begun = [first.next_trial() for _ in range(3)]
    again = study(tmp_path, options)
    assert [again.next_trial() for _ in range(3)] == begun
    assert again.next_trial() is not None
    assert again.next_trial() is None
    assert (again.started, again.remaining) == (4, 4)


def test_a_trial_that_was_written_down_but_not_begun_is_not_lost(tmp_path: Path) -> None:
    options = Options(trials=4, search=("solver.lr=0.1,0.3,0.4",))
    first = study(tmp_path, options)
    first.next_trial()
    points = method_search(options).points
    assert points is not None
    first._study.enqueue_trial(points[0])
    again = study(tmp_path, options)
    found = [again.next_trial() for _ in range(5)]
    assert [one and (one[0], one[1]["solver.lr"]) for one in found] == [(0, 0.2), (1, 0.1), (2, 0.3), (3, 0.4), None]


def test_scores_on_the_way_are_recorded_once(tmp_path: Path) -> None:
    options = Options(trials=3, sampler="random", pruner="median", rounds=4)
    one = study(tmp_path, options)
    assert one.next_trial() is not None
    assert one.report(0, 1, 0.5) is False
    again = study(tmp_path, options)
    again.next_trial()
    assert again.report(0, 1, 0.5) is False, "a step that was told before the restart is told again without harm"
    again.finish(0, Outcome("complete", (0.25, 0.75)))
    assert again.rows()[0].value == 0.5


@pytest.mark.parametrize("pruner", ["median", "halving"])
def test_a_bad_trial_is_ended_early_but_never_the_first(tmp_path: Path, pruner: str) -> None:
    options = Options(trials=9, search=("solver.lr=lin:0.1:1",), sampler="random", pruner=pruner, rounds=9)
    one = study(tmp_path, options)
    steps = (1, 3, 9)
    for number in range(7):
        one.next_trial()
        stops = [one.report(number, step, 0.1 if number == 0 else 0.9) for step in steps]
        assert number > 0 or not any(stops)
        one.finish(number, Outcome("complete", (0.1 if number == 0 else 0.9,)))
    one.next_trial()
    assert any(one.report(7, step, 0.05) for step in steps)
    one.finish(7, Outcome("pruned", ()))
    assert one.rows()[-1].state == "pruned"


def test_without_a_pruner_nothing_is_ended(tmp_path: Path) -> None:
    options = Options(trials=12, sampler="random", pruner="none", rounds=9)
    one = study(tmp_path, options)
    for number in range(7):
        one.next_trial()
        assert not any(one.report(number, step, 1.0 / (number + 1)) for step in range(1, 10))
        one.finish(number, Outcome("complete", (1.0,)))


def test_a_trial_that_diverges_has_the_worst_score(tmp_path: Path) -> None:
    for metric, worst in (("accuracy", 0.0), ("test_loss", float("-inf"))):
        (tmp_path / metric).mkdir()
        one = study(tmp_path / metric, Options(trials=6, metric=metric, search=("solver.lr=log:0.1:1",)))
        one.next_trial()
        one.finish(0, Outcome("diverged", ()))
        assert (one.rows()[0].state, one.rows()[0].value) == ("diverged", worst)
        for number in range(1, 6):
            assert one.next_trial() is not None, "samplers can do with such a score"
            one.finish(number, Outcome("complete", (-1.0,)))


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "trials.db").write_text("precious " * 200)
    with refused("trials.db", "no database"):
        study(tmp_path, Options())
    assert (tmp_path / "trials.db").read_text() == "precious " * 200


def test_a_folder_with_an_odd_name_will_do(tmp_path: Path) -> None:
    odd = tmp_path / "100% [ä] #1 {x}"
    odd.mkdir()
    with quiet():
        storage(odd / "trials.db")
        assert [p.name for p in odd.iterdir()] == ["trials.db"]
        with refused("question mark"):
            storage(tmp_path / "what?" / "trials.db")
    assert study(odd, Options(trials=1)).next_trial() is not None
