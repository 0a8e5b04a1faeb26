"""Arrays of the user's own as the tensors that networks and losses take.

What is converted is said in docs/how-to/own-data.md, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapm.core.samples import Samples
from fedapm.errors import FedapmError, did_you_mean

Arrays = Any
"""An array, a tensor, or a tuple of them (one for each input of the network)."""
Label = int | str
_SMALL = (torch.float16, torch.bfloat16, torch.bool, torch.uint8)
"""Types that hardly any layer computes with; they become single precision."""


@dataclass(frozen=True)
class LabelCode:
    """Labels that are not numbered from 0, and the class that each of them is."""

    values: tuple[Label, ...]
    """The label of each class, in order."""

    @property
    def names(self) -> tuple[str, ...]:
        """The labels as names of the classes."""
        return tuple(map(str, self.values))

    def encode(self, y: Any) -> np.ndarray[Any, Any]:
        """The class of each label; a label that is not known is refused."""
        column = label_column(y)
        known = {value: code for code, value in enumerate(self.values)}
        try:
            return np.array([known[value] for value in column.tolist()], dtype=np.int64)
        except KeyError as error:
            label = error.args[0]
            hint = did_you_mean(str(label), self.names)
            raise FedapmError(f"the label {label!r} is none of the classes; {hint}") from None
        except TypeError:
            raise FedapmError(f"labels of shape {column.shape} are not one label a sample.") from None


def find_label_code(
    columns: Iterable[Any], class_names: Sequence[str] = (), *, numbered: bool = False
) -> LabelCode | None:
    """How labels become classes, looking at all of them; None where they are numbered from 0, or are quantities.

    Text is numbered in sorted order, and so are whole numbers that begin at 1 or above. Where the names of the classes
    are given, text stands for their positions and whole numbers are positions already.

    Args:
        columns: The labels of each client, or of all of them.
        class_names: The names of the classes, where they are known.
        numbered: Whether these are only some of all labels, so that whole numbers must be classes already.
    """
    kinds, values = set(), set()
    for column in map(label_column, columns):
        if column.ndim != 1 or not len(column):
            continue
        kinds.add("text" if column.dtype.kind in "OUS" else column.dtype.kind)
        values |= set(np.unique(column).tolist()) if column.dtype.kind in "iuOUS" else set()
    if "text" in kinds:
        if len(kinds) > 1:
            raise FedapmError("some labels are text and some are numbers; give all of them in one form.")
        if numbered and not class_names:
            raise FedapmError("the labels are text, and nothing says which classes there are; name them (class_names).")
        return LabelCode(tuple(class_names) or tuple(sorted(values)))
    if not values or class_names or numbered or min(values) < 1:
        return None
    return LabelCode(tuple(sorted(values)))


def label_column(y: Any) -> np.ndarray[Any, Any]:
    """Targets as an array; whole numbers and text in a column (n, 1) as one dimension."""
    column = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if column.dtype.kind == "T":
        column = column.astype(object)
    if column.ndim == 2 and column.shape[1] == 1 and column.dtype.kind != "f":
        column = column[:, 0]
    if column.dtype.kind == "O":
        if not all(isinstance(value, str) for value in column.reshape(-1).tolist()):
            raise FedapmError("the labels mix types or have gaps (None, NaN); give every sample a label.")
    elif column.dtype.kind == "S":
        column = column.astype(str)
    elif column.dtype.kind not in "biufU":
        raise FedapmError(f"labels must be numbers or text, but they have the type {column.dtype}; convert them first.")
    return column


def is_quantity(y: Any) -> bool:
    """Whether targets are quantities rather than classes."""
    return y.is_floating_point() if isinstance(y, Tensor) else label_column(y).dtype.kind == "f"


def as_inputs(x: Arrays) -> tuple[Tensor, ...]:
    """Convert arrays to what a network is called with: single precision, or 64-bit integers."""
    return tuple([as_tensor(part) for part in (x if isinstance(x, tuple) else (x,))])


def as_samples(x: Arrays, y: Any, code: LabelCode | None = None, groups: Any = None, times: Any = None) -> Samples:
    """Arrays as samples.

    Args:
        x: The inputs.
        y: The targets.
        code: How labels become classes, if they are not numbered from 0.
        groups: The recording of each sample, of any type; None if samples stand alone.
        times: When each sample was taken; None if that does not matter.
    """
    inputs = as_inputs(x)
    if code is not None:
        targets = torch.as_tensor(code.encode(y))
    elif isinstance(y, Tensor) and y.is_floating_point():
        targets = as_tensor(y)
    elif isinstance(y, Tensor) and y.dtype == torch.int64 and y.ndim == 1:
        targets = as_tensor(y).clone()
    else:
        column = label_column(y) if len(y) else np.asarray(y)
        targets = as_tensor(column) if column.dtype.kind == "f" else torch.as_tensor(column.astype(np.int64))
    if targets.ndim == 2 and targets.shape[1] > 1 and len(targets) and _is_one_hot(targets):
        raise FedapmError(
            f"the labels are one-hot, of shape {tuple(targets.shape)}; give one class a sample, as in y.argmax(1)."
        )
    count = targets.shape[0] if targets.ndim else 0
    if any(t.shape[0] != count for t in inputs):
        shapes = " and ".join(str(tuple(t.shape)) for t in inputs)
        raise FedapmError(
            f"inputs and targets must have equal lengths: x has the shape {shapes}, y {tuple(targets.shape)}; x has "
            "one row a sample."
        )
    return Samples(inputs, targets, as_groups(groups, count), as_times(times, count))


def as_groups(groups: Any, count: int) -> Tensor | None:
    """The recordings of samples as numbers."""
    if groups is None:
        return None
    column = np.asarray(groups)
    _check_column(column, count, "groups")
    try:
        return torch.as_tensor(np.unique(column, return_inverse=True)[1])
    except TypeError:
        raise FedapmError("groups mix types or have gaps (None); give every sample a group.") from None


def as_times(times: Any, count: int) -> Tensor | None:
    """When samples were taken, as numbers; dates are accepted."""
    if times is None:
        return None
    column = np.asarray(times)
    if column.dtype.kind in "OU":
        try:
            column = column.astype("datetime64[ns]")
        except ValueError:
            raise FedapmError("time holds text that is no date; give numbers, or dates as 2024-01-31.") from None
    if column.dtype.kind in "Mm":
        if np.isnat(column).any():
            raise FedapmError("time has gaps; give every sample a time.")
        column = column.astype("int64")
    _check_column(column, count, "time")
    if column.dtype.kind not in "iuf" or not np.isfinite(column).all():
        raise FedapmError("time must be numbers or dates, without gaps.")
    return torch.as_tensor(column.astype(np.float64))


def as_tensor(values: Any) -> Tensor:
    """Numbers as a tensor on the CPU, converted as documented."""
    if isinstance(values, Tensor):
        if values.layout != torch.strided or values.is_quantized or values.is_meta:
            raise FedapmError("data must be plain tensors, not sparse, quantized or empty of data; convert it first.")
        tensor = values.detach().cpu()
    else:
        if np.ma.is_masked(values):
            raise FedapmError(
                "data must be whole, but an array has masked values; fill them or leave those samples out."
            )
        try:
            array = np.asarray(values)
        except ValueError:
            raise FedapmError("data must be an array, but its rows differ in length; pad them to one length.") from None
        if array.dtype.kind == "O":
            raise FedapmError("data must be numbers of one shape, but an array has mixed content; convert it first.")
        if array.dtype.kind not in "biuf":
            raise FedapmError(f"data must be numbers, but an array has the type {array.dtype}; convert it first.")
        if array.dtype.kind in "iu" and array.dtype != np.uint8:
            array = array.astype(np.int64)
        # float64 is numpy's default and rarely intended, while a double tensor is
        array = array.astype(np.float32) if array.dtype.kind == "f" and array.dtype != np.float32 else array
        tensor = torch.as_tensor(array if array.flags.writeable else array.copy())
    if not tensor.ndim:
        raise FedapmError("data must be arrays with one row a sample, not a single number.")
    return tensor.float() if tensor.dtype in _SMALL else tensor


def _is_one_hot(targets: Tensor) -> bool:
    return bool(((targets == 0) | (targets == 1)).all()) and bool((targets.sum(1) == 1).all())


def _check_column(column: np.ndarray[Any, Any], count: int, name: str) -> None:
    if column.shape != (count,):
        raise FedapmError(f"{name} has the shape {column.shape}; give one entry for each of the {count} samples.")
