"""The clients one by one, and what each gains by taking part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedapm.report.comparison.clients import ClientScores, client_table
from fedapm.report.figures.clients import draw_gains, draw_spread
from fedapm.report.page import Figure, Section
from fedapm.report.results import Results


def section(results: Results) -> Section:
    """The section."""
    clients = client_table(results.series, results.main)
    context: dict[str, Any] = {"results": results, "clients": clients, "mean_count": _mean_count}
    if clients is not None:
        place = {row.label: position for position, row in enumerate(results.rows)}
        clients = replace(clients, rows=sorted(clients.rows, key=lambda row: place[row.series.name]))
        together = ", all seeds together" if results.several_seeds else ""
        spread = draw_spread(clients, results.by_name, results.styles)
        context |= {
            "clients": clients,
            "gains": _gains(clients, results),
            "spread": Figure(f"{results.main.title} of the clients{together}", spread),
        }
    return Section("clients", "Clients", "clients.html.j2", context)


def _gains(clients: ClientScores, results: Results) -> list[Figure]:
    """What each client gains or loses with each method, all on one scale."""
    compared = [row for row in clients.rows if row.against_alone is not None]
    sizes = [abs(g) for row in compared if row.against_alone for g in row.against_alone.gains if g is not None]
    limit = max(sizes, default=0.0) or 0.01
    return [
        Figure(name, draw_gains(row, clients, limit, results.styles[name], f"gains-{position}"))
        for position, row in enumerate(compared)
        for name in [row.series.name]
    ]


def _mean_count(value: float) -> str:
    """Whole numbers as they are, others with one decimal."""
    return f"{value:.1f}".removesuffix(".0")
