"""Rows of a comparison that are equal because two methods share a model."""

from __future__ import annotations

from collections.abc import Sequence

from fedapm.report.comparison.summary import SummaryRow, main_column

TWINS = {("ditto", "G"): "fedavg"}
"""A view of a method, and the method whose model it is."""


def twin_sentences(rows: Sequence[SummaryRow]) -> list[str]:
    """Why two rows have the same numbers, for each such pair in a comparison."""
    main = main_column(rows)
    sentences = []
    for row in rows:
        for other in rows:
            same = row.cell(main).values and dict(row.cell(main).values) == dict(other.cell(main).values)
            if same and TWINS.get((row.method, row.view)) == other.method:
                own = row.label.rpartition("-")[0]
                sentences.append(
                    f"{row.label} equals {other.label}, as it should: the global model of {own} is trained exactly as "
                    f"{other.label}’s; what {own} adds is the personal model, {own}-P."
                )
    return sentences
