"""What a round's record holds in numbers, each under a name that all logs share."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

STATISTICS = ("mean", "worst10")
EVERY_ROUND = "bytes/total_up"
"""A number that no round lacks, so that it tells which rounds are logged."""


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a round by name, such as ``accuracy/mean``; ``P/accuracy/mean`` where there are several models.

    The scores are those before the closing phase; those after it have names of their own.
    """
    closing = record.get("closing")
    values = _scores(closing["before"] if closing else record.get("evaluations"))
    values["drift"] = record.get("drift")
    values |= {f"local/{name}": value for name, value in (record.get("local") or {}).items()}
    values |= {f"stationarity/{name}": value for name, value in (record.get("stationarity") or {}).items()}
    values |= {f"theory/{name}": value for name, value in (record.get("theory") or {}).items()}
    values |= {"bytes/up": record.get("bytes_up"), "bytes/down": record.get("bytes_down")}
    values["bytes/total_down"] = record.get("total_bytes_down")
    values[EVERY_ROUND] = record.get("total_bytes_up")
    found = {_name(name): float(value) for name, value in values.items() if _is_number(value)}
    return found | (closing_scalars(record) if closing else {})


def closing_scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The scores after the closing phase by name, such as ``closing/accuracy/mean``."""
    values = _scores(record.get("evaluations"))
    return {_name(f"closing/{name}"): float(value) for name, value in values.items() if _is_number(value)}


def _scores(evaluations: Mapping[str, Any] | None) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for view, evaluation in (evaluations or {}).items():
        prefix = f"{view}/" if len(evaluations or {}) > 1 else ""
        for metric, summary in evaluation.items():
            if metric != "per_client":
                values |= {f"{prefix}{metric}/{name}": summary.get(name) for name in STATISTICS}
    return values


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    """Settings as ``table.key``, with lists written out, because logs know only plain values."""
    values: dict[str, bool | int | float | str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            values |= flat(value, f"{prefix}{key}.")
        elif isinstance(value, bool | int | float | str):
            values[prefix + key] = value
        else:
            values[prefix + key] = json.dumps(value, ensure_ascii=False, default=str)
    return values


def _name(text: str) -> str:
    return re.sub(r"[^\w\-. /]", "_", text)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
