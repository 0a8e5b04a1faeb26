"""A run as TensorBoard event files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.tensorboard import summary
from torch.utils.tensorboard.writer import SummaryWriter

from fedapm.loggers.scalars import closing_scalars, flat, scalars
from fedapm.runs.layout import ROUNDS, TENSORBOARD
from fedapm.runs.records import JsonLines
from fedapm.simulation.loop import Callback

if TYPE_CHECKING:
    from fedapm.core.record import RoundRecord
    from fedapm.simulation.state import RunState

EVENT_FILES = "events.out.tfevents.*"


class TensorBoard(Callback):
    """Writes event files; a run that is resumed goes on in a further file that takes back what comes again."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], last: int) -> None:
        place = folder / TENSORBOARD
        if last < 0:
            # a purge step of 0 would not make TensorBoard discard what is there
            for path in place.glob(EVENT_FILES):
                path.unlink()
        begun = any(place.glob(EVENT_FILES))
        self._writer: Any = SummaryWriter(str(place), purge_step=last + 1 if begun else None)
        self._settings = flat(settings)
        self._ending: Any = None
        self._described = begun
        if not begun and last >= 0:
            for record in JsonLines(folder / ROUNDS):
                self._add(record)
        self._writer.flush()

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Log a round."""
        del state, seconds
        self.write(record)

    def on_closing(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Log the scores after the closing phase."""
        del state, seconds
        for name, value in closing_scalars(record).items():
            self._writer.add_scalar(name, value, record["round"])
        self._writer.flush()

    def on_run_end(self, state: RunState, status: str) -> None:
        """Close the log."""
        del state
        self.close(status)

    def write(self, record: Mapping[str, Any]) -> None:
        """Add a round, at once: whoever resumes counts on everything up to the checkpoint being there."""
        self._add(record)
        self._writer.flush()

    def close(self, status: str) -> None:
        """Close the file."""
        del status
        if self._ending is not None:
            self._writer.file_writer.add_summary(self._ending)
        self._writer.close()

    def _add(self, record: Mapping[str, Any]) -> None:
        values = scalars(record)
        if not self._described:
            self._describe(values)
        for name, value in values.items():
            self._writer.add_scalar(name, value, record["round"])

    def _describe(self, values: Mapping[str, float]) -> None:
        """The settings as hyperparameters, with the client means as their results."""
        self._described = True
        hparams: Any = summary.hparams
        means = {name: value for name, value in values.items() if name.endswith("/mean")}
        experiment, start, self._ending = hparams(self._settings, means)
        for part in (experiment, start):
            self._writer.file_writer.add_summary(part)
