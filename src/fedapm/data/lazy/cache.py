"""A cache of clients' data within a number of bytes, and a thread that reads ahead."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from fedapm.data.clients import ClientData

MEMORY = 1 << 28
"""Bytes of clients' data that are kept where nothing else is said."""
AT_ONCE = 32
"""Small clients that are loaded together."""
TOGETHER = 1 << 20
"""Bytes that they may take."""
SOON = 0.005
"""Seconds that they may take, because whoever asks for a client waits for them."""


class ClientCache:
    """Clients that were loaded, the least recently used of which are forgotten when they take too much memory.

    Clients are loaded by whoever asks for one or by the thread that reads ahead, never by both at a time, so what loads
    them need not be safe for threads. A forked process begins with an empty cache.

    Args:
        load: Loads some clients, by their positions; the same client each time it is asked for.
        memory: How many bytes are kept. What is read ahead takes at most half of them.
    """

    def __init__(self, load: Callable[[list[int]], list[ClientData]], memory: int = MEMORY) -> None:
        self.load, self.memory = load, memory
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._state, self._loading = threading.Condition(), threading.Lock()
        self._kept: OrderedDict[int, tuple[ClientData, int]] = OrderedDict()
        self._ahead: dict[int, int] = {}
        """The bytes of clients that were read ahead and not asked for yet."""
        self._wanted: deque[int] = deque()
        self._waiting = 0
        self._seconds = SOON
        """What loading a client took when one was loaded last."""
        self._reader: threading.Thread | None = None
        self.bytes = 0
        """What the clients in memory take."""

    def get(self, client: int) -> ClientData:
        """A client's data, loaded if it is not there."""
        if os.getpid() != self._process:
            # the locks of the process it was forked from may have been held by a thread that is not here
            self._begin()
        found = self._find(client)
        if found is not None:
            return found
        with self._state:
            self._waiting += 1
        try:
            with self._loading:
                # it may have been read ahead in the meantime
                found = self._find(client)
                if found is None:
                    (found,) = self._load([client])
                    self._keep(client, found)
                return found
        finally:
            with self._state:
                self._waiting -= 1
                self._state.notify_all()

    def read_ahead(self, clients: Sequence[int]) -> None:
        """Read these clients in a thread, in place of those that were asked for before and are not read yet.

        What cannot be read is left to :meth:`get`, which says why.
        """
        if os.getpid() != self._process:
            self._begin()
        with self._state:
            self._wanted = deque(clients)
            if self._wanted and self._reader is None:
                self._reader = threading.Thread(target=self._read, name="fedapm reads ahead", daemon=True)
                self._reader.start()

    def settle(self) -> None:
        """Wait until nothing is read ahead any more."""
        reader = self._reader if os.getpid() == self._process else None
        if reader is not None:
            reader.join()

    def _read(self) -> None:
        while True:
            with self._state:
                while self._waiting:
                    self._state.wait()
                clients = self._next()
                if not clients:
                    self._reader = None
                    return
            with self._loading:
                for client, found in self._load_apart(clients):
                    self._keep(client, found, ahead=True)

    def _next(self) -> list[int]:
        """The clients that are read ahead next: some, where they are small; none where there are none or no room."""
        room = self.memory // 2 - sum(self._ahead.values())
        if room < 0:
            self._wanted.clear()
        size = next(reversed(self._kept.values()))[1] if self._kept else self.memory
        most = max(1, min(AT_ONCE, min(room, TOGETHER) // max(size, 1), int(SOON / max(self._seconds, 1e-9))))
        clients: list[int] = []
        while self._wanted and len(clients) < most:
            client = self._wanted.popleft()
            if client in self._kept:
                self._kept.move_to_end(client)
            else:
                clients.append(client)
        return clients

    def _load_apart(self, clients: list[int]) -> Iterator[tuple[int, ClientData]]:
        """Clients that are read ahead; where one of them cannot be loaded, the others by themselves."""
        try:
            yield from zip(clients, self._load(clients), strict=True)
        except Exception:
            for client in clients if len(clients) > 1 else ():
                with suppress(Exception):
                    yield client, self._load([client])[0]

    def _load(self, clients: list[int]) -> list[ClientData]:
        began = time.perf_counter()
        found = self.load(clients)
        self._seconds = (time.perf_counter() - began) / len(clients)
        return found

    def _find(self, client: int) -> ClientData | None:
        with self._state:
            self._ahead.pop(client, None)
            if client not in self._kept:
                return None
            self._kept.move_to_end(client)
            return self._kept[client][0]

    def _keep(self, client: int, found: ClientData, *, ahead: bool = False) -> None:
        size = found.nbytes
        with self._state:
            if client in self._kept or size > self.memory:
                return
            self._kept[client] = found, size
            self.bytes += size
            if ahead:
                self._ahead[client] = size
            while self.bytes > self.memory:
                # what was read ahead is still to be used, and what is newest is being used
                oldest = next((k for k in self._kept if k not in self._ahead and k != client), None)
                gone = oldest if oldest is not None else next(k for k in self._kept if k != client)
                self.bytes -= self._kept.pop(gone)[1]
                self._ahead.pop(gone, None)
