"""Features that frozen encoders compute once from images, texts, audio and video.

This module holds what the encoders share: loading pretrained weights, and parallel work.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import nn

from fedapm.core.extras import require
from fedapm.errors import FedapmError

EXTRA = "features"

WEIGHT_FILES = [
    "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt",
    "model.safetensors", "pytorch_model.bin",
]  # fmt: skip
"""The files that are downloaded of a published network: configuration, vocabulary and PyTorch weights."""

T = TypeVar("T")
R = TypeVar("R")


def parallel_map(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Map a function over items in as many threads as torch's own threads leave cores for."""
    pool = ThreadPoolExecutor(max(1, cores() // torch.get_num_threads()), "fedapm-features")
    try:
        return list(pool.map(function, items))
    finally:
        # after an error or Ctrl-C the rest is not needed
        pool.shutdown(cancel_futures=True)


def cores() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load_pretrained(encoder: str, repository: str, load: Callable[[str], R], *, fetch: bool, alternative: str) -> R:
    """Load a network from the Hugging Face hub's cache.

    The cache is the hub's own: ``HF_HOME``, or else ``huggingface`` in ``XDG_CACHE_HOME`` or ``~/.cache``.

    Args:
        encoder: The encoder's name, for messages.
        repository: The repository with the weights.
        load: Loads the network from a folder with the repository's files.
        fetch: Whether missing files may be downloaded.
        alternative: An encoder of the same kind whose weights are installed as a package.
    """
    hub = require("huggingface_hub", EXTRA, f"the encoder {encoder}")
    reason = "are not on this machine"
    with quiet_libraries():
        for online in (False, True) if fetch else (False,):
            try:
                folder = hub.snapshot_download(repository, allow_patterns=WEIGHT_FILES, local_files_only=not online)
            except Exception as error:  # the exceptions differ between versions of the library
                if online:
                    reason = f"cannot be downloaded ({_first_line(error)})"
                continue
            try:
                return load(str(Path(folder)))
            except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
                reason = f"in {folder} are incomplete or damaged ({_first_line(error)})"
    advice = "check the network" if fetch else "allow the download with --fetch-weights"
    raise FedapmError(
        f"the weights {repository} of the encoder {encoder} {reason}; {advice}, or choose the encoder {alternative}, "
        "whose weights are installed with fedapm[features]."
    )


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


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Turn off the libraries' progress bars, log messages and warnings for a while."""
    transformers = require("transformers", EXTRA, "a pretrained encoder").utils.logging
    hub = require("huggingface_hub", EXTRA, "a pretrained encoder").utils
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


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
