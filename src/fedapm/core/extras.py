"""Libraries that only some users need: imported when used, and asked for by name where they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from fedapm.errors import FedapmError


def require(module: str, extra: str, purpose: str) -> Any:
    """A module of an extra, or one line that says what to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != module.split(".")[0]:
            raise
        raise FedapmError(
            f"{purpose} needs the package {module.split('.')[0]}; install it with: pip install 'fedapm[{extra}]'."
        ) from None
