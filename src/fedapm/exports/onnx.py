"""ONNX: a network as a graph of standard operations, for onnxruntime and others."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedapm.core.extras import require
from fedapm.core.transform import Form, Inputs
from fedapm.errors import FedapmError
from fedapm.exports.description import OUTPUT, Description, input_names
from fedapm.exports.whole import INSTEAD, TRACED, Whole, check_same, reason_of, samples, traced
from fedapm.runs.files import write_atomic

EXTRA = "onnx"
NOTE = "fedapm"
"""The key of the metadata with what the model needs, as JSON."""
OPSET = 18
"""The version of the standard's operations; onnxruntime knows it since 1.14."""
LARGEST = 2**31 - 1
"""Bytes that a file of this format may have."""


def write_onnx(path: Path, network: nn.Module, description: Description) -> str:
    """Export a network, compare it in onnxruntime with the network itself, and write it.

    Args:
        path: The file.
        network: The network, in evaluation mode.
        description: What goes with it.

    Returns:
        What was written, in a few words.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        _needed(package)
    whole = Whole(network, description)
    forms, title = description.inputs(included=whole.included), type(network).__name__
    older = whole.included or any(isinstance(part, nn.RNNBase) for part in network.modules())
    export = _traced if older else _graph
    try:
        with _quietly(), torch.no_grad():
            model = export(whole, forms)
    except FedapmError:
        raise
    except Exception as error:  # the exporter raises many types
        raise FedapmError(f"{title} cannot be exported to ONNX ({reason_of(error)}); {INSTEAD}") from None
    if model.ByteSize() > LARGEST:
        raise FedapmError(f"{title} is too large for one ONNX file, which holds 2 GiB; {INSTEAD}")
    opset = max(one.version for one in model.opset_import if one.domain in ("", "ai.onnx"))
    about = description.about(included=whole.included) | {"opset": opset}
    model.metadata_props.add(key=NOTE, value=json.dumps(about, ensure_ascii=False))
    content = model.SerializeToString()
    check_same(whole, forms, _runtime(content), f"{title} in ONNX")
    write_atomic(path, content)
    return f"the network of client {description.client} in ONNX, opset {opset}"


def _graph(whole: Whole, forms: Sequence[Form]) -> Any:
    """The model by torch's exporter, which knows every path through the code or refuses."""
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(
        whole,
        samples(forms, TRACED),
        dynamo=True,
        # the inputs are one parameter of forward, *inputs
        dynamic_shapes=(tuple({0: batch} for _ in forms),),
        input_names=input_names(forms),
        output_names=[OUTPUT],
        opset_version=OPSET,
        verbose=False,
    )
    assert program is not None
    return program.model_proto


def _traced(whole: Whole, forms: Sequence[Form]) -> Any:
    """The model by torch's older exporter, for what the other cannot do well.

    It keeps a GRU one operation, where the other writes out every time step, and takes a transform in TorchScript.
    """
    stream, names = io.BytesIO(), input_names(forms)
    torch.onnx.export(
        traced(whole, forms),
        samples(forms, TRACED),
        stream,  # type: ignore[arg-type]  # it takes one, whatever its hint says
        dynamo=False,
        input_names=names,
        output_names=[OUTPUT],
        dynamic_axes={name: {0: "batch"} for name in (*names, OUTPUT)},
        opset_version=OPSET,
    )
    return _needed("onnx").load_from_string(stream.getvalue())


def _runtime(content: bytes) -> Any:
    session = _needed("onnxruntime").InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def run(inputs: Inputs) -> Tensor:
        fed = {name: values.numpy() for name, values in zip(names, inputs, strict=True)}
        return torch.from_numpy(session.run(None, fed)[0])

    return run


def _needed(package: str) -> Any:
    return require(package, EXTRA, "Exporting to ONNX")


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what the exporters say of torch's own insides; what fails is said in one line later."""
    with ExitStack() as stack:
        for name in ("torch.onnx", "torch.export", "torch.fx", "torch._dynamo"):
            log = logging.getLogger(name)
            stack.callback(log.setLevel, log.level)
            log.setLevel(logging.CRITICAL + 1)
        stack.enter_context(redirect_stdout(io.StringIO()))
        stack.enter_context(redirect_stderr(io.StringIO()))
        stack.enter_context(warnings.catch_warnings())
        legacy = r"`torch\.jit\.|You are using the legacy TorchScript-based|The feature will be removed"
        warnings.filterwarnings("ignore", legacy, DeprecationWarning)
        warnings.filterwarnings("ignore", ".*(_check_is_size|LeafSpec)", FutureWarning)
        harmless = "# The axis name: batch|Exporting a model to ONNX with a batch_size other than 1|no signature found"
        warnings.filterwarnings("ignore", harmless, UserWarning)
        yield
