"""Optional dependencies: imported when used, with installation advice if they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from fedapm.errors import FedapmError


def require(module: str, extra: str, purpose: str) -> Any:
    """Import a module of an optional dependency.

    Args:
        module: The module.
        extra: The extra of fedapm that installs it.
        purpose: What it is needed for, for the message.

    Raises:
        FedapmError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != module.split(".")[0]:
            raise
        raise FedapmError(
            f"{purpose} needs the package {module.split('.')[0]}; install it with: pip install 'fedapm[{extra}]'."
        ) from None
