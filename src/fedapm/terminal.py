"""The comparison as a table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from fedapm.report import SummaryRow, filled_columns


def summary(rows: Sequence[SummaryRow]) -> Table:
    """One line a method; a star marks what is ahead of the rest by more than the noise between seeds."""
    columns = filled_columns(rows)
    seeds = max((len(row.seeds) for row in rows), default=0)
    spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    table = Table(
        title="Client means after the last round",
        caption=f"{spread}; * ahead of every other by more than the noise",
        title_justify="left",
        caption_justify="left",
        pad_edge=False,
    )
    table.add_column("method", no_wrap=True)
    for column in columns:
        table.add_column(column.title + (f", {column.unit}" if column.unit else ""), justify="right", no_wrap=True)
    for row in rows:
        cells = []
        for column in columns:
            cell = row.cell(column)
            text = f"{column.mean_text(cell)} {column.std_text(cell)}".strip()
            cells.append(Text(f"{text} *" if cell.best else text, style="bold" if cell.best else ""))
        table.add_row(row.label, *cells)
    return table
