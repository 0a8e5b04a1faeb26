"""A client's adapter and head as a folder that peft opens, or merged into the network they were trained in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedapm.adapters import AdaptedNetwork
from fedapm.core.extras import require
from fedapm.data import DATA_SETS
from fedapm.errors import FedapmError
from fedapm.exports.description import Description
from fedapm.runs.files import write_atomic, write_tensors

EXTRA = "lora"
PREFIX = "base_model.model."
"""What peft puts before the names of a network's parameters."""


def write_peft(path: Path, network: nn.Module, description: Description) -> str:
    """Write a folder that ``peft.PeftModel.from_pretrained`` opens: adapter, head, settings and a model card.

    A shared and a personal adapter side by side become one of both ranks together, which computes the same.

    Args:
        path: The folder.
        network: The client's network.
        description: What goes with it.

    Returns:
        What was written, in a few words.
    """
    adapted = _adapted(network)
    if not adapted.targets:
        raise FedapmError("the network has a head and no adapters; export it as merged.")
    rank, tensors = _adapter(adapted)
    for name in adapted.head_names:
        tensors |= {f"{PREFIX}{name}.{n}": t.detach() for n, t in adapted.get_submodule(name).state_dict().items()}
    config = require("peft", EXTRA, "Exporting to peft").LoraConfig(
        r=rank,
        lora_alpha=rank,  # the factor α/r is in B
        target_modules=list(adapted.targets),
        modules_to_save=list(adapted.head_names),
        inference_mode=True,
        base_model_name_or_path=type(network).__name__,
    )
    settings = {k: sorted(v) if isinstance(v, set) else v for k, v in config.to_dict().items()}
    partial = path.with_name(f"{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write_tensors(partial / "adapter_model.safetensors", {n: t.contiguous() for n, t in tensors.items()}, {})
    write_atomic(partial / "adapter_config.json", json.dumps(settings, indent=2, sort_keys=True, default=str))
    write_atomic(partial / "README.md", _card(description, adapted, rank))
    partial.replace(path)
    return f"the adapter and head of client {description.client}, of rank {rank} in {len(adapted.targets)} layers"


def write_merged(path: Path, network: nn.Module, description: Description) -> str:
    """Write the state dict of the network without adapters that computes the same as the client's."""
    merged = _adapted(network).merged()
    write_tensors(path, {n: t.contiguous() for n, t in merged.items()}, description.about(embedded=True))
    return f"{len(merged)} tensors of client {description.client}, adapters merged"


def _adapted(network: nn.Module) -> AdaptedNetwork:
    if not isinstance(network, AdaptedNetwork):
        raise FedapmError("the network was trained without adapters (model.lora); export it as safetensors.")
    return network


@torch.no_grad()
def _adapter(network: AdaptedNetwork) -> tuple[int, dict[str, Tensor]]:
    """One adapter that is the sum of all, with a factor of one."""
    tensors: dict[str, Tensor] = {}
    rank = 0
    for target in network.targets:
        layer: Any = network.get_submodule(target)
        if not isinstance(layer.get_base_layer(), nn.Linear):
            raise FedapmError(f"{target} is no linear layer, which is all that is exported to peft; export as merged.")
        a = torch.cat([layer.lora_A[name].weight for name in network.adapters])
        b = torch.cat([layer.scaling[name] * layer.lora_B[name].weight for name in network.adapters], 1)
        tensors |= {f"{PREFIX}{target}.lora_A.weight": a, f"{PREFIX}{target}.lora_B.weight": b}
        rank = len(a)
    return rank, tensors


def _card(description: Description, network: AdaptedNetwork, rank: int) -> str:
    """The model card: fields that the hub reads, and the same in words."""
    about = description.about()
    data, kind = str(about["data"]), type(network).__name__
    known = DATA_SETS.get(data.split(" (")[0])
    license = known.origin.license if known is not None and known.origin is not None else "not stated"
    scores = {n: v for n, v in about["scores"].items() if v is not None}
    lines = [
        "---",
        "library_name: peft",
        "license: other",
        f"license_name: {json.dumps('that of the base network and of the data: ' + license)}",
        f"base_model: {json.dumps(kind)}",
        f"datasets: [{json.dumps(data)}]",
        "tags: [lora, federated-learning, fedapm]",
        "---",
        "",
        f"# {about['client']}: adapter and head of {kind}",
        "",
        f"One client's part of a model that was trained with {description.info.get('label', about['method'])} on "
        f"{data}, {about['round']} rounds, by fedapm {about['fedapm']}. Rank {rank} in {len(network.targets)} layers.",
        "",
        f"- classes: {', '.join(map(str, about['class_names'])) or 'numbers'}",
        f"- licence of the data: {license}",
        *(f"- {name}, on {about['scored_on']} data: {value:.4f}" for name, value in scores.items()),
        "",
    ]
    return "\n".join(lines)
