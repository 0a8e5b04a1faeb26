"""The tables of scores, and the paired differences."""

from __future__ import annotations

from typing import Any

from fedapm.report.comparison.differences import Against, against_references, difference_text, interval_text
from fedapm.report.comparison.heading import auc_clients
from fedapm.report.comparison.twins import twin_sentences
from fedapm.report.figures.differences import cut_off, draw_differences
from fedapm.report.numbers import value_range
from fedapm.report.page import Figure, Section
from fedapm.report.results import Results


def section(results: Results) -> Section:
    """The section."""
    on = " on validation data" if results.evaluated_on == "validation" else ""
    context = {
        "results": results,
        "any_best": any(row.cell(column).best for row in results.rows for column in results.columns),
        "auc_clients": auc_clients(results.rows),
        "twins": twin_sentences(results.rows),
        "differences": differences(results) if results.comparable else None,
        "difference_text": difference_text,
        "interval_text": interval_text,
    }
    return Section("summary", f"Summary{on}", "summary.html.j2", context, link="Summary")


def differences(results: Results) -> dict[str, Any] | None:
    """Paired differences of the main score; None where there is nothing to pair."""
    main = results.main
    references = against_references(results.rows, main)
    figures = []
    for number, against in enumerate(references):
        svg = draw_differences(against, results.styles, main, f"differences-{number}")
        if svg is not None:
            caption = f"{main.title} of each method minus that of {against.reference}, in the same seed"
            figures.append(Figure(caption, svg))
    if not figures:
        return None
    seeds = {row.label: _shared_seeds(row.label, references) for row in results.rows if row.cell(main).values}
    counts = {count for count in seeds.values() if count}
    return {
        "references": references,
        "figures": figures,
        "seeds": seeds,
        "same_seeds": counts.pop() if len(counts) == 1 else "",
        "one_seed": all(against.only_one_seed() for against in references),
        "cut": any(map(cut_off, references)),
    }


def _shared_seeds(label: str, references: list[Against]) -> str:
    """How many seeds a model shares with those it is compared with."""
    pairs = [against.differences[label] for against in references if label in against.differences]
    return value_range([pair.seeds if pair is not None else 0 for pair in pairs]) if pairs else ""
