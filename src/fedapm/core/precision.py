"""Half the digits where that is wanted: networks computed in bfloat16, parameters and steps in float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from fedapm.errors import FedapmError

Precision = Literal["float32", "bfloat16"]


def computed_in(precision: Precision | None, device: torch.device) -> AbstractContextManager[object]:
    """For a ``with`` block: networks are computed in a precision."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()


def check_precision(precision: Precision | None, device: torch.device) -> None:
    """Refuse bfloat16 on a device that does not have it."""
    if precision != "bfloat16":
        return
    able = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
    try:
        with computed_in(precision, device):
            one = torch.ones(1, 1, device=device)
            able = able and (one @ one).dtype == torch.bfloat16
    except (RuntimeError, TypeError, NotImplementedError, AssertionError):
        able = False
    if not able:
        raise FedapmError(f'the device {device} has no bfloat16; leave out solver.precision = "bfloat16".')
