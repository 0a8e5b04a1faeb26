"""The page of a search of the split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fedapm.report.figures.split import split_png, split_svg
from fedapm.report.numbers import counted, listed
from fedapm.report.page import Figure, Page, Section
from fedapm.report.settings import without_places
from fedapm.report.split.search import SplitSearch, bytes_text, gap_text, read_search, score_text, share_text
from fedapm.runs.files import write_atomic
from fedapm.runs.layout import REPORT, SPLIT_PICTURE


def write_split_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page of the search in a folder and its picture, and return where the page is."""
    search = read_search(folder)
    path = out if out is not None else folder / REPORT
    write_atomic(path, render_split(search))
    write_atomic(folder / SPLIT_PICTURE, split_png(search))
    return path


def render_split(search: SplitSearch) -> str:
    """The report of a search as HTML."""
    arguments = search.arguments
    data = _data(search.settings.get("data", {}))
    caption = (
        "Every candidate after each step of the search, those with the fewest personal parameters first. "
        "A line through a dot is the 95% interval of its distance to the best."
    )
    context = {
        "search": search,
        "rows": [cells(search, position) for position in range(len(search.rows))],
        "title": search.title,
        "figures": [Figure(caption, split_svg(search, "split"))],
    }
    return Page(
        title=f"The split of {arguments['method']}" + (f" on {data}" if data else ""),
        facts=[
            *([f"data set {data}"] if data else []),
            counted(int(arguments["clients"]), "client"),
            f"up to {counted(max(row.rounds for row in search.rows), 'round')}",
            f"seeds {listed(arguments['seeds'])}",
            f"method {arguments['method']}",
        ],
        notice="Scores are on validation data, a part of each client’s training data. No test data was used.",
        headline=search.advice,
        sections=[
            Section("candidates", "Candidates", "split_candidates.html.j2", context),
            Section(
                "settings",
                "Settings",
                "split_settings.html.j2",
                {"toml": without_places(tomli_w.dumps(search.settings))},
            ),
        ],
    ).render()


def cells(search: SplitSearch, position: int) -> list[str]:
    """A candidate as cells of a table: name, personal, rounds, score, behind, interval, sent, verdict."""
    row = search.rows[position]
    behind = gap_text(search.metric, row.behind, unit=False) if row.behind is not None else ("–", "")
    # the best is behind itself by nothing at all
    known = row.behind is not None and row.behind.low != row.behind.high
    return [
        row.name,
        share_text(row.share),
        str(row.rounds),
        score_text(search.metric, row.score),
        behind[0] if known else "–",
        behind[1] if known else "",
        bytes_text(row.bytes),
        row.verdict,
    ]


def _data(table: Mapping[str, Any]) -> str | None:
    """The data set's name with that of its features, as reports write it."""
    name, features = table.get("name"), table.get("features")
    return f"{name} ({features})" if features else name
