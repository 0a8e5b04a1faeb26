"""The title of a report, the line of facts under it, and whom its AUC is about."""

from __future__ import annotations

from collections.abc import Sequence

from fedapm.core.metrics import AUC
from fedapm.report.comparison.series import Group, tidy
from fedapm.report.comparison.summary import SummaryRow
from fedapm.report.numbers import counted, listed, spread_of
from fedapm.runs.records import Run


def _data(runs: Sequence[Run]) -> list[str]:
    return sorted({tidy(run.info["data"]) for run in runs if run.info.get("data")})


def title(groups: Sequence[Group]) -> str:
    """What the report is about."""
    data = _data([run for group in groups for run in group.every_run])
    on = f" on {listed(data)}" if data else ""
    return f"{groups[0].label}{on}" if len(groups) == 1 else f"{len(groups)} methods{on}"


def facts(groups: Sequence[Group], runs: Sequence[Run]) -> list[str]:
    """The line under the title."""
    found = [f"data set {listed(data)}"] if (data := _data(runs)) else []
    clients = [len(run.info["clients"]) for run in runs]
    found.append(f"{spread_of(clients)} {'client' if max(clients) == 1 else 'clients'}")
    rounds = [run.info["rounds"] for run in runs if isinstance(run.info.get("rounds"), int)]
    if rounds:
        found.append(f"{spread_of(rounds)} {'round' if max(rounds) == 1 else 'rounds'}")
    seeds = sorted({run.seed for run in runs})
    found.append(f"{'seed' if len(seeds) == 1 else 'seeds'} {_seeds(seeds)}")
    found.append(f"{'method' if len(groups) == 1 else 'methods'} {listed([g.label for g in groups], 20)}")
    return found


def _seeds(seeds: list[int]) -> str:
    if len(seeds) > 3 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return listed([str(seed) for seed in seeds])


def auc_note(rows: Sequence[SummaryRow]) -> str:
    """How many clients the AUC is about."""
    counted_clients = [number for row in rows if row.cells[AUC.name].values for number in row.auc_clients]
    if not counted_clients:
        return ""
    total = max(row.clients for row in rows)
    return (
        f"AUC is the mean over the {spread_of(counted_clients)} of {counted(total, 'client')} that have one: "
        "a client whose test data has a single class has no AUC."
    )
