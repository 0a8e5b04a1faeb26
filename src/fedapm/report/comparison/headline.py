"""The first sentences: what the numbers show, and no more than that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fedapm.report.comparison.columns import Column
from fedapm.report.comparison.series import ALONE
from fedapm.report.comparison.summary import SummaryRow
from fedapm.report.numbers import counted, listed, lower_first
from fedapm.report.results import Results
from fedapm.report.significance import paired_difference


def headline_sentences(results: Results) -> list[str]:
    """A paragraph or two about the main score, which is called a validation score where it is one."""
    main = results.main
    if results.evaluated_on == "validation" and main.percentage:
        main = replace(main, title=f"Validation {lower_first(main.title)}")
    rows = [row for row in results.rows if row.cell(main).values]
    if not rows:
        return ["No model was evaluated, so nothing is known about how good the models are."]
    if len(rows) == 1:
        return [_single(rows[0], main)]
    if not results.comparable:
        return ["These runs do not all have the same data and clients, so their numbers do not compare."]
    sentences = [_ahead(rows[0], rows[1], main)]
    alone = next((row for row in rows if row.method == ALONE), None)
    if alone is None:
        return sentences
    others = [row for row in rows if row is not alone]
    verdict = [_train_locally(others, alone, main)] if rows[0] is alone else []
    return [*verdict, *sentences, _against_alone(others, alone, main)]


def _train_locally(others: Sequence[SummaryRow], alone: SummaryRow, main: Column) -> str:
    """The plain verdict where no method that shares anything is better than training alone."""
    differences = [paired_difference(row.cell(main).values, alone.cell(main).values) for row in others]
    clear = all(difference is not None and difference.clear for difference in differences)
    if clear and alone.complete and all(row.complete for row in others):
        return "Train locally: on these data every method that shares something is worse than each client by itself."
    return (
        "Train locally, as far as these runs show: no method that shares something is better than each client by "
        "itself, and training alone sends nothing. More seeds or more rounds may change that."
    )


def _single(row: SummaryRow, main: Column) -> str:
    seeds = "" if len(row.seeds) == 1 else f", averaged over {counted(len(row.seeds), 'seed')}"
    unfinished = "" if row.complete else " Not every run finished."
    worst = row.worst10(main)
    tenth = f" The worst tenth of the clients has {main.amount(worst)}." if worst.values else ""
    return (
        f"{row.label} ends with a mean {lower_first(main.title)} of {main.amount(row.cell(main))} over "
        f"{counted(row.clients, 'client')}{seeds}.{tenth}{unfinished}"
    )


def _ahead(first: SummaryRow, second: SummaryRow, main: Column) -> str:
    extreme = "highest" if main.higher_is_better else "lowest"
    name = lower_first(main.title)
    best, next_best = first.cell(main), second.cell(main)
    if math.isclose(best.mean or 0.0, next_best.mean or 0.0, rel_tol=1e-12):
        return f"{first.label} and {second.label} share the {extreme} mean {name}, {main.amount(best)}."
    order = (
        f"{first.label} ends with the {extreme} mean {name}, {main.amount(best)}; "
        f"next is {second.label} with {main.amount(next_best)}."
    )
    incomplete = [row.label for row in (first, second) if not row.complete]
    if incomplete:
        return f"{order} Not every run of {listed(incomplete)} finished, so this is not conclusive."
    difference = paired_difference(best.values, next_best.values)
    if difference is None:
        return f"{order} The two have no seed in common, so the difference cannot be tested."
    if difference.low is None or difference.high is None:
        return f"{order} One seed in common does not show whether this is chance."
    sign = 1 if main.higher_is_better else -1
    low, high = sorted((sign * difference.low, sign * difference.high))
    interval = f"{main.write(low)} to {main.write(high)}{' points' if main.percentage else ''}"
    verdict = "significant" if difference.clear and low > 0 else "not significant: these runs do not separate the two"
    return (
        f"{order} The difference is {verdict} (95% interval of the paired difference: {interval}, "
        f"{counted(difference.seeds, 'seed')})."
    )


def _against_alone(others: Sequence[SummaryRow], alone: SummaryRow, main: Column) -> str:
    better, worse, undecided = [], [], []
    for row in others:
        difference = paired_difference(row.cell(main).values, alone.cell(main).values)
        if difference is None or not difference.clear or not (row.complete and alone.complete):
            undecided.append(row.label)
        elif (difference.mean > 0) == main.higher_is_better:
            better.append(row.label)
        else:
            worse.append(row.label)
    verdicts = [
        f"{listed(labels, 20)} {'is' if len(labels) == 1 else 'are'} significantly {verdict}"
        for labels, verdict in ((better, "better"), (worse, "worse"))
        if labels
    ]
    if undecided:
        verdicts.append(f"for {listed(undecided, 20)} these runs do not decide")
    return f"Against training alone ({alone.label}, {main.amount(alone.cell(main))}): {'; '.join(verdicts)}."
