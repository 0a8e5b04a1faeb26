"""Clients that lost their state: who may begin anew, and what is no longer counted then."""

from __future__ import annotations

from collections.abc import Callable

from fedapm.core.algorithm import Algorithm
from fedapm.core.vec import Vec
from fedapm.errors import FedapmError
from fedapm.flower.server.contributions import NONE, Contributions
from fedapm.flower.server.ledger import Ledger
from fedapm.flower.settings import FlowerSettings
from fedapm.privacy import Private
from fedapm.uploads import Masked, layer_of


class LostClients:
    """Decides about clients that lost their state.

    Args:
        method: The method.
        settings: The table [flower].
        contributions: What each client has sent, where the server keeps it.
        requested: Whether an operator lets a client begin anew that has lost a version.
    """

    def __init__(
        self,
        method: Algorithm,
        settings: FlowerSettings,
        contributions: Contributions | None,
        requested: Callable[[int, str], bool],
    ) -> None:
        self.method, self.settings, self.contributions, self.requested = method, settings, contributions, requested

    def decide(self, ledger: Ledger, client: int) -> dict[str, Vec] | str:
        """What must be taken back so that a client can begin anew, or why it must not.

        Args:
            ledger: Which replies were accepted.
            client: The client's position.
        """
        entry, cumulative = ledger.entry(client), self.method.cumulative
        if cumulative == ():
            return {}
        if layer_of(self.method, Masked) is not None:
            return "under masks the server does not know what it has sent; restore its folder from a backup"
        if layer_of(self.method, Private) is not None:
            return "no noise covers what taking back its messages would tell; restore its folder from a backup"
        if self.settings.lost == "wait" and not self.requested(client, entry.accepted):
            return "restore its folder from a backup, or re-admit it (fedapm flower readmit)"
        if cumulative is None or self.contributions is None or entry.contribution == NONE:
            why = "flower.keep_contributions is off" if cumulative else "its method does not say what it remembers"
            return f"{why}, so only a backup of its folder can bring it back"
        try:
            return self.contributions.read(entry.contribution)
        except FedapmError as error:
            return str(error)
