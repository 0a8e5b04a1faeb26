"""Readmission: an operator's decision that a client which lost its state may begin anew.

It is a file in the run folder that names the version that was lost, so it counts for that loss and for no later one.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from fedapm.errors import FedapmError, did_you_mean
from fedapm.flower.server.checkpoint import read_checkpoint
from fedapm.flower.server.contributions import NONE
from fedapm.flower.transport.version import FRESH
from fedapm.runs.files import read_json, write_json
from fedapm.runs.layout import CHECKPOINTS, READMIT
from fedapm.simulation.stores.disk import checkpoint_files


def request(out: Path, client: str) -> str:
    """Let a client of a run begin anew; gives what will happen, in words."""
    paths = checkpoint_files(out / CHECKPOINTS)
    if not paths:
        raise FedapmError(f"{out} holds no run on Flower: it has no checkpoint.")
    ledger = read_checkpoint(paths[0]).ledger
    if client not in ledger.ids:
        raise FedapmError(f"{out} has no client {client!r}; {did_you_mean(client, ledger.ids)}")
    entry = ledger.entry(ledger.ids.index(client))
    if entry.accepted == FRESH:
        raise FedapmError(f"nothing of client {client} has been accepted yet, so it begins anew by itself.")
    if entry.contribution == NONE:
        raise FedapmError(
            f"the server does not keep what client {client} sent, so it cannot be taken back; restore the client's "
            "state folder from a backup."
        )
    write_json(_path(out, client), {"client": client, "version": entry.accepted})
    return (
        f"client {client}: if it reports that version {entry.accepted} is lost, what it has sent is no longer counted "
        "and it begins anew. If it has its state, nothing happens."
    )


def requested(out: Path, client: str, version: str) -> bool:
    """Whether an operator has decided that a client may begin anew after losing this version."""
    path = _path(out, client)
    return path.is_file() and read_json(path).get("version") == version


def _path(out: Path, client: str) -> Path:
    return out / READMIT / f"client-{quote(client, safe='')}.json"
