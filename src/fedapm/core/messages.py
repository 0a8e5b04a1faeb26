"""Messages of work that is done elsewhere: collected where it is done, logged where a person reads them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

ROOT = "fedapm"
LONGEST = 2000
"""Characters of a message that are shown."""
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|\x1b[@-_]?")
"""What colors a terminal, moves its cursor or sets its title."""
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Characters that are no text: controls, and those that turn the direction of writing."""


class _Collector(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__()
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


def plain_line(text: str, longest: int = LONGEST) -> str:
    """A text from elsewhere as it may be shown: on one line, without codes that control a terminal, not too long.

    Args:
        text: Anything.
        longest: How many characters are kept.
    """
    cut = text[: 4 * longest]
    shown = " ".join(CONTROL.sub(" ", ESCAPES.sub("", cut)).split())
    if len(shown) <= longest and len(cut) == len(text):
        return shown
    return f"{shown[:longest]} … ({len(text):,} characters)"


@contextmanager
def collect_messages() -> Iterator[list[str]]:
    """Collect what fedapm logs in a block instead of showing it.

    A worker process or a node on another machine has no reader; it sends its messages along with its results.

    Yields:
        The messages, growing as they come.
    """
    logger = logging.getLogger(ROOT)
    messages: list[str] = []
    before = logger.handlers, logger.propagate, logger.level
    logger.handlers, logger.propagate = [_Collector(messages)], False
    logger.setLevel(logging.INFO)
    try:
        yield messages
    finally:
        logger.handlers, logger.propagate, level = before
        logger.setLevel(level)


class OnceLogger:
    """Logs each message once, however often it comes."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._logged: set[str] = set()

    def info(self, *messages: str) -> None:
        """Log the messages that are new."""
        self._log(logging.INFO, messages)

    def warning(self, *messages: str) -> None:
        """Log the messages that are new, as warnings."""
        self._log(logging.WARNING, messages)

    def _log(self, level: int, messages: Iterable[str]) -> None:
        for message in messages:
            if message not in self._logged:
                self._logged.add(message)
                self._logger.log(level, "%s", message)
