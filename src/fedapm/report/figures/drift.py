"""Drift at the end of training as bars, one for each method."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup
from matplotlib.axes import Axes

from fedapm.report.comparison.drift import FinalDrift, FinalDrifts
from fedapm.report.figures.canvas import (
    INK,
    LOG_FROM,
    Tip,
    as_html,
    drawing,
    name_rows,
    new_figure,
    power_ticks,
    round_ticks,
)
from fedapm.report.figures.style import Style
from fedapm.report.numbers import plain

ROOM_FOR_VALUES = 0.2


def draw_drift(drifts: FinalDrifts, styles: dict[str, Style]) -> Markup:
    """Mean over seeds as a bar, the standard deviation over seeds as a whisker, the mean in digits beside it."""
    shown = drifts.methods
    with drawing():
        figure, axes = new_figure(0.55 + 0.28 * len(shown))
        left = _scale(axes, shown)
        for place, entry in enumerate(shown):
            mean, std = entry.drift.mean or 0.0, entry.drift.std
            axes.barh(place, mean - left, left=left, height=0.62, color=styles[entry.series].color, linewidth=0)
            if std:
                ends = [max(mean - std, left), mean + std]
                # a rim, because some bars are as dark as the whisker
                for color, width, size in (("#ffffff", 3.2, 9.0), (INK, 1.2, 7.0)):
                    axes.plot(ends, [place, place], "|-", c=color, lw=width, ms=size, mew=width)
            beside = (mean + (std or 0.0), place)
            axes.annotate(plain(mean, 2), beside, (5, 0), textcoords="offset points", va="center", fontsize=8.0)
        name_rows(axes, [entry.label for entry in shown])
        ends_text = ", ".join(f"{entry.label} {plain(entry.drift.mean or 0.0)}" for entry in shown)
        tips = [
            Tip(axes, entry.drift.mean or 0.0, place, f"{entry.label}: {entry.drift.mean or 0.0:.6g}{_spread(entry)}")
            for place, entry in enumerate(shown)
        ]
        return as_html(figure, "drift-bars", f"Drift at the end of training: {ends_text}.", tips)


def _spread(entry: FinalDrift) -> str:
    return f" ± {entry.drift.std:.3g} over seeds" if entry.drift.std else ""


def _scale(axes: Axes, shown: Sequence[FinalDrift]) -> float:
    """Set the axis and give the place where bars begin: zero, or a little below the least on a log scale."""
    means = [entry.drift.mean or 0.0 for entry in shown]
    ends = [mean + (entry.drift.std or 0.0) for mean, entry in zip(means, shown, strict=True)]
    if min(means) > 0 and max(means) / min(means) > LOG_FROM:
        starts = [mean - (entry.drift.std or 0.0) for mean, entry in zip(means, shown, strict=True)]
        left = 0.6 * min(start if start > 0 else mean for start, mean in zip(starts, means, strict=True))
        axes.set_xscale("log")
        axes.set_xlim(left, max(ends) * (max(ends) / left) ** ROOM_FOR_VALUES)
        power_ticks(axes.xaxis, max(ends) / left)
        axes.set_xlabel("drift ‖uᵢ − ū‖, log scale")
        return left
    axes.set_xlim(0.0, (1 + ROOM_FOR_VALUES) * max(ends) or 1.0)
    round_ticks(axes.xaxis, 5)
    axes.set_xlabel("drift ‖uᵢ − ū‖")
    return 0.0
