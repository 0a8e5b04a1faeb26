"""What was run, in sentences: from study.json, which a study writes when it begins, and its card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedapm.report.numbers import counted, listed
from fedapm.report.study.tables import Table

PROTOCOL = (
    "The chosen split is the one found for FedAPM on validation data, the paper's that of the data set's defaults; all "
    "methods that take a split have the same one. Every method had the same number of trials, the first with its "
    "default settings, scored on a part of each client's training data with other seeds than those of the runs. "
    "Within the study nothing was chosen by test data. Scores are those after the last round and the closing phase."
)
READING = (
    "Accuracy is the mean over clients, then mean ± standard deviation over seeds. Differences are paired by seed, "
    "with 95% t-intervals of each by itself; p-values are also given after Holm's correction for all methods of a "
    "table. “Level” means that the interval includes zero, which with few seeds is not the same as equal."
)


def budgets(cases: Mapping[str, Mapping[str, Any]], found: Sequence[Table]) -> list[str]:
    """How much of everything each case had; cases with the same budget are one sentence.

    Args:
        cases: The cases of study.json.
        found: The tables of the summary; what is in none of them has not been run.
    """
    cohorts: dict[str, set[float]] = {}
    for table in found:
        cohorts.setdefault(table.case, set()).add(table.cohort)
    groups: dict[str, list[str]] = {}
    for name, case in cases.items():
        if name in cohorts:
            plan = {**case["plan"], "cohorts": [c for c in case["plan"]["cohorts"] if c in cohorts[name]]}
            groups.setdefault(_budget(plan), []).append(str(case["title"]))
    return [f"{listed(titles)}: {budget}." for budget, titles in groups.items()]


def _budget(plan: Mapping[str, Any]) -> str:
    cohorts = listed(f"{100 * share:g}%" for share in plan["cohorts"])
    return (
        f"{counted(len(plan['methods']), 'method')}, {counted(plan['trials'], 'trial')} of "
        f"{counted(plan['tune_rounds'], 'round')} each, then {counted(len(plan['seeds']), 'seed')} of "
        f"{counted(plan['rounds'], 'round')}, {cohorts} of clients a round, {listed(plan['splits'])} split"
    )


def machine(card: Mapping[str, Any]) -> str:
    """Where a part ran and for how long; empty where nothing is known.

    Args:
        card: The card of a study, or of one of its parts.
    """
    hardware, versions = card.get("hardware", {}), card.get("versions", {})
    if not hardware:
        return ""
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    hours = float(card.get("hours", 0.0))
    cpu = float(card.get("processor_hours", 0.0))
    return (
        f"It took {hours:.2f} hours, {cpu:.2f} hours of processor time, on {hardware.get('processor')} "
        f"({counted(int(hardware.get('cores') or 1), 'core')}); fedapm {card.get('fedapm')}, {packages}."
    )


def origins(card: Mapping[str, Any], cases: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What was run where: a sentence and the command for each part of a study.

    Args:
        card: What card.json holds.
        cases: The cases of study.json.
    """
    found = []
    for part in card.get("parts", [card]):
        cohorts: dict[float, list[str]] = {}
        for case, cohort in part.get("cells", ()):
            cohorts.setdefault(cohort, []).append(str(cases[case]["title"]))
        ran = "; ".join(f"{listed(titles)} with {100 * cohort:g}% of clients" for cohort, titles in cohorts.items())
        found.append((" ".join(text for text in (ran and f"{ran}.", machine(part)) if text), part.get("command") or ""))
    return found


def heading(tables: Sequence[Table]) -> list[str]:
    """The facts under the title of a page."""
    cases = len({table.case for table in tables})
    runs = len(
        {(t.case, t.cohort, line.split, line.method, line.seed) for t in tables for e in t.entries for line in e.lines}
    )
    methods = len({entry.label for table in tables for entry in table.entries})
    return [counted(cases, "data set"), f"{methods} models", counted(runs, "run")]
