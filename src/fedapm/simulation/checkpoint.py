"""Checkpoints: everything needed to go on from a round, in one checked file.

Where clients are kept on disk, the checkpoint says which of their rows it means; the rows stay where they are.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from fedapm.core.algorithm import State
from fedapm.errors import FedapmError
from fedapm.runs.files import read_tensors, write_tensors
from fedapm.simulation.state import RunState
from fedapm.simulation.stores.base import ClientState, Store, flatten, restore
from fedapm.simulation.stores.disk import KEEP_LAST, ROWS, CheckpointClients, checkpoint_files, row_indices

logger = logging.getLogger(__name__)


class AnotherModel(FedapmError):
    """A checkpoint is whole, but of a run with another model: older ones are no help."""


def save(folder: Path, state: RunState, store: Store) -> Path:
    """Write a checkpoint, then remove all but the newest few.

    Args:
        folder: Where checkpoints lie.
        state: Where the run stands.
        store: The clients' states at that moment.

    Returns:
        The file that was written.
    """
    snapshot = store.snapshot(folder)
    server, server_note = flatten("server", state.server)
    about = {
        "round": state.round,
        "bytes_up": state.bytes_up,
        "bytes_down": state.bytes_down,
        "server": server_note,
        "records": state.records,
    }
    path = folder / f"round-{state.round:06d}.safetensors"
    write_tensors(path, {**server, **snapshot.tensors}, {**about, **snapshot.note})
    if snapshot.settle is not None:
        snapshot.settle(path)
        return path
    for old in checkpoint_files(folder)[KEEP_LAST:]:
        old.unlink(missing_ok=True)
    if (folder / ROWS).is_dir() and not row_indices(checkpoint_files(folder)):
        shutil.rmtree(folder / ROWS, ignore_errors=True)
    return path


def load(path: Path, start: RunState, store: Store, device: torch.device | str = "cpu") -> RunState:
    """Read a checkpoint into a run that has just been set up, whichever kind of store wrote it.

    Args:
        path: The checkpoint.
        start: The run before its first round, to check that the checkpoint belongs to the same model.
        store: Where the clients' states are put.
        device: Where tensors are put.

    Returns:
        Where the run stood.
    """
    stored, about = read_tensors(path)
    tensors = {name: tensor.to(device) for name, tensor in stored.items()}
    try:
        state = _run_state(tensors, about)
        clients = CheckpointClients.of(path, about, stored if "rows" in about else tensors, device)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FedapmError(f"{path} is not a checkpoint of this kind of run ({error}).") from None
    check_same_model(path, state.server, start.server)
    for client, saved in islice(clients.states.items(), 1):
        _check_fields(path, "a client's state", saved.state, store.get(client).state)
    store.restore(clients)
    return state


def read_latest(folder: Path) -> tuple[RunState, Iterator[ClientState]] | None:
    """The newest whole checkpoint of a run that is not set up, of whichever engine.

    Returns:
        Where the run stood, and the states of the clients that had taken part; none of a run on Flower, where they are
        with the clients. None where there is no whole checkpoint.
    """
    for path in checkpoint_files(folder):
        try:
            tensors, about = read_tensors(path)
            state = _run_state(tensors, about)
            there = {"rows", "clients"} & about.keys()
            clients = CheckpointClients.of(path, about, tensors, "cpu").read(_no_init) if there else {}
            return state, iter(clients.values())
        except (FedapmError, KeyError, TypeError, ValueError, AttributeError) as error:
            logger.warning("%s is not a whole checkpoint (%s); trying the one before it.", path, error)
    return None


def _run_state(tensors: Mapping[str, torch.Tensor], about: Mapping[str, Any]) -> RunState:
    server = State(**restore("server", tensors, about["server"]))
    numbers = int(about["round"]), server, int(about["bytes_up"]), int(about["bytes_down"])
    return RunState(*numbers, records=str(about.get("records", "")))


def _no_init(client: int) -> ClientState:
    raise KeyError(client)


def load_latest(folder: Path, start: RunState, store: Store, device: torch.device | str = "cpu") -> RunState | None:
    """The newest checkpoint that is whole; damaged ones are named in a warning and passed over."""
    for path in checkpoint_files(folder):
        try:
            return load(path, start, store, device)
        except AnotherModel:
            raise
        except FedapmError as error:
            logger.warning("%s Trying the one before it.", error)
    return None


def check_same_model(path: Path, saved: State, fresh: State) -> None:
    """Refuse a server state with other fields, or vectors of other names or shapes, than those of the run."""
    _check_fields(path, "the server's state", saved, fresh)
    for field, vector in fresh.vectors.items():
        other = saved.vectors.get(field)
        if other is None or {n: t.shape for n, t in vector.items()} != {n: t.shape for n, t in other.items()}:
            raise AnotherModel(f"{path} belongs to another model: its {field!r} has other names or shapes.")


def _check_fields(path: Path, what: str, saved: State, fresh: State) -> None:
    """A version of the package that keeps something else cannot go on from what this one kept, nor this from that."""
    if missing := sorted({*fresh} - {*saved}):
        raise AnotherModel(
            f"{path} was written by another version of fedapm or of the method: {what} lacks {', '.join(missing)}; "
            "go on with that version, or start again in another folder."
        )
