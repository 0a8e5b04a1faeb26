"""Memory store: clients' states in memory, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fedapm.simulation.stores.base import ClientState, InitClient, Store


class MemoryStore(Store):
    """Everything in memory; a client costs nothing until it has taken part."""

    def __init__(self, init: InitClient) -> None:
        self._init = init
        self._states: dict[int, ClientState] = {}

    def get(self, client: int) -> ClientState:
        """A client's state, or how it starts."""
        return self._states[client] if client in self._states else self._init(client)

    def commit(self, updates: Mapping[int, ClientState]) -> None:
        """Replace the states of some clients."""
        self._states |= updates

    def touched(self) -> Iterator[tuple[int, ClientState]]:
        """The clients whose state is no longer how it started, in order."""
        yield from sorted(self._states.items())
