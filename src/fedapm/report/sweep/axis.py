"""The axis of what was varied: where each value stands, and how it is written there."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from fedapm.report.figures.canvas import LOG_FROM, short
from fedapm.report.sweep.runs import is_numeric, written

LETTER = 0.066
"""Inches that a letter of a tick label takes."""
USABLE = 3.3
"""Inches of a figure's width that the axis has."""


@dataclass(frozen=True)
class ValueAxis:
    """Values as places on a line: in proportion, by powers, or one after the other where they are no numbers."""

    setting: str
    labels: Sequence[str]
    places: Sequence[float]
    log: bool
    numeric: bool
    _keys: Sequence[str]

    @property
    def width(self) -> float:
        """From the first place to the last."""
        return (self.places[-1] - self.places[0]) or 1.0

    @property
    def title(self) -> str:
        """What is written below the axis."""
        apart = ", 0 apart" if self.log and "0" in self.labels else ""
        return f"{self.setting}{', log scale' if self.log else ''}{apart}"

    def place(self, value: Any) -> float:
        """Where a value stands."""
        return self.places[self._keys.index(json.dumps(value))]

    def dress(self, axes: Axes) -> None:
        """Ticks at the values themselves; where their labels would touch, some are left out or all are tilted."""
        axes.set_xlim(self.places[0] - 0.06 * self.width, self.places[-1] + 0.06 * self.width)
        axes.set_xlabel(self.title)
        texts = [short(label, 18) for label in self.labels]
        if self.numeric:
            axes.set_xticks(self.places, self._thinned(texts))
        elif self._fits(texts):
            axes.set_xticks(self.places, texts)
        else:
            axes.set_xticks(self.places, texts, rotation=25, ha="right", rotation_mode="anchor")

    def _fits(self, texts: Sequence[str]) -> bool:
        return (max(map(len, texts)) + 1) * LETTER <= USABLE / max(len(texts), 1)

    def _thinned(self, texts: Sequence[str]) -> list[str]:
        shown = []
        free = -math.inf
        for place, text in zip(self.places, texts, strict=True):
            middle, half = USABLE * (place - self.places[0]) / self.width, LETTER * len(text) / 2
            fits = middle - half >= free
            shown.append(text if fits else "")
            free = middle + half + LETTER if fits else free
        return shown


def value_axis(setting: str, values: Sequence[Any]) -> ValueAxis:
    """The axis for some values; by powers where they span a factor of 30 or more."""
    keys = [json.dumps(value) for value in values]
    labels = [written(value) for value in values]
    if not is_numeric(values):
        return ValueAxis(setting, labels, [float(i) for i in range(len(values))], False, False, keys)
    positive = [float(value) for value in values if value > 0]
    log = min(values) >= 0 and len(positive) > 1 and positive[-1] / positive[0] >= LOG_FROM
    if not log:
        return ValueAxis(setting, labels, [float(value) for value in values], False, True, keys)
    powers = [math.log10(value) for value in positive]
    # zero has no place among powers: it stands one usual step below the smallest
    step = (powers[-1] - powers[0]) / (len(powers) - 1)
    zeros = [powers[0] - step] * (len(values) - len(positive))
    return ValueAxis(setting, labels, [*zeros, *powers], True, True, keys)
