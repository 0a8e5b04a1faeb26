"""The first sentences: what the numbers say, and no more than they say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fedapm.report.comparison.columns import Column, Estimate
from fedapm.report.comparison.series import ALONE
from fedapm.report.comparison.summary import SummaryRow
from fedapm.report.evaluated_on import JudgedBy
from fedapm.report.numbers import counted, fixed, listed, lower_first
from fedapm.report.significance import paired_difference


def lead_sentences(rows: Sequence[SummaryRow], main: Column, comparable: bool, judged: JudgedBy) -> list[str]:
    """A paragraph or two about the main score, which is called a validation score where it is one."""
    if judged == "validation" and main.percentage:
        main = replace(main, title=f"Validation {lower_first(main.title)}")
    rows = [row for row in rows if row.cell(main).values]
    if not rows:
        return ["No model was evaluated, so there is nothing to say about how good the models are."]
    if len(rows) == 1:
        return [_single(rows[0], main)]
    if not comparable:
        return [
            "These runs do not all have the same data and clients. Their numbers stand side by side but do not compare."
        ]
    sentences = [_ahead(rows[0], rows[1], main)]
    alone = next((row for row in rows if row.method == ALONE), None)
    if alone is not None:
        sentences.append(_against_alone([row for row in rows if row is not alone], alone, main))
    return sentences


def _single(row: SummaryRow, main: Column) -> str:
    seeds = "" if len(row.seeds) == 1 else f", averaged over {counted(len(row.seeds), 'seed')}"
    unfinished = "" if row.whole else " Not every run went through."
    worst = row.worst10(main)
    tenth = f" The worst tenth of the clients has {_text(worst, main)}." if worst.values else ""
    return (
        f"{row.label} ends with a mean {lower_first(main.title)} of {_amount(row, main)} over "
        f"{counted(row.clients, 'client')}{seeds}.{tenth}{unfinished}"
    )


def _ahead(first: SummaryRow, second: SummaryRow, main: Column) -> str:
    quality = "highest" if main.higher_is_better else "lowest"
    name = lower_first(main.title)
    if math.isclose(first.cell(main).mean or 0.0, second.cell(main).mean or 0.0, rel_tol=1e-12):
        return f"{first.label} and {second.label} share the {quality} mean {name}, {_amount(first, main)}."
    start = (
        f"{first.label} ends with the {quality} mean {name}, {_amount(first, main)}; "
        f"next is {second.label} with {_amount(second, main)}."
    )
    lost = [row.label for row in (first, second) if not row.whole]
    if lost:
        return f"{start} Not every run of {listed(lost)} went through, so this is no verdict."
    difference = paired_difference(first.cell(main).values, second.cell(main).values)
    if difference is None:
        return f"{start} The two have no seed in common, so the difference cannot be judged."
    if difference.low is None or difference.high is None:
        return f"{start} With one seed in common there is no telling this from chance."
    sign = 1 if main.higher_is_better else -1
    low, high = sorted((sign * difference.low, sign * difference.high))
    interval = f"{_points(low, main)} to {_points(high, main)}{' points' if main.percentage else ''}"
    verdict = (
        "more than the noise between seeds"
        if difference.clear and low > 0
        else "within the noise between seeds: these runs do not tell the two apart"
    )
    return (
        f"{start} The lead is {verdict} (95% interval of the paired difference: {interval}, "
        f"{counted(difference.seeds, 'seed')})."
    )


def _against_alone(others: Sequence[SummaryRow], alone: SummaryRow, main: Column) -> str:
    above, below, open_ = [], [], []
    for row in others:
        difference = paired_difference(row.cell(main).values, alone.cell(main).values)
        if difference is None or not difference.clear or not (row.whole and alone.whole):
            open_.append(row.label)
        elif (difference.mean > 0) == main.higher_is_better:
            above.append(row.label)
        else:
            below.append(row.label)
    verdicts = []
    if above:
        verdicts.append(f"{listed(above, 20)} {_be(above)} better by more than the noise")
    if below:
        verdicts.append(f"{listed(below, 20)} {_be(below)} worse by more than the noise")
    if open_:
        verdicts.append(f"for {listed(open_, 20)} these runs do not tell")
    return f"Against training alone ({alone.label}, {_amount(alone, main)}): {'; '.join(verdicts)}."


def _be(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _amount(row: SummaryRow, main: Column) -> str:
    return _text(row.cell(main), main)


def _text(cell: Estimate, main: Column) -> str:
    return main.mean_text(cell) + ("%" if main.percentage else "")


def _points(value: float, main: Column) -> str:
    return fixed(100 * value, 2) if main.percentage else main.write(value)
