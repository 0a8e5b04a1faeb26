"""The published numbers: whole, sane, and under the names this package uses."""

from __future__ import annotations

from importlib.resources import files

import pytest

from fedapm.algorithms import METHODS, rows_of
from fedapm.data import DATA_SETS
from fedapm.report import published
from tests.helpers.unit import refused

WITH_CURVES = ("cifar10", "crisismmd", "ku-har", "crema-d")
CURVED = ("fedapm", "fedalt", "fedsim", "fedavg", "fedprox")


def test_data_sets_have_the_names_they_have_here() -> None:
    assert set(published.data_sets()) == {*WITH_CURVES, "cifar100", "tinyimagenet"}
    assert set(published.data_sets()) <= set(DATA_SETS)


@pytest.mark.parametrize("data_set", published.data_sets())
def test_a_table_has_every_method_once_by_the_name_of_its_row_in_a_report(data_set: str) -> None:
    rows = published.table(data_set)
    assert len(rows) == 14
    assert len({row.label for row in rows}) == 14
    for row in rows:
        kind = METHODS[row.method]
        assert row.label in rows_of(kind)
        assert row.view == "" if len(kind.views) == 1 else row.view in kind.views
        assert all(0 < score < 1 for score in (row.accuracy, row.f1, row.auc))


def test_the_headline_is_the_papers() -> None:
    first = published.table("cifar10")[0]
    assert (first.label, first.accuracy, first.f1, first.auc) == ("FedAPM", 0.738, 0.725, 0.873)
    ditto = next(row for row in published.table("crisismmd") if row.label == "Ditto-P")
    assert (ditto.accuracy, ditto.f1, ditto.auc) == (0.471, 0.324, 0.532)


@pytest.mark.parametrize("data_set", WITH_CURVES)
@pytest.mark.parametrize("method", CURVED)
def test_curves_go_from_the_start_to_round_300_and_agree_with_the_table(data_set: str, method: str) -> None:
    curves = published.curves(data_set, method)
    assert curves is not None
    assert curves.rounds == (*range(21), *range(25, 301, 5))
    assert curves.seeds >= 4
    for values in (curves.accuracy, curves.f1, curves.auc):
        assert len(values) == len(curves.rounds)
        assert all(value is not None and 0 <= value <= 1 for value in values)
    assert curves.drift[0] is None
    assert all(value is not None and value >= 0 for value in curves.drift[1:])
    printed = next(row for row in published.table(data_set) if row.method == method)
    assert max(value or 0.0 for value in curves.accuracy) == pytest.approx(printed.accuracy, abs=0.05)


def test_a_curve_by_its_numbers() -> None:
    curves = published.curves("cifar10", "fedapm")
    assert curves is not None
    assert (curves.seeds, curves.accuracy[-1], curves.drift[-1], curves.loss[0]) == (8, 0.74097, 0.48611, 111.51824)


def test_what_was_not_published() -> None:
    assert published.curves("cifar10", "local") is None
    assert published.curves("cifar100", "fedapm") is None
    with refused("'CIFAR10'", "did you mean 'cifar10'"):
        published.table("CIFAR10")
    with refused("'digits'"):
        published.curves("digits", "fedapm")


def test_the_numbers_are_small() -> None:
    sizes = [len(files("fedapm.report.published").joinpath(name).read_bytes()) for name in ("tables.csv", "curves.csv")]
    assert sum(sizes) < 150_000
