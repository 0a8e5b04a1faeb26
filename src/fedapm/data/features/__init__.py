"""Features: what frozen encoders make of pictures, texts and sounds, computed once and kept.

Here is what the encoders share: where their weights come from, and how their work is spread over the cores.
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
"""What is downloaded of a published network: its weights for PyTorch alone."""

P = TypeVar("P")
R = TypeVar("R")


def side_by_side(work: Callable[[P], R], pieces: Sequence[P]) -> list[R]:
    """The results of some work, in order, with as many pieces under way as torch's own threads leave cores for."""
    pool = ThreadPoolExecutor(max(1, cores() // torch.get_num_threads()), "fedapm-features")
    try:
        return list(pool.map(work, pieces))
    finally:
        # after a broken file or Ctrl-C nobody wants the rest
        pool.shutdown(cancel_futures=True)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pretrained(encoder: str, repository: str, load: Callable[[str], R], *, fetch: bool, instead: str) -> R:
    """What ``load`` makes of the folder with a repository's files; they are downloaded only if ``fetch`` says so.

    ``instead`` is the encoder of the same kind whose weights come with a package.
    """
    hub = require("huggingface_hub", EXTRA, f"the encoder {encoder}")
    trouble = "are not on this machine"
    with quiet():
        for online in (False, True) if fetch else (False,):
            try:
                folder = hub.snapshot_download(repository, allow_patterns=WEIGHT_FILES, local_files_only=not online)
            except Exception as error:  # each version of the library and each broken network fails in its own way
                if online:
                    trouble = f"cannot be downloaded ({_first_line(error)})"
                continue
            try:
                return load(str(Path(folder)))
            except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
                trouble = f"in {folder} are incomplete or damaged ({_first_line(error)})"
    advice = "check the network" if fetch else "allow the download with --fetch-weights"
    raise FedapmError(
        f"the weights {repository} of the encoder {encoder} {trouble}; {advice}, or choose the encoder {instead}, "
        "whose weights are installed with fedapm[features]."
    )


def whole(kind: Any, folder: str) -> nn.Module:
    """A network of transformers with all the weights in a folder; the library would draw missing ones at random."""
    module: nn.Module
    module, loading = kind.from_pretrained(folder, local_files_only=True, weights_only=True, output_loading_info=True)
    lost = sorted(name for name in loading["missing_keys"] if "pooler" not in name)
    if lost:
        raise ValueError(f"{lost[0]} is missing")
    return module


@contextmanager
def quiet() -> Iterator[None]:
    """Loading without progress bars and advice; afterwards the libraries speak as they did before."""
    ours = require("transformers", EXTRA, "a pretrained encoder").utils.logging
    hubs = require("huggingface_hub", EXTRA, "a pretrained encoder").utils
    verbosity, hub_verbosity = ours.get_verbosity(), hubs.logging.get_verbosity()
    bars, hub_bars = ours.is_progress_bar_enabled(), not hubs.are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours.set_verbosity_error()
        hubs.logging.set_verbosity_error()
        ours.disable_progress_bar()
        hubs.disable_progress_bars()
        try:
            yield
        finally:
            ours.set_verbosity(verbosity)
            hubs.logging.set_verbosity(hub_verbosity)
            if bars:
                ours.enable_progress_bar()
            (hubs.enable_progress_bars if hub_bars else hubs.disable_progress_bars)()


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
