"""What goes with an exported model, read back from its file."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedapm.core.extras import require
from fedapm.core.torchscript import from_bytes
from fedapm.core.transform import Transform
from fedapm.errors import FedapmError
from fedapm.exports import onnx, torchscript
from fedapm.exports.description import SCRIPT
from fedapm.exports.formats import find_format
from fedapm.runs.files import first_line, read_tensors


def read_about(path: str | Path) -> dict[str, Any]:
    """What goes with an exported model: the client, the inputs, the names of the classes, the scores and more.

    Args:
        path: A file that `export` wrote, in any format.

    Returns:
        The fields that docs/how-to/use-a-model.md lists.

    Raises:
        FedapmError: The file is missing, damaged or not from `export`.
    """
    about = _note(Path(path))
    transform = about.get("transform")
    if transform is not None:
        # for read_transform, and nobody else
        about["transform"] = {key: value for key, value in transform.items() if key != SCRIPT}
    return about


def _note(path: Path) -> dict[str, Any]:
    form = find_format(path).name
    if form == "safetensors":
        return read_tensors(path)[1]
    if not path.is_file():
        raise FedapmError(f"{path} is missing.")
    try:
        note = _onnx_note(path) if form == "onnx" else _torchscript_note(path)
        about = json.loads(note)
    except FedapmError:
        raise
    except Exception as error:  # the libraries raise many types for a damaged file
        raise FedapmError(f"{path} cannot be read as {form} ({first_line(error)}).") from None
    if not isinstance(about, dict) or "client" not in about:
        raise FedapmError(f"{path} is not from fedapm: nothing about a client goes with it.")
    return about


def read_transform(path: str | Path, folder: str | Path | None = None) -> Callable[..., Any] | None:
    """What turns raw inputs into those of an exported model, where that is left to its user.

    Args:
        path: A file that `export` wrote.
        folder: Where a transform that is stored by its name is looked for, beside the working folder.

    Returns:
        A function or a scripted module of the raw inputs; None where the model takes raw inputs as it is.
    """
    about = _note(Path(path)).get("transform")
    if about is None or about["included"]:
        return None
    script = about.get(SCRIPT)
    content = base64.b64decode(script) if script is not None else None
    return Transform.stored(about, content, Path(folder) if folder is not None else None).function


def _onnx_note(path: Path) -> str:
    model = require("onnx", onnx.EXTRA, "Reading an ONNX file").load(path)
    return next((one.value for one in model.metadata_props if one.key == onnx.NOTE), "{}")


def _torchscript_note(path: Path) -> bytes | str:
    extra: dict[str, Any] = {torchscript.NOTE: ""}
    from_bytes(path.read_bytes(), extra)
    return extra[torchscript.NOTE] or "{}"
