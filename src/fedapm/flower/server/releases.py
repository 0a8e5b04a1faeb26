"""Releases: which noised model was last sent out, so that no sum is noised twice unseen.

A round's noise counts once in ε. It is drawn, the checkpoint is written, and only then the model is sent: a server
that is killed in between draws anew, and nobody has seen the first draw. But one that goes on from an older checkpoint,
since a newer one is damaged, would noise sums again whose noised versions are known. Two of them say more than one.
"""

from __future__ import annotations

from pathlib import Path

from fedapm.core.algorithm import State
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.flower.transport.codec import digest
from fedapm.runs.files import read_json, write_json
from fedapm.runs.layout import RELEASED
from fedapm.simulation.stores.base import flatten
from fedapm.simulation.stores.rows import sync_folder


class Releases:
    """The last model that was sent out in a run.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def sending(self, round: int, broadcast: State) -> None:
        """Write down that the model after a round is about to be sent; when this returns it survives a power cut.

        Args:
            round: The round.
            broadcast: What is sent.
        """
        before, _ = self._last()
        if round > max(before, 0):
            write_json(self.folder / RELEASED, {"round": round, "digest": _digest(broadcast)})
            sync_folder(self.folder)

    def check(self, round: int, broadcast: State) -> None:
        """Refuse to go on from a round if another model of it, or that of a later one, was sent out.

        Args:
            round: The round, 0 for the start.
            broadcast: What would be sent after it.

        Raises:
            FedapmError: If so.
        """
        sent, content = self._last()
        if sent > round or (sent == round and content != _digest(broadcast)):
            raise FedapmError(
                f"{self.folder}: the model of round {sent} was sent out, but its checkpoint is not there; to go on "
                f"after round {round} would noise the same sums a second time, which ε does not count. Restore the "
                "checkpoint from a backup, or begin anew in another folder, whose ε is added to this one's."
            )

    def _last(self) -> tuple[int, str]:
        path = self.folder / RELEASED
        if not path.is_file():
            return -1, ""
        try:
            content = read_json(path)
            return int(content["round"]), str(content["digest"])
        except (KeyError, TypeError, ValueError):
            raise FedapmError(f"{path} is damaged: it does not say which model was sent out last.") from None


def _digest(broadcast: State) -> str:
    return digest(Vec(flatten("down", broadcast)[0]))
