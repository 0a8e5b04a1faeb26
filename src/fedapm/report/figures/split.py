"""The picture of a search of the split: the score of each candidate after each rung, sorted by what is personal."""

from __future__ import annotations

import io
from collections.abc import Sequence

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedapm.report.figures.canvas import GREY, INK, as_html, drawing, legend_columns, new_figure, round_ticks, short
from fedapm.report.numbers import lower_first
from fedapm.report.split.search import SplitRow, SplitSearch, bytes_text, score_text, share_text

ROW = 0.36
"""Inches that a candidate takes: its name, and its dots below."""
CHOSEN = "#c2410c"
LETTERS = 50
DPI = 200


def split_svg(search: SplitSearch, name: str) -> Markup:
    """The picture for a page."""
    with drawing():
        return as_html(_draw(search), name, _description(search))


def split_png(search: SplitSearch) -> bytes:
    """The picture as a file of its own."""
    content = io.BytesIO()
    with drawing():
        figure = _draw(search)
        FigureCanvasAgg(figure)
        figure.savefig(content, format="png", dpi=DPI, metadata={"Software": None})
    return content.getvalue()


def _draw(search: SplitSearch) -> Figure:
    """A row for each candidate, the one with the fewest personal parameters on top."""
    factor = 100.0 if search.metric["unit"] == "%" else 1.0
    rungs = sorted({rounds for row in search.rows for rounds, _ in row.history})
    colors = [to_hex(color) for color in matplotlib.colormaps["Blues"](np.linspace(0.4, 0.95, len(rungs)))]
    handles = [Line2D([], [], color=color, linestyle="", marker="o") for color in colors]
    labels = [f"after {rounds} rounds" if rounds > 1 else "after 1 round" for rounds in rungs]
    figure, axes = new_figure(0.75 + ROW * len(search.rows), labels, handles, legend_columns(labels))
    for place, row in enumerate(search.rows):
        scores = [factor * score for _, score in row.history]
        axes.plot(scores, [place] * len(scores), color="#cfd4d9", linewidth=1, zorder=1)
        for (rounds, _), score in zip(row.history, scores, strict=True):
            axes.plot(score, place, "o", color=colors[rungs.index(rounds)], zorder=3)
        _mark(axes, row, place, factor, rungs[-1], search)
    _name_rows(axes, search.rows)
    round_ticks(axes.xaxis, 6)
    axes.set_xlabel(lower_first(search.title) + (" (%)" if factor > 1 else ""))
    return figure


def _mark(axes: Axes, row: SplitRow, place: int, factor: float, last: int, search: SplitSearch) -> None:
    """A whisker where the candidate came to the end, and a ring around the chosen one."""
    if row.score is None or row.behind is None or row.rounds != last:
        return
    if row.behind.low is not None and row.behind.high is not None and row.behind.low < row.behind.high:
        # how far behind the best it may be, seen from the best
        sign = 1 if search.metric["higher_is_better"] else -1
        best = row.score + sign * row.behind.mean
        ends = [factor * (best - sign * end) for end in (row.behind.low, row.behind.high)]
        axes.plot(ends, [place, place], color=INK, linewidth=1.0, alpha=0.7, zorder=2)
    if row.verdict == "chosen":
        axes.plot(factor * row.score, place, "o", color=CHOSEN, markerfacecolor="none", markersize=10, zorder=4)


def _name_rows(axes: Axes, rows: Sequence[SplitRow]) -> None:
    """Names above the dots, as wide as the figure; on the right what is personal and what is sent."""
    across = axes.get_yaxis_transform()
    for place, row in enumerate(rows):
        chosen = row.verdict == "chosen"
        color = CHOSEN if chosen else INK
        name = short(row.name, LETTERS - 8 * chosen) + (" · chosen" if chosen else "")
        axes.text(0.0, place - 0.44, name, transform=across, color=color, fontsize=7.5, va="center")
        cost = "diverged" if row.verdict == "diverged" else f"{share_text(row.share)} · {bytes_text(row.bytes)}"
        axes.text(1.0, place - 0.44, cost, transform=across, color=GREY, fontsize=7.5, va="center", ha="right")
    axes.set_ylim(len(rows) - 0.5, -1.3)
    axes.text(
        1.0, -1.08, "personal · sent a round", transform=across, color=GREY, fontsize=7.0, va="center", ha="right"
    )
    axes.set_yticks([])
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)


def _description(search: SplitSearch) -> str:
    each = "; ".join(
        f"{row.name} {score_text(search.metric, row.score)} after {row.rounds} rounds, {share_text(row.share)} personal"
        for row in search.rows
    )
    return f"{search.title} of each split: {each}. Chosen: {search.chosen.name}."
