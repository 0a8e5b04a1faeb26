"""A command as it was given, fit to be shown to others."""

from __future__ import annotations

import getpass
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

AGAIN = "rerun"
"""The folder that a repetition writes to."""
WITH_VALUE, FLAGS = ("--out", "--log"), ("--resume", "--json")
"""Options that say where and how results are shown, and not what is computed."""


def command_line(arguments: Sequence[str]) -> str:
    """The command with these arguments, ready for a shell, without the name of whoever gave it."""
    return " ".join(["fedapm", *map(_quoted, arguments)])


def private(text: str) -> str:
    """A text without the user's home folder and name in its paths."""
    home = _home()
    if home is not None:
        text = re.sub(rf"(?<![\w.~-]){re.escape(home)}(?![\w.-])", "~", text)
    user = _user()
    return re.sub(rf"(?<=[/\\]){re.escape(user)}(?![\w.-])", "USER", text) if user is not None else text


def repeating(command: str) -> str:
    """The command that computes the same again into a folder of its own."""
    kept: list[str] = []
    words = iter(shlex.split(command))
    for word in words:
        name, equals, _ = word.partition("=")
        if name in WITH_VALUE:
            if not equals:
                next(words, None)
        elif word not in FLAGS:
            kept.append(word)
    return " ".join([*map(_quoted, kept), "--out", AGAIN])


def _quoted(word: str) -> str:
    shown = private(word)
    # a shell expands the tilde only where it is not quoted
    return f"~/{shlex.quote(shown[2:])}" if shown.startswith("~/") and shown != "~/" else shlex.quote(shown)


def _home() -> str | None:
    try:
        home = str(Path.home()).rstrip("/\\")
    except RuntimeError:
        return None
    return home or None


def _user() -> str | None:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        return None
    return user if len(user) > 1 and user != "root" else None
