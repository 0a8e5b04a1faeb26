"""Texts that come from the other side: one line, printable, and short."""

from __future__ import annotations

import re
from typing import Any

LINE = 500
"""The longest text of another machine that is shown or stored."""
VALUE = 40
"""The longest value that is quoted in a message."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
"""What a terminal obeys: colors, cursor moves, window titles."""


def one_line(text: str, limit: int = LINE) -> str:
    """A text of another machine without control characters, in one line, cut where it is too long."""
    # cut first: what follows should cost no more than what is shown
    start = _ESCAPES.sub("", text[: 8 * limit])
    line = " ".join("".join(c if c.isprintable() else " " for c in start).split())
    return line if len(line) <= limit and len(text) <= 8 * limit else f"{line[: limit - 1]}…"


def shown(value: Any) -> str:
    """A value as a message quotes it; of a list or an object only what it is, because it may be nested deeply."""
    match value:
        case dict():
            return f"an object of {len(value)}"
        case list():
            return f"a list of {len(value)}"
        case _:
            return one_line(repr(value), VALUE)
