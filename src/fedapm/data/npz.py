"""One client's arrays in an .npz file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedapm.errors import FedapmError


def read_npz(path: Path) -> tuple[Any, ...]:
    """Read an .npz file.

    Returns:
        The pair (x, y), or ((x, y), (x_test, y_test)) where the file has test data of its own.

    Raises:
        FedapmError: If the file is missing or malformed, in one line.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        raise FedapmError(f"{path} does not exist; give an .npz file with the arrays x and y.") from None
    except Exception as error:  # numpy, zipfile and zlib raise many types for a damaged file
        raise FedapmError(f"{path} is not an .npz file of plain arrays ({first_line(error)}).") from None
    names = ["x", "y", "x_test", "y_test"] if {"x_test", "y_test"} & set(arrays) else ["x", "y"]
    for name in names:
        if name not in arrays:
            raise FedapmError(f"{path} lacks the array {name!r}; it holds {', '.join(arrays) or 'nothing'}.")
        shape, labels = arrays[name].shape, name.startswith("y") and arrays[name].dtype.kind in "biu"
        if not shape or (labels and len(shape) > 1 and shape[1:] != (1,)):
            needed = "one whole number per sample" if labels else "one row per sample"
            raise FedapmError(f"{path}: the array {name!r} has shape {shape}; it should hold {needed}.")
    if "x_test" in names and arrays["x"].shape[1:] != arrays["x_test"].shape[1:]:
        shapes = f"{arrays['x'].shape[1:]} and {arrays['x_test'].shape[1:]}"
        raise FedapmError(f"{path}: the samples of 'x' and 'x_test' have different shapes, {shapes}.")
    pair = arrays["x"], arrays["y"]
    return (pair, (arrays["x_test"], arrays["y_test"])) if "x_test" in names else pair


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
