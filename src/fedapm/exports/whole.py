"""A network with the transform in front of it, and the check that an export computes the same."""

from __future__ import annotations

import itertools
import logging
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit import TracerWarning  # type: ignore[attr-defined]

from fedapm.core.torchscript import quietly
from fedapm.core.transform import Form, Inputs
from fedapm.errors import FedapmError
from fedapm.exports.description import Description

logger = logging.getLogger(__name__)
TOLERANCE = 1e-4
TRACED = 2
"""Samples that a network is traced with: sizes of one are taken for constants."""
CHECKED = (1, 3, 8)
"""Samples that an export is compared on, and on their negatives."""
Runtime = Callable[[Inputs], Tensor]


class Whole(nn.Module):
    """From raw inputs to the network's output.

    Args:
        network: The network.
        description: What is known of it. A transform that is a module comes first; a function is left to the user.
    """

    def __init__(self, network: nn.Module, description: Description) -> None:
        super().__init__()
        self.network = network
        transform = description.transform
        self.transform = transform.module if transform is not None else None
        self.remark = ""
        """What a user should know of the path that was traced."""
        self.eval()
        self.types = [getattr(torch, dtype) for _, dtype in description.network_inputs]

    @property
    def included(self) -> bool:
        """Whether the transform is a part of it."""
        return self.transform is not None

    def forward(self, *inputs: Tensor) -> Tensor:
        """The network's output, one row a sample."""
        if self.transform is not None:
            made = self.transform(*inputs)
            inputs = tuple(made) if isinstance(made, (tuple, list)) else (made,)
            inputs = tuple(values.to(dtype) for values, dtype in zip(inputs, self.types, strict=True))
        output: Tensor = self.network(*inputs)
        return output


def samples(forms: Sequence[Form], count: int) -> Inputs:
    """Made-up inputs; whole numbers are 0 and 1, which are in the range of most things they stand for."""
    stream = torch.Generator().manual_seed(count)

    def made(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if dtype.is_floating_point:
            return torch.randn(count, *shape, generator=stream).to(dtype)
        return torch.randint(0, 2, (count, *shape), generator=stream).to(dtype)

    return tuple(made(shape, getattr(torch, dtype)) for shape, dtype in forms)


def traced(whole: Whole, forms: Sequence[Form]) -> Any:
    """What the network does with some samples, in TorchScript.

    Args:
        whole: The network.
        forms: Its inputs.

    Raises:
        FedapmError: It fails. Whether other samples take the same path is for :func:`check_same` to find out.
    """
    title = type(whole.network).__name__
    try:
        with quietly(), warnings.catch_warnings(record=True) as said, torch.no_grad():
            warnings.simplefilter("always", TracerWarning)
            made = torch.jit.trace(whole, samples(forms, TRACED), check_trace=False)  # type: ignore[no-untyped-call]
    except Exception as error:  # the tracer raises many types
        raise FedapmError(f"{title} cannot be traced ({reason_of(error)}); {INSTEAD}") from None
    # torch's own layers compare sizes in harmless ways
    inside = str(Path(torch.__file__).parent)
    own = [one for one in said if issubclass(one.category, TracerWarning) and not one.filename.startswith(inside)]
    if own:
        whole.remark = (
            f"{title} looks at its inputs in {Path(own[0].filename).name}, line {own[0].lineno}; the exported model "
            f"always does what it did with {TRACED} samples."
        )
    return made


def check_same(whole: Whole, forms: Sequence[Form], runtime: Runtime, what: str) -> None:
    """Refuse an export that does not compute what the network does, for batches of several sizes.

    Args:
        whole: The network.
        forms: Its inputs.
        runtime: Computes the output by what was exported.
        what: The format and the network, for the message.
    """
    for count, sign in itertools.product(CHECKED, (1, -1)):
        inputs = tuple(values * sign if values.is_floating_point() else values for values in samples(forms, count))
        try:
            with torch.no_grad():
                expected = whole(*inputs)
            found = runtime(inputs)
        except Exception as error:
            raise FedapmError(f"{what} fails on {count} samples ({reason_of(error)}); {INSTEAD}") from error
        scale = max(1.0, float(expected.nan_to_num().abs().max()))
        if found.shape != expected.shape or not torch.allclose(
            found, expected, atol=TOLERANCE * scale, rtol=TOLERANCE, equal_nan=True
        ):
            raise FedapmError(
                f"{what} does not compute what the network does: what its code does depends on the values of its "
                f"inputs or on their number, or is random; {INSTEAD}"
            )
    if whole.remark:
        logger.warning(whole.remark)


def reason_of(error: BaseException) -> str:
    """What an exporter's error comes down to, in one line: the first error of the chain, and where it came from."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error)
    missing = re.search(r"No ONNX function found for .*?op='(?:\w+\.)*(\w+)'", text)
    if missing is not None:
        return f"the format has no operation for {missing[1]}; TorchScript has"
    at = re.search(r"([\w.-]+\.py)(?::|\", line )(\d+) in (?!_)", text)
    where = f" ({at[1]}, line {at[2]})" if at is not None else ""
    if "data-dependent" in text:
        return f"its code branches on the values of its inputs{where}"
    return next((line.strip().rstrip(":. ") for line in text.splitlines() if line.strip()), type(error).__name__)


INSTEAD = "export to safetensors, and load it into the network's own code."
