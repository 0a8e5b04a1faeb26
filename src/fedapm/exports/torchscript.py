"""TorchScript: a traced network that torch loads without its code, also in C++."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from fedapm.core.torchscript import from_bytes, to_bytes
from fedapm.exports.description import Description
from fedapm.exports.whole import Whole, check_same, traced
from fedapm.runs.files import write_atomic

NOTE = "fedapm"
"""The name of the extra file with what the model needs, as JSON."""


def write_torchscript(path: Path, network: nn.Module, description: Description) -> str:
    """Trace a network, compare it with the network itself, and write it.

    Args:
        path: The file.
        network: The network, in evaluation mode.
        description: What goes with it.

    Returns:
        What was written, in a few words.
    """
    whole = Whole(network, description)
    forms, title = description.inputs(included=whole.included), type(network).__name__
    about = json.dumps(description.about(included=whole.included), ensure_ascii=False)
    content = to_bytes(traced(whole, forms), {NOTE: about})
    loaded = from_bytes(content)
    with torch.no_grad():
        check_same(whole, forms, lambda inputs: loaded(*inputs), f"{title} in TorchScript")
    write_atomic(path, content)
    return f"the network of client {description.client} in TorchScript"
