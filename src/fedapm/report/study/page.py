"""The page of a study: the overview, then a section for each table. It is made of summary.csv and study.json alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapm.errors import FedapmError
from fedapm.report import published
from fedapm.report.numbers import slug
from fedapm.report.page import Page, Section
from fedapm.report.study import overview
from fedapm.report.study.about import PROTOCOL, READING, budgets, heading
from fedapm.report.study.lines import read_lines
from fedapm.report.study.sweeps import SWEPT, SweepTable, read_sweeps, sweep_tables
from fedapm.report.study.sweeps import sentence as sweep_sentence
from fedapm.report.study.tables import COLUMNS, TO_LEVEL, Entry, Table, tables
from fedapm.report.study.words import against_fedalt, against_published_method, sentence
from fedapm.runs.files import read_json, write_atomic
from fedapm.runs.layout import REPORT, STUDY_COMPARE, STUDY_INFO, SUMMARY, SWEEPS


def write_study_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page of the study in a folder, and return where it is.

    Args:
        folder: The folder of the study, which holds its summary.
        out: Where to write it; ``report.html`` in the folder if not given.
    """
    path = out or folder / REPORT
    info = read_json(folder / STUDY_INFO)
    found = tables(read_lines(folder / SUMMARY))
    if not any(table.scored for table in found):
        raise FedapmError(f"{folder / SUMMARY} holds no complete run yet; go on with the same fedapm study command.")
    write_atomic(path, render_study(found, info, sweep_tables(read_sweeps(folder / SWEEPS))))
    return path


def render_study(found: Sequence[Table], info: Mapping[str, Any], swept: Sequence[SweepTable] = ()) -> str:
    """The page as HTML.

    Args:
        found: The tables of the summary.
        info: What study.json holds.
        swept: What was varied.
    """
    context = {
        "figure": overview.rank_figure(found),
        "headings": overview.ROW,
        "rows": overview.rows(found),
        "findings": [overview.findings(found, split) for split in dict.fromkeys(t.split for t in found if t.scored)],
        "sentences": [(table.name, table.split, sentence(table)) for table in found],
    }
    waiting = [case["title"] for name, case in info["cases"].items() if name not in {table.case for table in found}]
    return Page(
        title=str(info["title"]),
        facts=heading(found),
        headline=[],
        notice=f"Not run yet: {', '.join(map(str, waiting))}." if waiting else "",
        sections=[
            Section("overview", "Overview", "study_overview.html.j2", context),
            Section("run", "What was run", "study_run.html.j2", _run(info, found)),
            *(_swept(table) for table in swept),
            *(_section(table) for table in found),
        ],
        footer="Everything here is made of summary.csv; fedapm report makes it again.",
    ).render()


def _swept(table: SweepTable) -> Section:
    context = {
        "note": SWEPT,
        "sentence": sweep_sentence(table),
        "figure": table.figure,
        "headings": table.headings,
        "rows": table.cells,
        "id": slug(f"sweep-{table.setting}"),
    }
    return Section(str(context["id"]), f"What {table.setting} does", "study_sweep.html.j2", context)


def _run(info: Mapping[str, Any], found: Sequence[Table]) -> dict[str, Any]:
    return {"budgets": budgets(info["cases"], found), "protocol": PROTOCOL, "reading": READING}


def _section(table: Table) -> Section:
    context = {
        "sentences": [
            text for text in (sentence(table), against_published_method(table), against_fedalt(table)) if text
        ],
        "personal": table.personal,
        "columns": COLUMNS,
        "to_level": TO_LEVEL,
        "rows": [_row(table, entry) for entry in table.entries],
        "rival": table.rival,
        "published": overview.published_rows(table),
        "source": published.SOURCE,
        "link": f"{table.case}/cohort-{table.cohort:g}/{STUDY_COMPARE}/{REPORT}",
        "id": slug(f"{table.case}-{table.cohort:g}-{table.split}"),
    }
    title = (
        f"{table.name}, {'the split chosen on validation data' if table.split == 'chosen' else f'{table.split} split'}"
    )
    return Section(
        str(context["id"]),
        title,
        "study_table.html.j2",
        context,
        link=f"{table.title} {100 * table.cohort:g}% {table.split}",
    )


def _row(table: Table, entry: Entry) -> dict[str, Any]:
    return {
        "entry": entry,
        "versus": overview.versus_cells(table, entry),
        "reached": sum(line.rounds_to_level is not None for line in entry.complete),
    }
