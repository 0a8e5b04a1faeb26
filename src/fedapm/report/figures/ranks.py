"""The ranks of methods over data sets as a heat map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedapm.report.figures.canvas import INK, as_html, drawing, short

CELL, ROW, BESIDE, LETTER, WIDTH = 0.5, 0.27, 1.35, 0.055, 7.6
"""Inches: a cell's width and height, the names of methods, a letter of a slanted name, and the narrowest figure."""
LONGEST = 44
"""Letters of a data set's name that are shown."""
SHADES = LinearSegmentedColormap.from_list("ranks", ["#0b6e4f", "#9fd3b6", "#f4f1de", "#e8b08a", "#b5482a"])
MISSING = "#d9dcdf"
DARK = (0.18, 0.82)
"""Below and above these shades white text is read best."""


def draw_ranks(
    ranks: Mapping[str, Sequence[int | None]],
    columns: Sequence[str],
    level: Mapping[str, Sequence[bool]],
    name: str,
) -> Markup:
    """A row for each method, a column for each data set, the rank in each cell.

    Args:
        ranks: The ranks of each method; None where it has none.
        columns: The data sets.
        level: Whether each method is the first of a column, or level with it; these cells have a frame.
        name: What the figure's ids begin with.
    """
    with drawing():
        across, down = CELL * len(columns), ROW * len(ranks)
        above = 0.3 + LETTER * max((len(short(title, LONGEST)) for title in columns), default=0)
        width, height = max(WIDTH, BESIDE + across + above), above + down
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes((BESIDE / width, 0, across / width, down / height))
        worst = max((rank for row in ranks.values() for rank in row if rank is not None), default=1)
        for y, (label, row) in enumerate(ranks.items()):
            for x, rank in enumerate(row):
                shade = 0.5 if rank is None else (rank - 1) / max(worst - 1, 1)
                color = MISSING if rank is None else SHADES(shade)
                framed = level[label][x]
                axes.add_patch(Rectangle((x - 0.46, y - 0.44), 0.92, 0.88, facecolor=color, linewidth=0))
                if framed:
                    axes.add_patch(Rectangle((x - 0.43, y - 0.4), 0.86, 0.8, fill=False, edgecolor=INK, linewidth=1.3))
                ink = "#ffffff" if rank is not None and not DARK[0] < shade < DARK[1] else INK
                axes.text(x, y, "–" if rank is None else str(rank), ha="center", va="center", color=ink, fontsize=8.5)
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(len(ranks) - 0.5, -0.5)
        axes.set_yticks(range(len(ranks)), [short(label, 18) for label in ranks])
        axes.set_xticks(range(len(columns)), [short(title, LONGEST) for title in columns], rotation=45, ha="left")
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.grid(visible=False)
        for side in axes.spines.values():
            side.set_visible(False)
        each = "; ".join(
            f"{label}: {', '.join('none' if rank is None else str(rank) for rank in row)}"
            for label, row in ranks.items()
        )
        return as_html(figure, name, f"Ranks by mean accuracy in {', '.join(columns)}. {each}.")
