"""Texts that come from the other side: one line, printable, and short."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

LINE = 500
"""The longest text of another machine that is shown or stored."""
MARK = "waiting for "
"""How the server's log says what it waits for, so that it can be found there."""
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


def few(clients: Sequence[str]) -> str:
    """Some clients by their ids, and how many more there are."""
    listed = ", ".join(one_line(client, VALUE) for client in clients[:8])
    return f"client{'s' * (len(clients) > 1)} {listed}" + (f" and {len(clients) - 8} more" if len(clients) > 8 else "")
