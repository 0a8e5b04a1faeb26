"""The sheet every figure is drawn on, and its way into the page as the same bytes each time."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib.style
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from fedapm.report.figures.theme import themed_styles
from fedapm.report.numbers import tick

WIDTH = 4.1
"""Inches. Narrow, so that the text is still read when a phone shows the figure on its whole width."""

INK, GREY = "#1a1a1a", "#6b7075"
HEIGHT = 2.65
"""Inches, of the axes of a figure with curves."""
LEGEND_ROW = 0.185
LEGEND_LETTERS, LETTERS_BESIDE = 58, 8
"""How many letters fit in a row of a legend, and how many the piece of line before a name takes."""
TIP = 4.5
"""How near a pointer must be to a dot to be told its value."""
LOG_FROM = 30.0
"""Values that differ by more than this factor need powers of ten."""

_LOOK = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 8.5,
    "axes.labelsize": 8.5,
    "axes.labelcolor": "#333333",
    "axes.edgecolor": "#8a8f94",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e8ea",
    "grid.linewidth": 0.7,
    "hatch.linewidth": 0.8,
    "xtick.color": "#8a8f94",
    "ytick.color": "#8a8f94",
    "xtick.labelcolor": "#333333",
    "ytick.labelcolor": "#333333",
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "legend.columnspacing": 1.4,
    "legend.handletextpad": 0.6,
    "legend.borderaxespad": 0.2,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.6,
}


@contextmanager
def drawing() -> Iterator[None]:
    """Draw with the look of the report whatever the user's own matplotlib settings are.

    A script that the measuring font lacks is no matter: the browser has its own fonts.
    """
    with matplotlib.style.context(["default", _LOOK]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def new_figure(
    height: float, labels: Sequence[str] = (), handles: Sequence[Line2D] = (), columns: int = 1
) -> tuple[Figure, Axes]:
    """A figure with its legend below the axes, where it hides nothing, and with room for it."""
    room = LEGEND_ROW * math.ceil(len(labels) / columns)
    figure = Figure(figsize=(WIDTH, height + room), layout="constrained")
    axes = figure.subplots()
    if labels:
        figure.legend(handles, [short(label) for label in labels], loc="outside lower center", ncols=columns)
    return figure, axes


def round_ticks(axis: Axis, most: int = 6, integer: bool = False, symmetric: bool = False) -> None:
    """Few ticks, at numbers a person would choose."""
    steps = [1, 2, 5, 10]
    axis.set_major_locator(MaxNLocator(most, steps=steps, integer=integer, symmetric=symmetric))
    plain_numbers(axis)


def power_ticks(axis: Axis, ratio: float) -> None:
    """Ticks of a log scale: whole powers of ten, with steps between them where there are few powers."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if ratio < 500 else (1.0,), numticks=8))
    axis.set_minor_locator(NullLocator())
    plain_numbers(axis)


def plain_numbers(axis: Axis) -> None:
    """Tick labels as the rest of the page writes numbers."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))


def scale_values(axes: Axes, values: Sequence[float], may_be_log: bool) -> None:
    """Powers of ten where values differ by more than a linear axis can show; the axis says so."""
    if may_be_log and values and min(values) > 0 and max(values) / min(values) > LOG_FROM:
        axes.set_yscale("log")
        axes.set_ylabel(f"{axes.get_ylabel()}, log scale")
        power_ticks(axes.yaxis, max(values) / min(values))
    else:
        round_ticks(axes.yaxis)


def legend_columns(labels: Sequence[str]) -> int:
    """As many as fit below a figure."""
    lengths = [len(short(label)) for label in labels]
    for columns in (4, 3, 2):
        parts = np.array_split(lengths, min(columns, len(lengths)))
        if sum(max(part) + LETTERS_BESIDE for part in parts) <= LEGEND_LETTERS:
            return columns
    return 1


def name_rows(axes: Axes, labels: Sequence[str]) -> None:
    """A name for each row of a figure that has methods below each other, the first on top."""
    axes.set_yticks(range(len(labels)), [short(label, 18) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)


def short(label: str, most: int = 32) -> str:
    """A name that fits; matplotlib takes a leading underscore for a wish to stay out of the legend."""
    label = label if len(label) <= most else label[: most - 1] + "…"
    return f" {label}" if label.startswith("_") else label


@dataclass(frozen=True)
class Tip:
    """What is said of a place in a figure when a pointer rests there: the exact value."""

    axes: Axes
    x: float
    y: float
    text: str
    half: float | None = None
    """Half the width of a strip from the bottom of the axes to the top; None for a dot."""

    def svg(self, height: float) -> str:
        """An invisible shape with a title.

        Args:
            height: That of the drawing, in its units.
        """
        x, y = self.axes.transData.transform((self.x, self.y))
        if self.half is None:
            shape = f'<circle cx="{x:.1f}" cy="{height - y:.1f}" r="{TIP}"'
        else:
            right = self.axes.transData.transform((self.x + self.half, self.y))[0]
            low, high = (float(self.axes.transAxes.transform((0.0, end))[1]) for end in (0.0, 1.0))
            wide = f'width="{2 * (right - x):.1f}" height="{high - low:.1f}"'
            shape = f'<rect x="{2 * x - right:.1f}" y="{height - high:.1f}" {wide}'
        return f'<g class="tip"><title>{escape(self.text)}</title>{shape}/></g>'


def as_html(figure: Figure, name: str, description: str, tips: Sequence[Tip] = ()) -> Markup:
    """The figure as inline SVG with a description for those who do not see it.

    Ids are unique in a page, not in a figure, so each carries the figure's name; sizes are left to the page, and so are
    colors: they change with it from light to dark.

    Args:
        figure: The drawing.
        name: Its name in the page.
        description: What it shows, in words.
        tips: Exact values, for a pointer.
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": name}):
        # savefig would draw everything twice, which matters in a page of thirty figures
        FigureCanvasSVG(figure).print_svg(buffer, metadata=nothing)  # type: ignore[no-untyped-call]
    svg = buffer.getvalue()
    opening = re.search(r'<svg[^>]*viewBox="([^"]+)"[^>]*>', svg)
    assert opening is not None, "matplotlib always writes a viewBox"
    body = svg[opening.end() :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<style[^>]*>.*?</style>", "", body, count=1, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'(<[^>]*?\bid=")', rf"\g<1>{name}-", body)
    body = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", body)
    body = re.sub(r"\n\s*", "\n", themed_styles(body))
    figure.dpi = 72.0  # the units of the drawing, in which the places of tips are asked for
    places = "\n".join(tip.svg(72.0 * figure.get_figheight()) for tip in tips)
    body = body.replace("</svg>", f"{places}\n</svg>") if tips else body
    return Markup(f'<svg viewBox="{opening[1]}" role="img" aria-label="{escape(description)}">{body}')
