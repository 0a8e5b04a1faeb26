"""config.toml: the settings of a run as tables, and in what those of two runs differ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fedapm.errors import FedapmError
from fedapm.runs.files import read_toml, write_atomic
from fedapm.runs.layout import CONFIG

MAY_CHANGE_ON_RESUME = {
    "data.root",
    "data.cache",
    "data.file",
    "data.folder",
    "model.folder",
    "engine.workers",
    "engine.ray_address",
    "engine.store",
    "engine.stuck_after",
    "engine.checkpoint_every",
    "engine.save_models",
    "engine.theory",
}
"""Settings that a resumed run may change, because its results do not depend on them."""
RENAMED_VALUES = {"engine.engine": {"vectorised": "vectorized"}, "engine.store": {"mapped": "disk"}}
"""Values that have another name now; the old ones go on working."""

ADDED_SETTINGS: dict[str, Any] = {
    "algorithm.server": "all",
    "engine.final_personal_epochs": 0,
    "data.unseen": 0.0,
    "data.columns": {},
    "data.class_names": [],
    "data.options": {},
}
"""Settings that runs of earlier versions lack, with what held then."""


def write_config(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings of a run."""
    write_atomic(folder / CONFIG, tomli_w.dumps(settings))


def read_config(folder: Path) -> dict[str, Any]:
    """The settings of a run."""
    path = folder / CONFIG
    if not path.is_file():
        raise FedapmError(f"{folder} has no {CONFIG}, so there is no knowing what to resume; use another folder.")
    tables = read_toml(path)
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise FedapmError(f"{path} is not the settings of a run: {name!r} should be a table.")
    return tables


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The settings in which two experiments differ, as ``table.key``."""
    return [
        f"{table}.{key}"
        for table in sorted({*old, *new})
        for key in sorted({*old.get(table, {}), *new.get(table, {})})
        if _value(old, table, key) != _value(new, table, key)
    ]


def _value(tables: Mapping[str, Any], table: str, key: str) -> Any:
    setting = f"{table}.{key}"
    return present_value(setting, tables.get(table, {}).get(key, ADDED_SETTINGS.get(setting)))


def present_value(setting: str, value: Any) -> Any:
    """A value by its present name, where it was renamed."""
    return RENAMED_VALUES.get(setting, {}).get(value, value) if isinstance(value, str) else value


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Those of the differences that results may depend on."""
    return [name for name in differences(old, new) if name not in MAY_CHANGE_ON_RESUME]
