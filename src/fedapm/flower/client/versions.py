"""Versions: what a client keeps on its own disk, one file for every round it has answered.

Only the server knows which answers it accepted. So a client never decides what its state is: it keeps a version for
each answer, and every broadcast names the one to go on from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast
from urllib.parse import quote

from filelock import FileLock, Timeout

from fedapm.core.algorithm import State, Upload
from fedapm.core.solver import SolveStats
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.flower.transport.version import FRESH, VERSION, round_of
from fedapm.runs.files import read_tensors, remove_leftovers, write_tensors
from fedapm.simulation.stores.base import ClientState, flatten, restore
from fedapm.simulation.stores.disk import sync_folder

RUN = re.compile(r"[0-9a-f]{32}")
PATIENCE = 60.0
"""Seconds to wait for another process that works on the same client."""


@dataclass(frozen=True)
class Version:
    """A client after one round: its state, and the answer it gave, so that it can give the same one again."""

    id: str
    kept: ClientState
    u: Vec
    upload: Upload
    log: list[SolveStats]


class Versions:
    """The versions of one client in one run."""

    def __init__(self, root: Path, run: str, client: str) -> None:
        if RUN.fullmatch(run) is None:
            raise FedapmError(f"{run!r} is not the name of a run.")
        # an id may hold anything; as a file name it holds neither a slash nor two dots alone
        self.folder = root / run / f"client-{quote(client, safe='')}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone with this client's files."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with FileLock(self.folder / "lock", timeout=PATIENCE):
                remove_leftovers(self.folder)
                yield
        except Timeout:
            raise FedapmError(
                f"another process has worked on {self.folder} for {PATIENCE:.0f} s; two nodes must not share a state "
                "folder."
            ) from None

    def ids(self) -> list[str]:
        """The versions that are there, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(p.stem for p in self.folder.glob("*.safetensors") if VERSION.fullmatch(p.stem))

    def has(self, version: str) -> bool:
        """Whether a version's file is there."""
        return self._path(version).is_file()

    def save(self, version: Version) -> None:
        """Put a version on the disk; when this returns it survives a power cut."""
        state, state_note = flatten("state", version.kept.state)
        more = {"buffers": version.kept.buffers, "u": version.u}
        others, others_note = flatten("more", more)
        sums, sums_note = flatten("sums", version.upload.sums)
        note = {
            "version": version.id,
            "state": state_note,
            "more": others_note,
            "sums": sums_note,
            "weight": version.upload.weight,
            "log": [asdict(solved) for solved in version.log],
        }
        write_tensors(self._path(version.id), {**state, **others, **sums}, note)
        sync_folder(self.folder)

    def load(self, version: str) -> Version:
        """Read a version back; a damaged one is an error that names its file."""
        path = self._path(version)
        stored, note = read_tensors(path)
        tensors = {name: tensor.clone() for name, tensor in stored.items()}
        try:
            if note["version"] != version:
                raise ValueError(f"it says it is {note['version']}")
            more = restore("more", tensors, note["more"])
            sums = cast(dict[str, Vec], restore("sums", tensors, note["sums"]))
            return Version(
                version,
                ClientState(State(**restore("state", tensors, note["state"])), cast(Vec, more["buffers"])),
                cast(Vec, more["u"]),
                Upload(sums, float(note["weight"])),
                [SolveStats(**solved) for solved in note["log"]],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FedapmError(f"{path} is not a client's state ({error}).") from None

    def prune(self, keep: str, accepted: str) -> None:
        """Forget what is older than the oldest version the server could go back to."""
        if keep == FRESH:
            return
        for version in self.ids():
            if round_of(version) < round_of(keep) and version != accepted:
                self._path(version).unlink(missing_ok=True)

    def _path(self, version: str) -> Path:
        if VERSION.fullmatch(version) is None:
            raise FedapmError(f"{version!r} is not the name of a version.")
        return self.folder / f"{version}.safetensors"
