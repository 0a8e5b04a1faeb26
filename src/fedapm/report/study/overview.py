"""The overview of a study: ranks over data sets, and one row for each data set on how FedAPM did."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from markupsafe import Markup

from fedapm.report import published
from fedapm.report.comparison.columns import Estimate
from fedapm.report.figures.ranks import draw_ranks
from fedapm.report.numbers import counted, listed, percent, signed
from fedapm.report.significance import Difference, paired_difference
from fedapm.report.study.tables import ACCURACY, AS_PUBLISHED, Entry, Table, by_label, mean_ranks, rounds_to_fedalt
from fedapm.report.study.words import p_text

ROW = (
    "Data set",
    "Split",
    "First",
    "FedAPM",
    "Verdict",
    "Best other minus FedAPM",
    "FedAPM minus as published",
    "Rounds to FedAlt's end",
)

BEST = 5
"""Models whose mean ranks are said."""


def shown(tables: Sequence[Table]) -> list[Table]:
    """The tables of the overview: of each case and cohort the one with the chosen split, or else its first."""
    found: dict[tuple[str, float], Table] = {}
    for table in tables:
        key = table.case, table.cohort
        if key not in found or (table.split == "chosen" and found[key].split != "chosen"):
            found[key] = table
    return [table for table in found.values() if table.scored]


def rank_figure(tables: Sequence[Table]) -> Markup:
    """The heat map of ranks."""
    columns = shown(tables)
    ranks = by_label(columns)
    level = {
        label: [any(e.label == label and table.level_with_first(e) for e in table.scored) for table in columns]
        for label in ranks
    }
    return draw_ranks(ranks, [table.label for table in columns], level, "ranks")


def rows(tables: Sequence[Table]) -> list[tuple[str, ...]]:
    """One row for each table, with the columns of :data:`ROW`."""
    return [_row(table) for table in tables if table.scored]


def verdict(table: Table) -> str:
    """How FedAPM did: ``first``, ``level`` with the first or with the second, or ``behind``."""
    ours, first = table.ours, table.scored[0]
    if ours is None:
        return "no run"
    rivals = [entry for entry in table.scored if entry is not ours]
    if not rivals:
        return "alone"
    difference = table.versus[(rivals[0] if ours is first else first).label].difference
    if difference.low is None:
        return "one seed"
    if not difference.clear:
        return "level"
    return "first" if ours is first else "behind"


def findings(tables: Sequence[Table], split: str) -> str:
    """How FedAPM did over all tables with one split, in words.

    Args:
        tables: The tables.
        split: The split.
    """
    members = [table for table in tables if table.split == split and table.scored]
    verdicts = [verdict(table) for table in members]
    text = (
        f"Over {counted(len(members), 'table')} with the {split} split FedAPM is first beyond the noise in "
        f"{verdicts.count('first')}, level with the best other method in {verdicts.count('level')}, and behind the "
        f"first beyond the noise in {verdicts.count('behind')}."
    )
    against = [difference for table in members if (difference := _against_published_method(table)) is not None]
    if against:
        ahead = sum(difference.clear and difference.mean > 0 for difference in against)
        behind = sum(difference.clear and difference.mean < 0 for difference in against)
        text += f" It beats FedAPM as published beyond the noise in {ahead} of {len(against)} and loses in {behind}."
    rounds = [(table.label, needed) for table in members if (needed := rounds_to_fedalt(table)) and needed[1]]
    if rounds:
        shares = "; ".join(f"{label}: {ours / theirs:.2f}" for label, (ours, theirs) in rounds)
        text += (
            " Of FedAlt's rounds to FedAlt's final accuracy FedAPM needs, where every seed of both gets there, these "
            f"shares: {shares}."
        )
    if len(members) > 1:
        ranks = mean_ranks(members)
        best = listed(f"{label} {rank:.2f}" for label, rank in itertools.islice(ranks.items(), BEST))
        text += f" Mean ranks, the best of {len(ranks)} models: {best}."
    return text


def _against_published_method(table: Table) -> Difference | None:
    ours, old = table.ours, table.entry(AS_PUBLISHED)
    return paired_difference(ours.accuracy.values, old.accuracy.values) if ours and old else None


def _row(table: Table) -> tuple[str, ...]:
    ours, first = table.ours, table.scored[0]
    other = next((entry for entry in table.scored if entry is not ours), None)
    rival = table.versus[other.label].difference if other is not None and other.label in table.versus else None
    against = _against_published_method(table)
    rounds = rounds_to_fedalt(table)
    return (
        table.label,
        table.split,
        f"{first.label} {ACCURACY.mean_text(first.accuracy)}",
        ACCURACY.mean_text(ours.accuracy) if ours is not None else "–",
        verdict(table),
        f"{other.label} {difference_text(rival)}" if other is not None else "–",
        difference_text(against),
        f"{rounds[0]:.1f} of {rounds[1]:.1f}" if rounds is not None else "–",
    )


def difference_text(difference: Difference | None) -> str:
    """A difference in points with its interval."""
    if difference is None:
        return "–"
    middle = signed(percent(difference.mean))
    if difference.low is None or difference.high is None:
        return middle
    return f"{middle} ({signed(percent(difference.low))} to {signed(percent(difference.high))})"


def versus_cells(table: Table, entry: Entry) -> tuple[str, str, str]:
    """A method's difference to FedAPM, its p-value, and that after Holm's correction."""
    versus = table.versus.get(entry.label)
    if versus is None:
        return "–", "–", "–"
    return difference_text(versus.difference), p_text(versus.p), p_text(versus.corrected)


def published_rows(table: Table) -> list[tuple[str, str, str]]:
    """Label, published accuracy and the best round measured here, in per cent; empty where nothing was published."""
    if table.data not in published.data_sets():
        return []
    found = []
    for scores in published.table(table.data):
        same = (e for e in table.scored if e.method == scores.method and scores.view in ("", e.lines[0].view))
        here = next(same, None)
        best = (
            Estimate.of({line.seed: line.best_accuracy for line in here.complete}) if here is not None else Estimate({})
        )
        found.append((scores.label, percent(scores.accuracy, 1), ACCURACY.mean_text(best)))
    return found
