"""One look for each method, the same in every figure and table.

Color alone does not do: about one man in twelve cannot tell some of them apart and a grey print tells
none, so each method also has a marker of its own, and colors that come a second time a broken line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path as MplPath

from fedapm.report.comparison.series import Series
from fedapm.report.figures.theme import themed

COLORS = ("#0072b2", "#d55e00", "#009e73", "#b5529a", "#1a1a1a", "#c98a00", "#3fa3dc")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "p", "h", "d", "8")
ALONE_COLOR, ALONE_MARKER = "#6b7075", "X"
SECOND_TIME: tuple[float, ...] = (6.0, 1.2, 1.2, 1.2)
OTHER_VIEWS = ((1.2, 1.4), (3.5, 1.4), (6.0, 1.4, 1.2, 1.4, 1.2, 1.4))


@dataclass(frozen=True)
class Style:
    """How a line, its markers and its legend entry are drawn; no dashes means a solid line."""

    color: str
    marker: str
    dashes: tuple[float, ...] = ()
    hollow: bool = False
    position: int = 0

    @property
    def line(self) -> Literal["-"] | tuple[float, tuple[float, ...]]:
        """The line style as matplotlib takes it."""
        return (0.0, self.dashes) if self.dashes else "-"

    @property
    def face(self) -> str:
        """The inside of a marker."""
        return "#ffffff" if self.hollow else self.color


def assign_styles(series: Sequence[Series]) -> dict[str, Style]:
    """A style for each series by its name: methods differ in color and marker, their views in the line."""
    styles: dict[str, Style] = {}
    turn: dict[str, int] = {}
    for position, model in enumerate(series):
        label = model.group.label
        dashes: tuple[float, ...] = ()
        view = model.group.views.index(model.view)
        if model.alone:
            color, marker = ALONE_COLOR, ALONE_MARKER
        else:
            turn.setdefault(label, len(turn))
            color, marker = COLORS[turn[label] % len(COLORS)], _markers()[turn[label] % len(_markers())]
            dashes = SECOND_TIME if turn[label] >= len(COLORS) else ()
        if view:
            dashes = OTHER_VIEWS[(view - 1) % len(OTHER_VIEWS)]
        styles[model.name] = Style(color, marker, dashes, bool(view), position)
    return styles


def swatch(style: Style) -> Markup:
    """A piece of the line with its marker, for a table."""
    dashes = f' stroke-dasharray="{" ".join(f"{1.6 * d:g}" for d in style.dashes)}"' if style.dashes else ""
    line = themed(style.color)
    return Markup(
        '<svg class="swatch" viewBox="0 0 28 14" width="28" height="14" aria-hidden="true">'
        f'<path d="M2 7H26" style="stroke: {line}" stroke-width="2" fill="none"{dashes}/>'
        f'<path d="{_outline(style.marker)}" style="fill: {themed(style.face)}; stroke: {line}"/></svg>'
    )


def _markers() -> tuple[str, ...]:
    return tuple(marker for marker in MARKERS if marker != ALONE_MARKER)


def _outline(marker: str) -> str:
    style = MarkerStyle(marker)
    path = style.get_path().transformed(style.get_transform())
    letters = {MplPath.MOVETO: "M", MplPath.LINETO: "L", MplPath.CURVE3: "Q", MplPath.CURVE4: "C"}
    pieces = []
    for points, code in path.iter_segments(simplify=False):
        if code == MplPath.CLOSEPOLY:
            pieces.append("Z")
            continue
        places = [f"{14 + 8.5 * x:.2f} {7 - 8.5 * y:.2f}" for x, y in points.reshape(-1, 2)]
        pieces.append(letters[code] + " ".join(places))
    return "".join(pieces)
