"""A log that breaks does not break the run it follows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from fedapm.simulation.loop import Callback

if TYPE_CHECKING:
    from fedapm.core.record import RoundRecord
    from fedapm.simulation.state import RunState

logger = logging.getLogger(__name__)


class Guarded(Callback):
    """Passes everything on to a log until that fails; then says so once and leaves it alone."""

    def __init__(self, log: Callback, name: str) -> None:
        self._log: Callback | None = log
        self._name = name

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Log a round."""
        if self._log is not None:
            log = self._log
            self._try(lambda: log.on_round_end(state, record, seconds))

    def on_closing(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Log the closing phase."""
        if self._log is not None:
            log = self._log
            self._try(lambda: log.on_closing(state, record, seconds))

    def on_run_end(self, state: RunState, status: str) -> None:
        """Close the log."""
        if self._log is not None:
            log = self._log
            self._try(lambda: log.on_run_end(state, status))

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # whatever a server, a disk or a library does, hours of training are worth more
            self._log = None
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            logger.warning("logging to %s stopped (%s); the run itself goes on.", self._name, said)
