"""The comparison, and the search of the split, as tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fedapm.report import Column, SummaryRow, best_round_columns, filled_columns
from fedapm.report.comparison.twins import twin_sentences
from fedapm.report.evaluated_on import wording
from fedapm.report.split.page import cells
from fedapm.report.split.search import SplitSearch

_ANY_WIDTH = 10_000


@dataclass(frozen=True)
class Summary:
    """One line a method, with as many columns as there is room for.

    The scores of the best round come after those of the last one, and are the first to go.
    """

    rows: Sequence[SummaryRow]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        last, best = filled_columns(self.rows), best_round_columns(self.rows)
        choices = [(last, best), (last, best[:1]), *((last[:count], []) for count in range(len(last), 1, -1))]
        free = options.update(max_width=_ANY_WIDTH)
        for shown, also in choices:
            table = _table(self.rows, shown, also, left_out=len(last) - len(shown))
            if Measurement.get(console, free, table).maximum <= options.max_width:
                break
        yield table


def summary(rows: Sequence[SummaryRow]) -> Summary:
    """The table of a comparison; a star marks what is significantly better than the rest."""
    return Summary(rows)


def _table(rows: Sequence[SummaryRow], last: Sequence[Column], best: Sequence[Column], left_out: int) -> Table:
    notes = [_seeds(rows)]
    notes.append("* significantly better than every other")
    some = {f"of {row.clients:,} of {row.population:,} clients" for row in rows if row.clients < row.population}
    notes += sorted(some)
    kinds = {row.evaluated_on for row in rows}
    validated = kinds == {"validation"}
    reword = wording("validation" if validated else "test")
    if best:
        notes.append(reword("best: of any round, chosen with test data, so too optimistic"))
    if len(kinds) > 1 or "both" in kinds:
        notes.append("some are validation scores and some test scores")
    notes += [sentence.removesuffix(".") for sentence in twin_sentences(rows)]
    if left_out:
        notes.append(f"{left_out} more {'column' if left_out == 1 else 'columns'} in a wider terminal")
    table = Table(
        title="Client means after the last round" + (", on validation data" if validated else ""),
        caption="; ".join(notes),
        title_justify="left",
        caption_justify="left",
        pad_edge=False,
    )
    table.add_column("method", no_wrap=True)
    columns = [*last, *best]
    for column in columns:
        unit = f", {column.unit}" if column.unit else ""
        table.add_column(reword(column.title) + unit, justify="right", no_wrap=True)
    for row in rows:
        cells = []
        for column in columns:
            cell = row.cell(column)
            text = f"{column.mean_text(cell)} {column.std_text(cell)}".strip()
            cells.append(Text(f"{text} *" if cell.best else text, style="bold" if cell.best else ""))
        table.add_row(row.label, *cells)
    return table


def _seeds(rows: Sequence[SummaryRow]) -> str:
    """How many seeds the numbers are means over; methods that differ in that are named."""
    counts: dict[int, list[str]] = {}
    for row in rows:
        counts.setdefault(len(row.seeds), []).append(row.label)
    most = max(counts, default=0)
    if len(counts) <= 1:
        return f"mean ± standard deviation over {most} seeds" if most > 1 else "one seed"
    fewer = [
        f"{', '.join(labels)}: {count} {'seed' if count == 1 else 'seeds'}"
        for count, labels in sorted(counts.items())
        if count != most
    ]
    return f"mean ± standard deviation over {most} seeds, but {'; '.join(fewer)}"


def split_table(search: SplitSearch) -> Table:
    """The candidates of a search of the split, those with the fewest personal parameters first."""
    table = Table(
        title=f"{search.title}, client mean",
        caption="behind: to the best after as many rounds, paired by client and seed; no test data was used",
        title_justify="left",
        caption_justify="left",
        pad_edge=False,
    )
    table.add_column("split", overflow="fold")
    behind = "behind, points" if search.metric["unit"] == "%" else "behind"
    for column in ("personal", "rounds", "score", behind, "95% interval", "sent a round"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for position, row in enumerate(search.rows):
        table.add_row(*cells(search, position), style="bold" if row.verdict == "chosen" else "")
    return table
