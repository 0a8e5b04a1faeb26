"""The file of a client's model in a run folder."""

from __future__ import annotations

from pathlib import Path

from fedapm.errors import FedapmError, did_you_mean
from fedapm.runs.layout import MODELS, model_file
from fedapm.runs.records import Run


def find_model(run: Run, client: str, view: str | None = None) -> Path:
    """The file of a client's model.

    Args:
        run: The run, read from its folder.
        client: The client's id.
        view: Which of the method's models; the first if not given.

    Raises:
        FedapmError: There is no such client or view, or the run's models were not saved.
    """
    ids = [str(c["id"]) for c in run.info["clients"]]
    if client not in ids:
        raise FedapmError(f"{run.path} has no client {client!r}; {did_you_mean(client, ids)}")
    stem = Path(model_file(ids.index(client))).stem
    stored = {
        path.stem.removeprefix(stem).removeprefix("-"): path
        for pattern in (f"{stem}.safetensors", f"{stem}-*.safetensors")
        for path in (run.path / MODELS).glob(pattern)
    }
    if not stored:
        why = "its models were not saved" if run.complete else "the run is not complete; finish it with --resume"
        raise FedapmError(f"{run.path} holds no model of client {client}: {why}.")
    views = [str(name) for name in run.info.get("views", [""])]
    if "" in stored and view == views[0]:
        view = ""  # a method's only model is stored without its name
    chosen = view if view is not None else views[0] if views[0] in stored else next(iter(sorted(stored)))
    if chosen not in stored:
        raise FedapmError(f"there is no model {chosen!r} of client {client}; {did_you_mean(chosen, stored)}")
    return stored[chosen]
