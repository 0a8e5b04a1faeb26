"""The page: everything the report says, gathered and handed to the template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedapm.report.comparison import heading, sections, settings, warnings
from fedapm.report.comparison.clients import ClientScores, client_table
from fedapm.report.comparison.columns import SENT, plainly_titled
from fedapm.report.comparison.differences import difference_text, interval_text
from fedapm.report.comparison.headline import lead_sentences
from fedapm.report.comparison.published import publication, published_data
from fedapm.report.comparison.series import all_series, group_runs, same_data
from fedapm.report.comparison.summary import SummaryRow, best_round_columns, filled_columns, main_column, summary_table
from fedapm.report.evaluated_on import judged_by, validation_sentence, wording
from fedapm.report.figures.clients import draw_spread
from fedapm.report.figures.curves import MOST_POINTS
from fedapm.report.figures.style import styles, swatch
from fedapm.report.published import SOURCE
from fedapm.report.templates import fill
from fedapm.runs.records import Run


def render(runs: Sequence[Run], targets: Mapping[str, float] | None = None) -> str:
    """The whole report as HTML."""
    groups = group_runs(runs)
    series = all_series(groups)
    looks = styles(series)
    rows = summary_table(runs)
    by_name = {row.label: row for row in rows}
    counting = [run for group in groups for run in group.runs]
    comparable = same_data(counting)
    say = wording(judged_by(counting))
    main, *columns = (replace(c, title=say(c.title)) for c in (main_column(rows), *filled_columns(rows)))
    clients = client_table(series, main)
    if clients is not None:
        clients = _in_order_of(rows, clients)
    return fill(
        "page.html.j2",
        say=say,
        title=heading.title(groups),
        facts=heading.facts(groups, runs),
        validation=validation_sentence(counting),
        lead=lead_sentences(rows, main, comparable, judged_by(counting)),
        rows=rows,
        columns=columns,
        main=main,
        best_columns=[plainly_titled(column) for column in best_round_columns(rows)],
        any_best=any(row.cell(column).best for row in rows for column in columns),
        auc_note=heading.auc_note(rows),
        several_seeds=any(len(row.seeds) > 1 for row in rows),
        swatches={name: swatch(style) for name, style in looks.items()},
        differences=sections.differences(rows, main, looks) if comparable else None,
        difference_text=difference_text,
        interval_text=interval_text,
        targets=sections.targets(counting, targets or {}, rows, main),
        sent=SENT,
        curves=sections.curve_pairs(series, looks, main, published_data(counting), say),
        drift=sections.drift_bars(groups, rows, series, looks),
        silent=[group.label for group in groups if group.sends_nothing and group.views],
        thinned=any(len(run.rounds) > MOST_POINTS for run in counting),
        most_points=MOST_POINTS,
        published=publication(counting, rows),
        published_by=SOURCE,
        clients=clients,
        spread=draw_spread(clients, by_name, looks) if clients else None,
        gains=sections.gain_figures(clients, looks) if clients else [],
        by_name=by_name,
        troubles=[
            *warnings.incomplete_runs(groups),
            *warnings.uneven_terms(groups),
            *warnings.dropped_clients(groups),
            *warnings.clients_without_loss(groups),
        ],
        remarks=[*warnings.how_judged(counting), *warnings.capped_solves(groups)],
        sizes=settings.client_sizes(counting),
        parameters=settings.parameters(groups),
        versions=settings.versions(runs),
        configs=settings.configs(groups),
        share=_share,
    )


def _in_order_of(rows: Sequence[SummaryRow], clients: ClientScores) -> ClientScores:
    """The methods in the order of the summary, the best first."""
    place = {row.label: position for position, row in enumerate(rows)}
    return replace(clients, rows=sorted(clients.rows, key=lambda row: place[row.series.name]))


def _share(value: Any) -> str:
    """A mean count: whole numbers as they are, others with one decimal."""
    return f"{value:.1f}".removesuffix(".0")
