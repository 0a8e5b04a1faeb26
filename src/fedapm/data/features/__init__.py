"""Features that frozen encoders compute once from images, texts, audio and video.

This module holds what the encoders share: loading pretrained weights, and parallel work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError

from fedapm.core.extras import require
from fedapm.core.pretrained import EXTRA, load_transformer, quiet_libraries
from fedapm.errors import FedapmError

__all__ = ["EXTRA", "cores", "load_pretrained", "load_transformer", "parallel_map", "quiet_libraries"]

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


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
