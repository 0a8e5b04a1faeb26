"""NewClient: a client that took no part in training, with a model of its own, and how it gets it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from fedapm.core.metrics import Score
from fedapm.data.arrays import Arrays
from fedapm.errors import FedapmError
from fedapm.experiments.inference import infer
from fedapm.exports import Description, find_format, write_model
from fedapm.runs.files import write_tensors

JudgedOn = Literal["test", "validation", "training"]
StartedFrom = Literal["mean", "initial"]


@dataclass(frozen=True)
class Options:
    """How new clients are personalised."""

    epochs: int = 50
    """Most passes over a client's data; all of them where nothing is held out and the user says so."""
    patience: int = 5
    """Epochs in a row without a lower validation loss after which the search ends."""
    validation: float = 0.2
    """The share of its training data that a client holds out to choose the number of epochs by; 0: none."""
    samples: int | None = None
    """Train on so many samples only, drawn at random."""
    correct: bool = False
    """Whether a client also gets a copy of the shared part of its own."""

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.patience < 1 or (self.samples is not None and self.samples < 1):
            raise FedapmError("epochs must not be negative; patience and samples must be at least 1.")
        if not 0 <= self.validation < 1:
            raise FedapmError(f"the share that is held out must be at least 0 and below 1, not {self.validation}.")


@dataclass(frozen=True)
class NewClient:
    """A client that took no part in training, with a model of its own."""

    id: str
    train: int
    """How many samples its personal part was trained on."""
    start: StartedFrom
    """Where its personal part started: at the mean of the trained clients' ones, or where all clients once did."""
    epochs: int
    """How many passes over its data were chosen."""
    corrected: bool
    """Whether its model has a copy of the shared part of its own."""
    judged_on: JudgedOn
    """Which of its samples the scores are computed on."""
    before: dict[str, Score]
    """The scores with the personal part it started from."""
    after: dict[str, Score]
    """The scores of its model."""
    notes: tuple[str, ...]
    """What a person should know about these numbers, a sentence each."""
    model: nn.Module = field(repr=False)
    """Its model, a plain module in evaluation mode."""
    description: Description = field(repr=False)
    """What goes with its model."""

    def state_dict(self) -> dict[str, Tensor]:
        """Its whole model as a plain state dict, on the CPU."""
        return {n: t.detach().clone() for n, t in self.model.state_dict().items()}

    def predict(self, x: Arrays) -> Tensor:
        """What its model gives for some samples.

        Args:
            x: As in [Result.predict][fedapm.Result.predict].

        Returns:
            The network's outputs, one row a sample; ``.argmax(1)`` gives classes.
        """
        return infer(self.model, x, self.id, self.description.transform, self.description.input_types)

    def save(self, path: str | Path) -> Path:
        """Write its model as a safetensors file that plain torch loads."""
        about = self.description.about(embedded=True)
        write_tensors(Path(path), self.state_dict(), about | {"epochs": self.epochs})
        return Path(path)

    def export(self, path: str | Path, format: str | None = None) -> Path:
        """Write its model to one file, with all that is needed to use it, as [Result.export][fedapm.Result.export].

        Args:
            path: The file; it must not exist.
            format: ``"safetensors"``, ``"onnx"`` or ``"torchscript"``; by the file's ending if not given.

        Returns:
            The file.
        """
        form = find_format(Path(path), format)
        write_model(Path(path), form, self.description, self.state_dict, lambda: self.model)
        return Path(path)

    def as_dict(self) -> dict[str, Any]:
        """All but the model, for JSON."""
        names = ("id", "train", "start", "epochs", "corrected", "judged_on", "before", "after")
        return {name: getattr(self, name) for name in names} | {"notes": list(self.notes)}
