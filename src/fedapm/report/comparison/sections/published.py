"""What the paper's authors published, beside what was measured here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedapm.core.metrics import ACCURACY, AUC, F1
from fedapm.report import published
from fedapm.report.comparison.columns import BEST, Column, Estimate, metric_column
from fedapm.report.comparison.curves import Quantity
from fedapm.report.comparison.series import Series
from fedapm.report.comparison.summary import SummaryRow
from fedapm.report.evaluated_on import data_settings
from fedapm.report.figures.curves import PublishedLine
from fedapm.report.figures.style import Style
from fedapm.report.metrics import MetricInfo
from fedapm.report.numbers import value_range
from fedapm.report.page import Section
from fedapm.report.results import Results
from fedapm.runs.records import Run

SCORES = tuple(metric_column(MetricInfo.of(metric.describe())) for metric in (ACCURACY, F1, AUC))
"""What was published."""
DRAWN = {ACCURACY.name: "accuracy", "drift": "drift"}
"""Which published curve goes with which quantity of the report."""
BY_LABEL_SKEW = frozenset({"cifar10", "crisismmd"})
SUMMED_LOSS = frozenset({"cifar10"})
OTHER_BLOCKS = frozenset({"cifar10"})
"""Where the shared and the personal block change places in the authors' scripts, so that drift is of other tensors."""


@dataclass(frozen=True)
class Pair:
    """A published line, and the row measured here that belongs to it."""

    published: published.Scores
    here: SummaryRow | None

    def published_text(self, score: Column) -> str:
        """A published score, in per cent with the digits it was published with."""
        return f"{100 * getattr(self.published, score.field):.1f}"

    def here_cell(self, score: Column) -> Estimate:
        """The best round of the score measured here."""
        return self.here.cells[BEST + score.field] if self.here is not None else Estimate({})


@dataclass(frozen=True)
class Publication:
    """The section on published values."""

    data_set: str
    pairs: list[Pair]
    unpublished: list[str]
    """Rows of the report the paper has nothing on."""
    why_not_comparable: str
    about_curves: str


def publication(runs: Sequence[Run], rows: Sequence[SummaryRow]) -> Publication | None:
    """Published scores beside the rows of a report; None where nothing was published on its data set."""
    name = published_data(runs)
    if name is None or not any(row.cell(SCORES[0]).values for row in rows):
        return None
    pairs = []
    for scores in published.table(name):
        here = [row for row in rows if _same(scores, row)]
        pairs += [Pair(scores, row) for row in here] or [Pair(scores, None)]
    pairs.sort(key=lambda pair: pair.here is None)
    known = {pair.here.label for pair in pairs if pair.here is not None}
    unpublished = [row.label for row in rows if row.label not in known]
    return Publication(name, pairs, unpublished, _why(name, runs), _about_curves(name))


def published_data(runs: Sequence[Run]) -> str | None:
    """The data set of some runs, if it is one and one of the paper's."""
    names = {str(run.info.get("data")) for run in runs}
    return next(iter(names)) if len(names) == 1 and names <= set(published.data_sets()) else None


def published_lines(
    name: str | None, quantity: Quantity, series: Sequence[Series], styles: dict[str, Style], last_round: int
) -> list[PublishedLine]:
    """The published curves of the methods in a figure, as far as its rounds go; each once."""
    if name is None or quantity.key not in DRAWN or (quantity.key == "drift" and name in OTHER_BLOCKS):
        return []
    factor = 100.0 if quantity.percentage else 1.0
    lines: dict[str, PublishedLine] = {}
    for model in series:
        curves = published.curves(name, model.group.method)
        if curves is None or model.group.method in lines:
            continue
        values = getattr(curves, DRAWN[quantity.key])
        points = [
            (number, factor * value)
            for number, value in zip(curves.rounds, values, strict=True)
            if value is not None and number <= last_round
        ]
        if points:
            rounds, heights = zip(*points, strict=True)
            lines[model.group.method] = PublishedLine(
                model.group.label, styles[model.name].color, list(rounds), list(heights)
            )
    return list(lines.values())


def _same(scores: published.Scores, row: SummaryRow) -> bool:
    return scores.method == row.method and scores.view in ("", row.view)


def _why(name: str, runs: Sequence[Run]) -> str:
    reasons = ["Published scores are the best of 300 rounds"]
    if name in BY_LABEL_SKEW:
        shared = all(data_settings(run).get("partition") == "overlapping" for run in runs)
        reasons.append(
            "the authors’ clients draw from one pool, so a test sample of one may be a training sample of another, "
            + ("as they do here" if shared else "while here a sample belongs to one client")
        )
    reasons.append("their FedAvg and FedProx train the shared block alone and leave the rest at its random start")
    reasons.append("a client with one class in its test data counts as AUC 0 there and is left out here")
    return "; ".join(reasons) + "."


def _about_curves(name: str) -> str:
    known = [curves for scores in published.table(name) if (curves := published.curves(name, scores.method))]
    if not known:
        return "No curves were published for this data set."
    loss = (
        "it is a sum over a client’s 48 mini-batches and starts at 112, where a mean starts at 2.3"
        if name in SUMMED_LOSS
        else "nothing says which penalties it includes"
    )
    drift = (
        "So is their drift: on the way through the authors’ scripts the shared and the personal block change places, "
        "so it is the drift of other tensors."
        if name in OTHER_BLOCKS
        else "Their drift follows the formula used here, and like any drift it depends on the network, the split and "
        "the step size."
    )
    seeds = value_range([curves.seeds for curves in known], " to ")
    return f"Published curves are means over {seeds} seeds. Their loss is left out of the figures: {loss}. {drift}"


def section(results: Results) -> Section | None:
    """The section; None where nothing was published on the data set."""
    beside = publication(results.runs, results.rows)
    if beside is None:
        return None
    context = {"results": results, "published": beside, "scores": SCORES, "source": published.SOURCE}
    return Section("published", "Published", "published.html.j2", context)
