"""A study as a part of a Markdown page, made of its summary, so that no number in it can go stale."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedapm.report import published
from fedapm.report.page import escape_markdown
from fedapm.report.study import overview
from fedapm.report.study.about import PROTOCOL, READING, budgets, origins
from fedapm.report.study.sweeps import SWEPT, SweepTable
from fedapm.report.study.sweeps import sentence as sweep_sentence
from fedapm.report.study.tables import ACCURACY, COLUMNS, TO_LEVEL, Entry, Table
from fedapm.report.study.words import against_fedalt, against_published_method, sentence

FIRST = tuple(column for column in COLUMNS if column is not ACCURACY)


def study_markdown(
    found: Sequence[Table],
    info: Mapping[str, Any],
    card: Mapping[str, Any],
    figure: str,
    swept: Mapping[str, SweepTable] | None = None,
) -> str:
    """The part of the page.

    Args:
        found: The tables of the summary.
        info: What study.json holds.
        card: What card.json holds.
        figure: The address of the picture of ranks.
        swept: What was varied, by the address of its picture.

    Returns:
        Markdown with headings of the second level and below; all but the tables themselves.
    """
    splits = dict.fromkeys(table.split for table in found if table.scored)
    lines = [
        f"## {info['title']}",
        "",
        *_paragraphs([*budgets(info["cases"], found), PROTOCOL, READING]),
        *_origins(card, info["cases"]),
        *_paragraphs(overview.findings(found, split) for split in splits),
        *(f"- **{table.name}, {table.split} split.** {sentence(table)}" for table in found),
        "",
        f"![Ranks of methods over data sets]({figure})",
        "",
        "Ranks by mean accuracy; a frame marks the first and what is level with it.",
        "",
        *_table(overview.ROW, overview.rows(found), text=2),
    ]
    for address, varied in (swept or {}).items():
        lines += _sweep(varied, address)
    return "\n".join(lines).rstrip() + "\n"


def tables_markdown(found: Sequence[Table]) -> str:
    """Every table of a study, with what it costs to reach the best rival's accuracy and published numbers.

    Args:
        found: The tables of the summary.

    Returns:
        Markdown with headings of the second level.
    """
    return "\n".join(line for table in found for line in _section(table)).rstrip() + "\n"


def _section(table: Table) -> list[str]:
    also = [text for text in (against_published_method(table), against_fedalt(table)) if text]
    personal = [f"Personal: {escape_markdown(table.personal)}."] if table.personal else []
    heading = (
        "Method",
        _title(ACCURACY),
        "minus FedAPM, points",
        "p",
        "p, Holm",
        *(_title(column) for column in FIRST),
    )
    rows = [
        (_label(entry), _cell(entry, ACCURACY), *overview.versus_cells(table, entry), *(_cell(entry, c) for c in FIRST))
        for entry in table.entries
    ]
    lines = [
        f"## {table.name}, {table.split} split",
        "",
        *_paragraphs([" ".join([sentence(table), *also, *personal])]),
        *_table(heading, rows),
    ]
    if table.rival:
        cost = [
            (entry.label, _reached(entry), *(_cell(entry, column) for column in TO_LEVEL), f"`{entry.settings}`")
            for entry in table.entries
            if entry.settings or entry.complete
        ]
        titles = ("Method", "seeds that reach it", *(_title(column) for column in TO_LEVEL), "settings chosen")
        level = f"To the accuracy of the best rival, {table.rival}, after its last round, before the closing phase:"
        lines += [level, "", *_table(titles, cost)]
    if rows_published := overview.published_rows(table):
        lines += [
            f"Published ({published.SOURCE}; the best of 300 rounds, of other networks, splits and draws of the data):",
            "",
            *_table(("Method", "published, %", "best round here, %"), rows_published),
        ]
    return lines


def _sweep(varied: SweepTable, address: str) -> list[str]:
    return [
        f"### What {varied.setting} does",
        "",
        *_paragraphs([SWEPT, sweep_sentence(varied)]),
        f"![Accuracy of FedAPM against {varied.setting}]({address})",
        "",
        *_table(varied.headings, varied.cells, text=2),
    ]


def _origins(card: Mapping[str, Any], cases: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = []
    for text, command in origins(card, cases):
        lines += _paragraphs([text])
        lines += ["```console", command, "```", ""] if command else []
    return lines


def _paragraphs(texts: Iterable[str]) -> list[str]:
    return [line for text in texts if text for line in (text, "")]


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], text: int = 1) -> list[str]:
    """A table whose first columns are text and the others numbers."""
    rule = ["---"] * text + ["--:"] * (len(headings) - text)
    lines = [headings, rule, *([escape_markdown(cell) if "`" not in cell else cell for cell in row] for row in rows)]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def _title(column: Any) -> str:
    return f"{column.title}, {column.unit}" if column.unit else str(column.title)


def _label(entry: Entry) -> str:
    return f"{entry.label} ({entry.seeds_text})" if entry.seeds_text else entry.label


def _reached(entry: Entry) -> str:
    return f"{sum(line.rounds_to_level is not None for line in entry.complete)} of {len(entry.lines)}"


def _cell(entry: Entry, column: Any) -> str:
    cell = entry.cell(column)
    return f"{column.mean_text(cell)} {column.std_text(cell)}".strip()
