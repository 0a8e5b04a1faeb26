"""The settings of runs, as their config.toml has them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from fedapm.runs.config import MAY_CHANGE_ON_RESUME
from fedapm.runs.provenance import private
from fedapm.runs.records import Run

PLACES = re.compile(r"(root|cache)\s*=")


def settings_of(run: Run) -> dict[str, Any]:
    """The tables of a run's configuration; empty where it has none that can be read."""
    return _parsed(run.config)


def flat_settings(run: Run) -> dict[str, Any]:
    """The same with one name for each setting, such as ``algorithm.rho``."""
    return _flat(settings_of(run))


def without_places(config: str) -> str:
    """The text of a config.toml without the lines that say where a user keeps data."""
    return private("\n".join(line for line in config.splitlines() if not PLACES.match(line))).strip()


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """The names of settings that affect results and are not the same in all runs."""
    settings = [flat_settings(run) for run in runs]
    names = sorted({name for table in settings for name in table} - MAY_CHANGE_ON_RESUME)
    return [name for name in names if any(table.get(name) != settings[0].get(name) for table in settings)]


def _flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    names: dict[str, Any] = {}
    for key, value in tables.items():
        names |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return names


@lru_cache(maxsize=512)
def _parsed(config: str) -> dict[str, Any]:
    try:
        return tomllib.loads(config)
    except (ValueError, RecursionError):
        return {}
