"""A client's state on its own disk: one file, a version, for every round it has replied to.

Only the server knows which replies it accepted. So a client never decides what its state is: it stores a version for
each reply, and every broadcast names the one to continue from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast
from urllib.parse import quote

import torch
from filelock import FileLock, Timeout

from fedapm.core.algorithm import State, Upload
from fedapm.core.solver import SolveStats
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.flower.problem import WIRE, sent_vectors
from fedapm.flower.transport.version import FRESH, VERSION, round_of
from fedapm.runs.files import read_tensors, remove_leftovers, write_tensors
from fedapm.simulation.stores.base import ClientState, flatten, restore
from fedapm.simulation.stores.rows import sync_folder

RUN = re.compile(r"[0-9a-f]{32}")
BROADCAST = "broadcast.safetensors"
PATIENCE = 60.0
"""Seconds to wait for another process that uses the same client's files."""


@dataclass(frozen=True)
class Version:
    """A client after one round: its state, and its reply, so that the same one can be sent again."""

    id: str
    client_state: ClientState
    u: Vec
    upload: Upload
    log: list[SolveStats]


class Versions:
    """The versions of one client in one run."""

    def __init__(self, root: Path, run: str, client: str) -> None:
        if RUN.fullmatch(run) is None:
            raise FedapmError(f"{run!r} is not a run id.")
        # an id may hold anything; as a file name it holds neither a slash nor two dots alone
        self.folder = root / run / f"client-{quote(client, safe='')}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock this client's files against other processes."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with FileLock(self.folder / "lock", timeout=PATIENCE):
                remove_leftovers(self.folder)
                yield
        except Timeout:
            raise FedapmError(
                f"another process has used {self.folder} for {PATIENCE:.0f} s; two nodes must not share a state folder."
            ) from None

    def ids(self) -> list[str]:
        """The stored versions, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(p.stem for p in self.folder.glob("*.safetensors") if VERSION.fullmatch(p.stem))

    def has(self, version: str) -> bool:
        """Whether a version is stored."""
        return self._path(version).is_file()

    def save(self, version: Version) -> None:
        """Store a version; when this returns it survives a power cut."""
        state, state_fields = flatten("state", version.client_state.state)
        more, more_fields = flatten("more", {"buffers": version.client_state.buffers, "u": version.u})
        # what is coded is kept as it was sent: coding the sums again could give another message
        coded = version.upload.wire is not None
        sums, sums_fields = flatten("sums", sent_vectors(version.upload))
        fields = {
            "version": version.id,
            "state": state_fields,
            "more": more_fields,
            "sums": sums_fields,
            "coded": coded,
            "weight": version.upload.weight,
            "log": [asdict(stats) for stats in version.log],
        }
        write_tensors(self._path(version.id), {**state, **more, **sums}, fields)
        sync_folder(self.folder)

    def load(self, version: str) -> Version:
        """Read a version back.

        Raises:
            FedapmError: If its file is missing or damaged.
        """
        path = self._path(version)
        stored, fields = read_tensors(path)
        tensors = {name: tensor.clone() for name, tensor in stored.items()}
        try:
            if fields["version"] != version:
                raise ValueError(f"it holds version {fields['version']}")
            more = restore("more", tensors, fields["more"])
            sums = cast(dict[str, Vec], restore("sums", tensors, fields["sums"]))
            weight = float(fields["weight"])
            return Version(
                version,
                ClientState(State(**restore("state", tensors, fields["state"])), cast(Vec, more["buffers"])),
                cast(Vec, more["u"]),
                Upload({}, weight, wire=sums[WIRE]) if fields.get("coded") else Upload(sums, weight),
                [SolveStats(**stats) for stats in fields["log"]],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FedapmError(f"{path} is not a version of a client's state ({error}).") from None

    def save_broadcast(self, token: str, broadcast: State) -> None:
        """Store the server's last broadcast, with the token of its announcement."""
        tensors, fields = flatten("down", broadcast)
        write_tensors(self.folder / BROADCAST, tensors, {"token": token, "down": fields})
        sync_folder(self.folder)

    def load_broadcast(self, device: torch.device) -> tuple[str, State]:
        """The server's last broadcast, and the token of its announcement.

        Args:
            device: Where its vectors are put.

        Raises:
            FedapmError: If its file is missing or damaged.
        """
        path = self.folder / BROADCAST
        stored, fields = read_tensors(path)
        tensors = {name: tensor.clone().to(device) for name, tensor in stored.items()}
        try:
            return str(fields["token"]), State(**restore("down", tensors, fields["down"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FedapmError(f"{path} is not a broadcast ({error}).") from None

    def prune(self, keep: str, accepted: str) -> None:
        """Delete old versions.

        Args:
            keep: The oldest version the server could still go back to.
            accepted: The version the client continues from, which stays.
        """
        if keep == FRESH:
            return
        for version in self.ids():
            if round_of(version) < round_of(keep) and version != accepted:
                self._path(version).unlink(missing_ok=True)

    def _path(self, version: str) -> Path:
        if VERSION.fullmatch(version) is None:
            raise FedapmError(f"{version!r} is not a version id.")
        return self.folder / f"{version}.safetensors"
