"""What the scores of a run were measured on: the clients' test data, or a part of their training data instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from fedapm.report.numbers import finite
from fedapm.report.settings import settings_of
from fedapm.runs.records import Run

EvaluatedOn = Literal["test", "validation", "both"]
_VALIDATION = {"test": "validation", "Test": "Validation"}


def data_settings(run: Run) -> dict[str, Any]:
    """The table on data of a run's configuration."""
    table = settings_of(run).get("data")
    return table if isinstance(table, dict) else {}


def validation_share(run: Run) -> float:
    """The share of each client's training data that the run is evaluated on; 0 where it is evaluated on test data."""
    return max(finite(data_settings(run).get("validation")) or 0.0, 0.0)


def evaluated_on(runs: Sequence[Run]) -> EvaluatedOn:
    """What the scores of some runs were measured on."""
    kinds = {validation_share(run) > 0 for run in runs}
    if kinds == {True, False}:
        return "both"
    return "validation" if kinds == {True} else "test"


def wording(data: EvaluatedOn) -> Callable[[str], str]:
    """What turns a text about test data into one about the data that the runs were evaluated on."""
    if data != "validation":
        return lambda text: text
    return lambda text: re.sub(r"\b[Tt]est\b", lambda match: _VALIDATION[match[0]], text)


def sample_sentence(runs: Sequence[Run]) -> str:
    """That scores are of some of the clients; empty where they are of all."""
    some = sorted({(len(run.info["clients"]), run.population) for run in runs})
    if all(evaluated == population for evaluated, population in some):
        return ""
    which = " or ".join(f"{evaluated:,} of {population:,}" for evaluated, population in some)
    return (
        f"Scores are of {which} clients, the same in every round (engine.evaluate_clients). So are the closing phase, "
        "the numbers by client and the saved models."
    )


def notices(runs: Sequence[Run]) -> str:
    """What is to be known of all scores before any of them is read; empty where there is nothing."""
    return " ".join(filter(None, (validation_sentence(runs), sample_sentence(runs), train_sentence(runs))))


def train_sentence(runs: Sequence[Run]) -> str:
    """That training loss is of some of the training samples; empty where it is of all."""
    limits = set()
    for run in runs:
        table = settings_of(run).get("engine")
        most = finite(table.get("evaluate_train")) if isinstance(table, dict) else None
        if most is not None and any((finite(client.get("train")) or 0) > most for client in run.info["clients"]):
            limits.add(int(most))
    if not limits:
        return ""
    which = " or ".join(f"{most:,}" for most in sorted(limits))
    return f"Training loss is of at most {which} training samples of a client (engine.evaluate_train)."


def validation_sentence(runs: Sequence[Run]) -> str:
    """That no score here is a test score; empty where that is not so."""
    if evaluated_on(runs) != "validation":
        return ""
    shares = sorted({f"{100 * validation_share(run):.3g}%" for run in runs})
    return (
        f"Every score here is a validation score: each client is evaluated on {' or '.join(shares)} of its training "
        "data, and its test data was not used. This is for choosing settings, not for reporting results."
    )
