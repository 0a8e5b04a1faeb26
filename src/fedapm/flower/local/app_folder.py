"""The app folder that ``flwr run`` takes: an experiment file, and a module that makes the two apps from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fedapm.core.imports import source_files
from fedapm.runs.files import write_atomic
from fedapm.version import __version__

MODULE = '''"""The two apps of this experiment. For data or a network of your own, give them to the functions below."""

from pathlib import Path

from fedapm.flower import client_app, server_app

server = server_app(Path(__file__).with_name("experiment.toml"))
client = client_app(folder=Path(__file__).parent)
'''


def project(out: str) -> dict[str, Any]:
    """The app's pyproject.toml; ``out`` is where the server writes the run."""
    return {
        "project": {
            "name": "fedapm-app",
            "version": __version__,
            "description": "An experiment of fedapm on Flower",
            "license": "Apache-2.0",
            "dependencies": ["fedapm[flower]"],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "fedapm",
                    "components": {"serverapp": "fedapm_app:server", "clientapp": "fedapm_app:client"},
                    "config": {"out": out},
                }
            }
        },
    }


def write_app(folder: Path, tables: Mapping[str, Any], out: Path) -> Path:
    """Write an app folder.

    Args:
        folder: Where to write it.
        tables: The experiment's tables.
        out: Where the server writes the run.

    Returns:
        The folder.
    """
    write_atomic(folder / "pyproject.toml", tomli_w.dumps(project(str(out))))
    write_atomic(folder / "fedapm_app.py", MODULE)
    kept = dict(tables)
    for name in ("data", "model"):
        table = tables.get(name, {})
        if isinstance(table, Mapping) and table.get("factory") is not None:
            # the modules go with the app, and are looked for beside the experiment file in it
            place = table.get("folder")
            for path, file in source_files(str(table["factory"]), Path(place) if place else None).items():
                write_atomic(folder / path, file.read_bytes())
            kept[name] = {key: value for key, value in table.items() if key != "folder"}
    write_atomic(folder / "experiment.toml", tomli_w.dumps(kept))
    return folder
