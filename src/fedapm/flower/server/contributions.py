"""Contributions: for each client the sum of what it has sent and the server still counts, one file each.

With them the server can take a lost client's part back out of its own state, and only that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from fedapm.core.algorithm import Upload
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.runs.files import read_tensors, write_tensors
from fedapm.simulation.stores.base import flatten, restore
from fedapm.simulation.stores.rows import sync_folder

NONE = ""


class Contributions:
    """The files of all clients' contributions; a checkpoint says which it refers to."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self.folder, self.names = folder, names

    def add(self, client: int, version: str, before: str, upload: Upload) -> str:
        """Add an upload to a client's contribution and write it to a new file; the old file stays."""
        sums = {name: upload.sums[name] for name in self.names}
        if before != NONE:
            sums = {name: total + sums[name] for name, total in self.read(before).items()}
        name = f"client-{client:06d}-{version}.safetensors"
        tensors, note = flatten("sums", sums)
        write_tensors(self.folder / name, tensors, {"sums": note})
        return name

    def read(self, name: str) -> dict[str, Vec]:
        """Read a contribution."""
        stored, about = read_tensors(self.folder / name)
        try:
            totals = restore("sums", {n: t.clone() for n, t in stored.items()}, about["sums"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FedapmError(f"{self.folder / name} is not a client's contribution ({error}).") from None
        return {name: vector for name, vector in totals.items() if isinstance(vector, Vec)}

    def sync(self) -> None:
        """Wait until the files' names are on the disk."""
        if self.folder.is_dir():
            sync_folder(self.folder)

    def keep(self, held: Iterable[str]) -> None:
        """Remove the files that no checkpoint refers to."""
        wanted = set(held)
        for path in self.folder.glob("client-*.safetensors") if self.folder.is_dir() else ():
            if path.name not in wanted:
                path.unlink(missing_ok=True)


def withdrawn(contributions: Iterable[Mapping[str, Vec]]) -> dict[str, Vec]:
    """The sums that cancel these contributions when added to a round's."""
    totals: dict[str, Vec] = {}
    for sums in contributions:
        for name, vector in sums.items():
            totals[name] = totals[name] - vector if name in totals else -vector
    return totals
