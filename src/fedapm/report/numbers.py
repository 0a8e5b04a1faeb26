"""Numbers as a person reads them: few digits, a real minus sign, never a NaN."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sized
from typing import Any

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def finite(value: Any) -> float | None:
    """A JSON value as a number, or None for everything that is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def fixed(value: float, decimals: int) -> str:
    """A number with so many decimals; what rounds to zero has no sign."""
    text = f"{value:,.{decimals}f}"
    if not text.strip("-0.,"):
        text = text.lstrip("-")
    return text.replace("-", "−")


def percent(value: float, decimals: int = 2) -> str:
    """A share of one as per cent, without the sign %."""
    return fixed(100 * value, decimals)


def plain(value: float, digits: int = 3) -> str:
    """A number to some significant digits, in powers of ten where it is very large or very small."""
    return in_scale_of(value, value, digits)


def in_scale_of(value: float, reference: float, digits: int = 3) -> str:
    """A number written with the decimals and the power of ten that suit another: a ± beside its mean."""
    if reference == 0:
        return "0" if value == 0 else plain(value, digits)
    exponent = _exponent(reference, digits)
    if -4 <= exponent < 6:
        return fixed(value, max(0, digits - 1 - exponent))
    return f"{fixed(value / 10.0**exponent, digits - 1)}×10{str(exponent).translate(_SUPERSCRIPTS)}"


def tick(value: float) -> str:
    """A number at an axis: as short as it can be."""
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)) + 1e-9)
    if -4 < exponent < 5:
        return f"{value:.10g}".replace("-", "−")
    factor = value / 10.0**exponent
    power = f"10{str(exponent).translate(_SUPERSCRIPTS)}"
    return power if math.isclose(factor, 1) else f"{factor:.3g}×{power}".replace("-", "−")


def signed(text: str) -> str:
    """A plus sign before what is neither negative nor zero."""
    return text if text.startswith("−") or not text.strip("0.,") else f"+{text}"


def lower_first(title: str) -> str:
    """A title within a sentence: ``Test loss`` as ``test loss``, while ``F1`` and ``AUC`` stay."""
    return title[:1].lower() + title[1:] if title[1:2].islower() else title


def slug(name: str) -> str:
    """A name as part of an id."""
    return re.sub(r"[\W_]+", "-", name)


def listed(items: Iterable[Any], at_most: int = 12) -> str:
    """Words in a sentence: ``a, b and c``; a long list says how many more there are."""
    items = [str(item) for item in items]
    if len(items) > at_most:
        return ", ".join(items[:at_most]) + f" and {len(items) - at_most} more"
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def plural(noun: str, items: Sized | int) -> str:
    """A noun that goes with so many: ``seed`` for one, else ``seeds``."""
    count = items if isinstance(items, int) else len(items)
    return noun if count == 1 else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """A number and its noun."""
    return f"{count:,} {plural(noun, count)}"


def value_range(values: list[int], join: str = "–") -> str:
    """The smallest and the largest of some whole numbers, or the one they all are."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,}{join}{high:,}"


def _exponent(value: float, digits: int) -> int:
    """The power of ten of a number after it is rounded: 9.999 to three digits is 10.0."""
    return int(f"{value:.{digits - 1}e}".split("e")[1])
