"""Paired differences as dots with whiskers, and a line at zero."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup
from matplotlib.axes import Axes

from fedapm.report.comparison.columns import Column
from fedapm.report.comparison.differences import Against, difference_text, interval_text
from fedapm.report.figures.canvas import INK, Tip, as_html, drawing, name_rows, new_figure, round_ticks, short
from fedapm.report.figures.style import Style
from fedapm.report.numbers import lower_first
from fedapm.report.significance import Difference

CUT_FROM = 6.0
CUT_AT = 3.0


def draw_differences(against: Against, styles: dict[str, Style], main: Column, name: str) -> Markup | None:
    """A dot for the mean, a whisker for the 95% interval; None where no two models share a seed.

    Two seeds give whiskers many times as long as the differences. They are cut where the dots would run into one,
    and an arrow says that they go on.
    """
    shown = [(label, difference) for label, difference in against.differences.items() if difference is not None]
    if not shown:
        return None
    factor = 100.0 if main.percentage else 1.0
    with drawing():
        figure, axes = new_figure(0.6 + 0.28 * len(shown))
        limit = _limit([difference for _, difference in shown])
        axes.axvline(0.0, color=INK, linewidth=1.0, zorder=1)
        for place, (label, difference) in enumerate(shown):
            _draw(axes, difference, place, styles[label], limit, factor)
        if limit is not None:
            axes.set_xlim(-1.06 * factor * limit, 1.06 * factor * limit)
        name_rows(axes, [label for label, _ in shown])
        round_ticks(axes.xaxis, 5)
        unit = " (points)" if main.percentage else ""
        axes.set_xlabel(f"{lower_first(main.title)} minus that of {short(against.reference, 18)}{unit}")
        each = ", ".join(_in_words(label, difference, main) for label, difference in shown)
        tips = [
            Tip(axes, factor * difference.mean, place, _in_words(label, difference, main))
            for place, (label, difference) in enumerate(shown)
        ]
        return as_html(figure, name, f"{main.title} minus that of {against.reference}{unit}: {each}.", tips)


def cut_off(against: Against) -> bool:
    """Whether some whisker is longer than its figure."""
    limit = _limit([difference for difference in against.differences.values() if difference is not None])
    return limit is not None


def _limit(differences: Sequence[Difference]) -> float | None:
    means = max((abs(difference.mean) for difference in differences), default=0.0)
    ends = [abs(end) for difference in differences for end in (difference.low, difference.high) if end is not None]
    return CUT_AT * means if means and ends and max(ends) > CUT_FROM * means else None


def _draw(axes: Axes, difference: Difference, place: int, style: Style, limit: float | None, factor: float) -> None:
    if difference.low is not None and difference.high is not None:
        low, high = difference.low, difference.high
        if limit is not None:
            for end, marker, edge in ((-low, "<", -limit), (high, ">", limit)):
                if end > limit:
                    axes.plot(factor * edge, place, marker, color=style.color, markersize=5, clip_on=False)
            low, high = max(low, -limit), min(high, limit)
        axes.plot([factor * low, factor * high], [place, place], color=style.color, linewidth=2.0, alpha=0.75)
    axes.plot(
        factor * difference.mean,
        place,
        marker=style.marker,
        color=style.color,
        markerfacecolor=style.face,
        markersize=6.5,
        zorder=3,
    )


def _in_words(label: str, difference: Difference, main: Column) -> str:
    interval = interval_text(difference, main)
    return f"{label} {difference_text(difference, main)}" + (f" ({interval})" if interval else "")
