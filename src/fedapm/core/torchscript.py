"""TorchScript as bytes: modules that are loaded without the Python code they were made from."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def quietly() -> Iterator[None]:
    """Without torch's advice to export in other ways: devices that load TorchScript load nothing else."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is (deprecated|not supported)", DeprecationWarning)
        yield


def to_bytes(module: Any, extra: Mapping[str, str] | None = None) -> bytes:
    """A scripted or traced module as the content of a file.

    Args:
        module: The module.
        extra: Texts that go with it, by name.
    """
    stream = io.BytesIO()
    with quietly():
        torch.jit.save(module, stream, _extra_files=dict(extra or {}))
    return stream.getvalue()


def from_bytes(content: bytes, extra: dict[str, Any] | None = None) -> nn.Module:
    """A module from the content of a file, on the CPU.

    Args:
        content: What :func:`to_bytes` gave.
        extra: The names of texts that went with it; their values are filled in.
    """
    with quietly():
        module: nn.Module = torch.jit.load(io.BytesIO(content), "cpu", _extra_files=extra)  # type: ignore[no-untyped-call]
    return module


def scripted(module: nn.Module) -> Any:
    """The module in TorchScript, with every branch and loop of its code.

    Raises:
        RuntimeError: Its code is not in the part of Python that TorchScript knows, or a type error of that.
    """
    if isinstance(module, torch.jit.ScriptModule):
        return module
    with quietly(), _silent("torch.jit._recursive"):
        return torch.jit.script(module)


@contextmanager
def _silent(name: str) -> Iterator[None]:
    log = logging.getLogger(name)
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
