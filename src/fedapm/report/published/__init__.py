"""What the paper's authors published: the scores of the comparison, and their own curves on four of the data sets.

Nothing here was measured by this package. A score of the table is a mean over clients at its best round (each score
has its own), then a mean over seeds. A curve is a mean over clients and seeds in every round up to 20 and every fifth
one after that.

The loss of a curve is kept as published and is not the training loss of a report. On CIFAR-10 it is a sum over a
client's 48 mini-batches: it starts at 111.5, where the mean loss of ten equally likely classes is 2.3. On the other
data sets it starts where a mean would. Nowhere is it said which penalties it includes.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fedapm.errors import FedapmError, did_you_mean

SOURCE = "Zhu et al., KDD 2025"


@dataclass(frozen=True)
class Scores:
    """One line of the published table; the view is empty where a method is judged by one model."""

    method: str
    view: str
    label: str
    accuracy: float
    f1: float
    auc: float


@dataclass(frozen=True)
class Curves:
    """One method's published curves on one data set, all over the same rounds; None where there is no value."""

    data_set: str
    method: str
    seeds: int
    rounds: tuple[int, ...]
    accuracy: tuple[float | None, ...]
    f1: tuple[float | None, ...]
    auc: tuple[float | None, ...]
    drift: tuple[float | None, ...]
    loss: tuple[float | None, ...]


def data_sets() -> list[str]:
    """The data sets of the published table, by the names they have here."""
    return list(_tables())


def table(data_set: str) -> list[Scores]:
    """The published scores of every method on a data set, in the order of the paper."""
    _check(data_set)
    return list(_tables()[data_set])


def curves(data_set: str, method: str) -> Curves | None:
    """A method's published curves on a data set, None where the authors published none."""
    _check(data_set)
    return _curves().get((data_set, method))


def _check(data_set: str) -> None:
    if data_set not in _tables():
        raise FedapmError(f"nothing is published on {data_set!r}; {did_you_mean(data_set.lower(), _tables())}")


@cache
def _tables() -> dict[str, list[Scores]]:
    found: dict[str, list[Scores]] = {}
    for row in _rows("tables.csv"):
        scores = (float(row[name]) for name in ("accuracy", "f1", "auc"))
        found.setdefault(row["data_set"], []).append(Scores(row["method"], row["view"], row["label"], *scores))
    return found


@cache
def _curves() -> dict[tuple[str, str], Curves]:
    lines: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in _rows("curves.csv"):
        lines.setdefault((row["data_set"], row["method"]), []).append(row)
    return {
        (data_set, method): Curves(
            data_set,
            method,
            int(rows[0]["seeds"]),
            tuple(int(row["round"]) for row in rows),
            *(
                tuple(float(row[name]) if row[name] else None for row in rows)
                for name in ("accuracy", "f1", "auc", "drift", "loss")
            ),
        )
        for (data_set, method), rows in lines.items()
    }


def _rows(name: str) -> Iterator[dict[str, str]]:
    text = files(__name__).joinpath(name).read_text(encoding="utf-8")
    return csv.DictReader(text.splitlines())
