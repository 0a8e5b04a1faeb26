"""What the scores of a run were measured on: the clients' test data, or a part of their training data instead."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

from fedapm.report.numbers import finite
from fedapm.runs.records import Run

JudgedBy = Literal["test", "validation", "both"]


def settings_of(run: Run) -> dict[str, Any]:
    """The tables of a run's configuration; empty where it has none that can be read."""
    return _parsed(run.config)


def data_settings(run: Run) -> dict[str, Any]:
    """The table on data of a run's configuration."""
    table = settings_of(run).get("data")
    return table if isinstance(table, dict) else {}


def validation_share(run: Run) -> float:
    """The share of each client's training data the run is judged by; 0 where it is judged by test data."""
    return max(finite(data_settings(run).get("validation")) or 0.0, 0.0)


def judged_by(runs: Sequence[Run]) -> JudgedBy:
    """What the scores of some runs were measured on."""
    kinds = {validation_share(run) > 0 for run in runs}
    if kinds == {True, False}:
        return "both"
    return "validation" if kinds == {True} else "test"


def wording(judged: JudgedBy) -> Callable[[str], str]:
    """What turns a sentence about test data into one about the data the runs were judged by."""
    if judged != "validation":
        return lambda text: text
    return lambda text: re.sub(r"\b[Tt]est\b", lambda found: _VALIDATION[found[0]], text)


def validation_sentence(runs: Sequence[Run]) -> str:
    """That no score here is a test score, or an empty text where that is not so."""
    if judged_by(runs) != "validation":
        return ""
    shares = sorted({f"{100 * validation_share(run):.3g}%" for run in runs})
    return (
        f"Every score here is a validation score: each client is judged by {' or '.join(shares)} of its training "
        "data, and its test data was not touched. This is for choosing settings, not for reporting results."
    )


_VALIDATION = {"test": "validation", "Test": "Validation"}


@lru_cache(maxsize=512)
def _parsed(config: str) -> dict[str, Any]:
    try:
        return tomllib.loads(config)
    except tomllib.TOMLDecodeError:
        return {}
