"""Export: one client's model out of a run folder, without needing the network's code."""

from __future__ import annotations

from pathlib import Path

from fedapm.errors import FedapmError, did_you_mean
from fedapm.runs.files import read_tensors, write_tensors
from fedapm.runs.layout import MODELS, model_file
from fedapm.runs.records import load_run


def export_model(folder: Path, client: str, out: Path, view: str | None = None) -> int:
    """Write a client's state dict; returns how many tensors it has."""
    run = load_run(folder)
    ids = [str(c["id"]) for c in run.info["clients"]]
    if client not in ids:
        raise FedapmError(f"{folder} has no client {client!r}; {did_you_mean(client, ids)}")
    stem = Path(model_file(ids.index(client))).stem
    stored = {
        path.stem.removeprefix(stem).removeprefix("-"): path
        for pattern in (f"{stem}.safetensors", f"{stem}-*.safetensors")
        for path in (folder / MODELS).glob(pattern)
    }
    if not stored:
        why = "its models were not saved" if run.complete else "the run is not complete; finish it with --resume"
        raise FedapmError(f"{folder} holds no model of client {client}: {why}.")
    first = str(run.info.get("views", [""])[0])
    chosen = view if view is not None else first if first in stored else next(iter(sorted(stored)))
    if chosen not in stored:
        raise FedapmError(f"there is no model {chosen!r} of client {client}; {did_you_mean(chosen, stored)}")
    if out.exists():
        raise FedapmError(f"{out} exists already; give another file.")
    tensors, about = read_tensors(stored[chosen])
    write_tensors(out, tensors, about)
    return len(tensors)
