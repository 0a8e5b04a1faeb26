"""The title of a report, the line of facts under it, and which clients its AUC is about."""

from __future__ import annotations

from collections.abc import Sequence

from fedapm.core.metrics import AUC
from fedapm.report.comparison.series import Group, tidy
from fedapm.report.comparison.summary import SummaryRow
from fedapm.report.numbers import counted, listed, plural, value_range
from fedapm.runs.records import Run


def title(groups: Sequence[Group]) -> str:
    """What the report is about."""
    data = _data([run for group in groups for run in group.every_run])
    on = f" on {listed(data)}" if data else ""
    return f"{groups[0].label}{on}" if len(groups) == 1 else f"{len(groups)} methods{on}"


def facts(groups: Sequence[Group]) -> list[str]:
    """The line under the title."""
    runs = [run for group in groups for run in group.every_run]
    data = _data(runs)
    clients = [run.population for run in runs]
    evaluated = [len(run.info["clients"]) for run in runs]
    of_them = f", {value_range(evaluated)} of them evaluated" if evaluated != clients else ""
    rounds = [run.info["rounds"] for run in runs if isinstance(run.info.get("rounds"), int)]
    seeds = sorted({run.seed for run in runs})
    return [
        *([f"data set {listed(data)}"] if data else []),
        f"{value_range(clients)} {plural('client', max(clients))}{of_them}",
        *([f"{value_range(rounds)} {plural('round', max(rounds))}"] if rounds else []),
        f"{plural('seed', seeds)} {_seeds(seeds)}",
        f"{plural('method', groups)} {listed((group.label for group in groups), 20)}",
    ]


def auc_clients(rows: Sequence[SummaryRow]) -> str:
    """How many clients the AUC is about, in a sentence; empty where there is no AUC."""
    counts = [count for row in rows if row.cells[AUC.name].values for count in row.auc_clients]
    if not counts:
        return ""
    total = max(row.clients for row in rows)
    return (
        f"AUC is the mean over the {value_range(counts)} of {counted(total, 'client')} that have one: "
        "a client whose test data has a single class has no AUC."
    )


def _data(runs: Sequence[Run]) -> list[str]:
    return sorted({tidy(run.info["data"]) for run in runs if run.info.get("data")})


def _seeds(seeds: list[int]) -> str:
    if len(seeds) > 3 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return listed(seeds)
