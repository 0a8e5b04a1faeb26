"""Dataclasses of texts and numbers as the lines of a CSV file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from fedapm.errors import FedapmError
from fedapm.runs.files import write_atomic

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = TypeVar("Row", bound="DataclassInstance")
DIGITS = 5
"""Significant digits of a number in the file."""


def write_rows(path: Path, kind: type[DataclassInstance], rows: Iterable[DataclassInstance]) -> None:
    """Write a file with a column for each field.

    Args:
        path: The file.
        kind: The dataclass.
        rows: What it should hold.
    """
    names = [field.name for field in fields(kind)]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_text(getattr(row, name)) for name in names])
    write_atomic(path, buffer.getvalue())


def read_rows(path: Path, kind: type[Row], what: str) -> list[Row]:
    """Read a file that :func:`write_rows` wrote.

    Args:
        path: The file.
        kind: The dataclass.
        what: What the file is, for messages.

    Raises:
        FedapmError: Where it is missing, or is something else; with the line.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise FedapmError(f"{path} is missing; fedapm study writes it.") from None
    except UnicodeDecodeError:
        raise FedapmError(f"{path} is not {what}.") from None
    names = [field.name for field in fields(kind)]
    rows = list(csv.reader(io.StringIO(text)))
    if not rows or rows[0] != names:
        raise FedapmError(f"{path} is not {what}: its first line should name {', '.join(names)}.")
    hints = get_type_hints(kind)
    return [_row(kind, hints, row, f"{path}, line {number}") for number, row in enumerate(rows[1:], start=2)]


def _row(kind: type[Row], hints: dict[str, Any], row: Sequence[str], where: str) -> Row:
    names = [field.name for field in fields(kind)]
    if len(row) != len(names):
        raise FedapmError(f"{where} has {len(row)} columns instead of {len(names)}.")
    values: dict[str, Any] = {}
    for name, text in zip(names, row, strict=True):
        try:
            values[name] = _value(hints[name], text)
        except ValueError:
            raise FedapmError(f"{where}: {name} is {text!r}, which is no number.") from None
    return kind(**values)


def _value(hint: Any, text: str) -> Any:
    kinds = get_args(hint) or (hint,)
    if str in kinds:
        return text
    if text == "" and NoneType in kinds:
        return None
    if int in kinds:
        return int(text)
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def _text(value: Any) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{value:.0f}" if value.is_integer() else f"{value:.{DIGITS}g}"
