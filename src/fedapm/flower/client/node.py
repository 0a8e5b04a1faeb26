"""Node: what a SuperNode's configuration says of the client behind it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedapm.errors import FedapmError, did_you_mean
from fedapm.experiments.settings import DataSettings

STATE_VARIABLE = "FEDAPM_STATE"
TEXTS = ("state-dir", "data-file", "data-root", "data-cache", "device")


@dataclass(frozen=True)
class Node:
    """Who a node is, and where its things are."""

    client: str | None
    partition: int | None
    state: Path
    data_file: Path | None = None
    data_root: str | None = None
    data_cache: str | None = None
    device: str | None = None

    @classmethod
    def read(cls, config: Mapping[str, Any], state: Path | None = None) -> Node:
        """A node's configuration, as ``--node-config`` gives it."""
        paths = {key: config[key] for key in TEXTS if key in config}
        for key, value in paths.items():
            if not isinstance(value, str) or not value:
                raise FedapmError(f"--node-config: {key} = {value!r} should be a text in quotes.")
        partition = config.get("partition-id")
        if partition is not None and (isinstance(partition, bool) or not isinstance(partition, int) or partition < 0):
            raise FedapmError(f"--node-config: partition-id = {partition!r} should be a number from 0.")
        client = config.get("client-id")
        if client is None and partition is None:
            raise FedapmError("a node does not say which client it is; start it with --node-config 'client-id=\"…\"'.")
        file = paths.get("data-file")
        return cls(
            None if client is None else str(client),
            partition,
            Path(paths["state-dir"]).expanduser() if "state-dir" in paths else state or default_state(),
            Path(file).expanduser() if file else None,
            paths.get("data-root"),
            paths.get("data-cache"),
            paths.get("device"),
        )

    def name(self, clients: Sequence[str]) -> str:
        """The client's id, which must be one of the experiment's."""
        if self.client is not None:
            if self.client not in clients:
                hint = did_you_mean(self.client, clients)
                raise FedapmError(f"a node says it is client {self.client!r}, which is not in the experiment; {hint}")
            return self.client
        assert self.partition is not None
        if self.partition >= len(clients):
            raise FedapmError(
                f"a node has partition-id {self.partition}, but the {len(clients)} clients are numbered from 0."
            )
        return clients[self.partition]

    def data(self, settings: DataSettings) -> DataSettings:
        """The experiment's data settings with this node's own places in them."""
        return replace(settings, root=self.data_root or settings.root, cache=self.data_cache or settings.cache)


def default_state() -> Path:
    """Where a client keeps its state if its node does not say."""
    given = os.environ.get(STATE_VARIABLE)
    return Path(given).expanduser() if given else Path.home() / ".local" / "state" / "fedapm"
