"""A second device for machines without one: its tensors have real values, and other tensors do not mix with them."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from tests.helpers.forked import PATIENCE, Forked

NAME = "fake"
aten = torch.ops.aten
COPYING = {aten.copy_.default, aten._foreach_copy_.default}
"""What carries values from one device to another."""
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
"""What takes positions from main memory on a graphics card, too."""
SETUP = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)


class FakeTensor(Tensor):
    """A tensor of the device.

    Args:
        held: Its values, in main memory; a view of a tensor holds a view of what that one holds.
    """

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> FakeTensor:
        made: FakeTensor = Tensor._make_wrapper_subclass(
            cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=torch.device(NAME, 0)
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(
        cls, op: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if (result := op.decompose(*args, **kwargs or {})) is not NotImplemented:
            return result
        # a view made in inference mode belongs to a tensor made before it, which torch checks of all but its own
        with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
            return computed(op, args, kwargs or {})

    def __repr__(self) -> str:
        return f"{self.held} on {self.device}"

    def tolist(self) -> Any:
        """As every tensor has it; torch leaves it to each class."""
        return self.held.tolist()


def computed(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an operation gives, by the processor's own kernels."""
    values, form = tree_flatten((tuple(args), dict(kwargs)))
    here = [value for value in values if isinstance(value, FakeTensor)]
    elsewhere = [value for value in values if isinstance(value, Tensor) and not isinstance(value, FakeTensor)]
    if op in INDEXING and isinstance(args[0], FakeTensor):
        elsewhere = [value for value in elsewhere if not any(value is index for index in args[1])]
    device = kwargs.get("device")
    stays = device is None or device.type == NAME
    # as on a graphics card, a single number may come from anywhere
    if op not in COPYING and any(value.dim() for value in elsewhere):
        raise RuntimeError(f"{op}: expected all tensors on one device, but found both {NAME} and cpu")
    if stays and any(isinstance(value, torch.Generator) for value in values):
        raise RuntimeError(f"{op}: expected a generator on {NAME}, but found one on cpu")
    plain = [value.held if isinstance(value, FakeTensor) else value for value in values]
    own_args, own_kwargs = tree_unflatten(plain, form)
    result = op(*own_args, **own_kwargs | ({} if device is None else {"device": torch.device("cpu")}))
    if torch.Tag.inplace_view in op.tags:
        with no_dispatch():
            op(*args, **kwargs)
    if any(value.shape != value.held.shape for value in here):
        raise NotImplementedError(f"{op} gives a tensor of {NAME} another shape")
    if op in COPYING:
        return None if result is None else args[0]

    def brought_back(value: Any) -> Any:
        if not isinstance(value, Tensor) or not stays:
            return value
        if any(value is other for other in elsewhere):
            raise RuntimeError(f"{op}: expected a result on {NAME}, but it is written to cpu")
        # what is changed in place stays the same tensor
        same = [tensor for tensor in here if tensor.held is value]
        return same[0] if same else FakeTensor(value)

    return tree_map(brought_back, result)


def register() -> torch.library.Library:
    """Add the device to this process, for good; its operations are there as long as what this gives."""
    assert SETUP is not None
    SETUP(NAME)
    library = torch.library.Library("aten", "IMPL")
    ranges = aten.arange.default, aten.arange.start, aten.arange.start_step
    # whatever else makes tensors begins with one of these
    for op in (aten.empty.memory_format, aten.empty_strided.default, *ranges):
        library.impl(op, _kernel(op), "PrivateUse1")
    library.impl(aten._copy_from.default, _copy_from, "PrivateUse1")
    # the threads that autograd has for devices were counted before this one was there
    torch.autograd.set_multithreading_enabled(False)
    return library


def _kernel(op: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: computed(op, args, kwargs)


def _copy_from(source: Tensor, to: Tensor, non_blocking: bool = False) -> Any:
    return computed(aten.copy_.default, (to, source), {})


def on_fake_device(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test where there is the device: in a process of its own, because a device cannot be taken away again."""

    @wraps(test)
    def forked(tmp_path: Path, **arguments: Any) -> None:
        if SETUP is None:
            pytest.skip(f"torch {torch.__version__} takes no device that is written in Python: none is tested but cpu")
        # torch imports it when it first meets a tensor of another class, which takes seconds
        importlib.import_module("torch.distributed.tensor")

        def work() -> None:
            library = register()
            test(tmp_path=tmp_path, **arguments)
            del library

        process = Forked(work, tmp_path / "said")
        end = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        assert (process.end() if process.poll() is None else process.returncode) == 0, process.said.read_text()

    return forked
