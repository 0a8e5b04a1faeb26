"""The formats, by name and by ending."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from fedapm.errors import FedapmError, did_you_mean
from fedapm.exports.adapters import write_merged, write_peft
from fedapm.exports.description import Description
from fedapm.exports.onnx import write_onnx
from fedapm.exports.torchscript import write_torchscript
from fedapm.runs.files import write_tensors
from fedapm.runs.folder import locked

Write = Callable[[Path, nn.Module, Description], str]


@dataclass(frozen=True)
class Format:
    """A format of files that hold one model."""

    name: str
    endings: tuple[str, ...]
    write: Write | None
    """Writes a network; None where only its numbers are written and its code is not needed."""

    @property
    def shown(self) -> str:
        """Its endings, for messages."""
        return " or ".join(self.endings)


FORMATS: Mapping[str, Format] = {
    one.name: one
    for one in (
        Format("safetensors", (".safetensors",), None),
        Format("onnx", (".onnx",), write_onnx),
        Format("torchscript", (".pt", ".ts"), write_torchscript),
        Format("merged", (".safetensors",), write_merged),
        Format("peft", ("",), write_peft),
    )
}


def known_format(name: str) -> Format:
    """The format of a name."""
    if name not in FORMATS:
        raise FedapmError(f"there is no format {name!r}; {did_you_mean(name, FORMATS)}")
    return FORMATS[name]


def find_format(path: Path, name: str | None = None) -> Format:
    """The format of a file.

    Args:
        path: The file.
        name: The format's name; found by the file's ending if not given.

    Raises:
        FedapmError: There is no such format, or the ending is another format's.
    """
    if name is not None:
        form = known_format(name)
        if path.suffix and form.endings == ("",):
            raise FedapmError(f"{path} should be a folder, as {name} writes; call it {path.with_suffix('').name}.")
        if path.suffix.lower() not in form.endings:
            better = path.with_suffix(form.endings[0]).name
            raise FedapmError(f"{path} does not end in {form.shown}, as {name} files do; call it {better}.")
        return form
    for one in FORMATS.values():
        if path.suffix and path.suffix.lower() in one.endings:
            return one
    first: dict[str, str] = {}
    for one in FORMATS.values():
        first.setdefault(one.shown, one.name)
    known = ", ".join(f"{shown} ({one})" for shown, one in first.items() if shown)
    raise FedapmError(f"{path} ends in {path.suffix or 'nothing'}, which says no format; known are {known}.")


def write_model(
    path: Path,
    form: Format,
    description: Description,
    state: Callable[[], Mapping[str, Tensor]],
    network: Callable[[], nn.Module],
) -> str:
    """Write a client's model; a file that exists is never touched.

    Args:
        path: The file.
        form: Its format.
        description: What goes with the model.
        state: Gives its state dict.
        network: Gives it as a module in evaluation mode; asked only by formats that hold the network itself.

    Returns:
        What was written, in a few words.
    """
    if path.exists():
        raise FedapmError(f"{path} exists already; give another file.")
    with locked(path):
        if form.write is not None:
            return form.write(path, network(), description)
        tensors = state()
        write_tensors(path, tensors, description.about(embedded=True))
        return f"{len(tensors)} tensors of client {description.client}"
