"""Messages of work that is done elsewhere: collected where it is done, logged where a person reads them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

ROOT = "fedapm"


class _Collector(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__()
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


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
