"""The page: everything the report says, gathered and handed to the template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from fedapm.records import Run
from fedapm.report import events, settings
from fedapm.report.client_figures import draw_gains, draw_spread
from fedapm.report.clients import ClientScores, client_table
from fedapm.report.curve_figures import MOST_POINTS, draw_curves, lines_of
from fedapm.report.curves import QUANTITIES
from fedapm.report.lead import lead_sentences
from fedapm.report.numbers import counted, listed, spread_of
from fedapm.report.series import Group, Series, all_series, group_runs, same_data, tidy
from fedapm.report.style import Style, styles, swatch
from fedapm.report.summary import ACCURACY, SummaryRow, filled_columns, main_column, summary_table


@dataclass(frozen=True)
class CurvePair:
    """A quantity against rounds and against bytes, the second only where anything was sent."""

    title: str
    by_round: Markup
    by_bytes: Markup | None


@dataclass(frozen=True)
class GainFigure:
    """One method's gains and losses."""

    name: str
    svg: Markup


def render(runs: Sequence[Run]) -> str:
    """The whole report as HTML."""
    groups = group_runs(runs)
    series = all_series(groups)
    looks = styles(series)
    rows = summary_table(runs)
    by_name = {row.label: row for row in rows}
    counting = [run for group in groups for run in group.runs]
    clients = client_table(series, main_column(rows))
    if clients is not None:
        clients = _in_order_of(rows, clients)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_text("page.html.j2")).render(
        css=Markup(_text("page.css")),
        title=_title(groups),
        facts=_facts(groups, runs),
        lead=lead_sentences(rows, same_data(counting)),
        rows=rows,
        columns=filled_columns(rows),
        main=main_column(rows),
        any_best=any(row.cell(column).best for row in rows for column in filled_columns(rows)),
        auc_note=_auc_note(rows),
        several_seeds=any(len(row.seeds) > 1 for row in rows),
        swatches={name: swatch(style) for name, style in looks.items()},
        curves=_curves(series, looks, main_column(rows) is ACCURACY),
        silent=[group.label for group in groups if group.sends_nothing and group.views],
        thinned=any(len(run.rounds) > MOST_POINTS for run in counting),
        most_points=MOST_POINTS,
        clients=clients,
        spread=draw_spread(clients, by_name, looks) if clients else None,
        gains=_gain_figures(clients, looks) if clients else [],
        by_name=by_name,
        troubles=[
            *events.incomplete_runs(groups),
            *events.uneven_terms(groups),
            *events.dropped_clients(groups),
            *events.clients_without_loss(groups),
        ],
        remarks=events.capped_solves(groups),
        sizes=settings.client_sizes(counting),
        parameters=settings.parameters(groups),
        versions=settings.versions(runs),
        configs=settings.configs(groups),
        share=_share,
    )


def _text(name: str) -> str:
    return files("fedapm.report").joinpath(name).read_text(encoding="utf-8")


def _data(runs: Sequence[Run]) -> list[str]:
    return sorted({tidy(run.info["data"]) for run in runs if run.info.get("data")})


def _title(groups: Sequence[Group]) -> str:
    data = _data([run for group in groups for run in group.every_run])
    on = f" on {listed(data)}" if data else ""
    return f"{groups[0].label}{on}" if len(groups) == 1 else f"{len(groups)} methods{on}"


def _facts(groups: Sequence[Group], runs: Sequence[Run]) -> list[str]:
    """The line under the title."""
    facts = [f"data set {listed(data)}"] if (data := _data(runs)) else []
    clients = [len(run.info["clients"]) for run in runs]
    facts.append(f"{spread_of(clients)} {'client' if max(clients) == 1 else 'clients'}")
    rounds = [run.info["rounds"] for run in runs if isinstance(run.info.get("rounds"), int)]
    if rounds:
        facts.append(f"{spread_of(rounds)} {'round' if max(rounds) == 1 else 'rounds'}")
    seeds = sorted({run.seed for run in runs})
    facts.append(f"{'seed' if len(seeds) == 1 else 'seeds'} {_seeds(seeds)}")
    facts.append(f"{'method' if len(groups) == 1 else 'methods'} {listed([g.label for g in groups], 20)}")
    return facts


def _seeds(seeds: list[int]) -> str:
    if len(seeds) > 3 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return listed([str(seed) for seed in seeds])


def _auc_note(rows: Sequence[SummaryRow]) -> str:
    """How many clients the AUC is about."""
    counted_clients = [number for row in rows if row.auc.values for number in row.auc_clients]
    if not counted_clients:
        return ""
    total = max(row.clients for row in rows)
    return (
        f"AUC is the mean over the {spread_of(counted_clients)} of {counted(total, 'client')} that have one: "
        "a client whose test data has a single class has no AUC."
    )


def _curves(series: Sequence[Series], looks: dict[str, Style], classification: bool) -> list[CurvePair]:
    pairs = []
    for quantity in QUANTITIES:
        if quantity.key == "test-loss" and classification:
            continue
        lines = lines_of(quantity, series, looks)
        if lines:
            sent = any(not line.sends_nothing and line.curve.megabytes[-1] > 0 for line in lines)
            by_bytes = draw_curves(quantity, lines, by_bytes=True) if sent else None
            pairs.append(CurvePair(quantity.title, draw_curves(quantity, lines, by_bytes=False), by_bytes))
    return pairs


def _gain_figures(clients: ClientScores, looks: dict[str, Style]) -> list[GainFigure]:
    compared = [row for row in clients.rows if row.against_alone is not None]
    every = [abs(g) for row in compared if row.against_alone for g in row.against_alone.gains if g is not None]
    limit = max(every, default=0.0) or 0.01
    return [
        GainFigure(row.series.name, draw_gains(row, clients, limit, looks[row.series.name], f"gains-{position}"))
        for position, row in enumerate(compared)
    ]


def _in_order_of(rows: Sequence[SummaryRow], clients: ClientScores) -> ClientScores:
    """The methods in the order of the summary, the best first."""
    place = {row.label: position for position, row in enumerate(rows)}
    return replace(clients, rows=sorted(clients.rows, key=lambda row: place[row.series.name]))


def _share(value: Any) -> str:
    """A mean count: whole numbers as they are, others with one decimal."""
    return f"{value:.1f}".removesuffix(".0")
