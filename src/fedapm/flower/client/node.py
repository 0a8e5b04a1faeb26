"""A SuperNode's configuration: which client it is, and where its data and state are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from fedapm.errors import FedapmError, did_you_mean
from fedapm.experiments.settings import DataSettings

STATE_VARIABLE = "FEDAPM_STATE"
STRINGS = ("state-dir", "data-file", "data-root", "data-cache", "device", "node-key", "registry", "tell")
"""The keys of ``--node-config`` whose values are strings."""
FILES = ("data-file", "node-key", "registry")
"""Those of them that are files."""
SCORES, EPSILON = "scores", "epsilon"
TOLD = (SCORES, EPSILON)
"""What a node may tell in runs with [privacy] if its owner says so."""


@dataclass(frozen=True)
class Node:
    """Which client a node is, and where its data and state are."""

    client: str | None
    partition: int | None
    state: Path
    data_file: Path | None = None
    data_root: str | None = None
    data_cache: str | None = None
    device: str | None = None
    node_key: Path | None = None
    """The private key of its SuperNode, which signs its mask keys."""
    registry: Path | None = None
    """The file that says which key each client's node has; without it the keys that are seen first are believed."""
    mask_threshold: int | None = None
    """The fewest clients over which a sum may be told; with it the node takes no part in runs without masks."""
    sample_epsilon: float | None = None
    """The most that each of its samples may spend in a run; with it the node takes no part in runs that protect no
    samples."""
    tell: frozenset[str] = frozenset()
    """What it tells in runs with [privacy] beside its updates."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], state: Path | None = None) -> Node:
        """Read a node's configuration.

        Args:
            config: What ``--node-config`` says.
            state: The state folder of a node that does not name its own.

        Raises:
            FedapmError: If a value has the wrong type, or no client is named.
        """
        strings = {key: config[key] for key in STRINGS if key in config}
        for key, value in strings.items():
            if not isinstance(value, str) or not value:
                raise FedapmError(f"--node-config: {key} = {value!r} should be a text in quotes.")
        partition = config.get("partition-id")
        if partition is not None and (isinstance(partition, bool) or not isinstance(partition, int) or partition < 0):
            raise FedapmError(f"--node-config: partition-id = {partition!r} should be a number from 0.")
        client = config.get("client-id")
        if client is None and partition is None:
            raise FedapmError("a node does not say which client it is; start it with --node-config 'client-id=\"…\"'.")
        fewest = config.get("mask-threshold")
        if fewest is not None and (isinstance(fewest, bool) or not isinstance(fewest, int) or fewest < 2):
            raise FedapmError(f"--node-config: mask-threshold = {fewest!r} should be a number from 2.")
        most = config.get("sample-epsilon")
        if most is not None and (isinstance(most, bool) or not isinstance(most, int | float) or not 0 < most < inf):
            raise FedapmError(f"--node-config: sample-epsilon = {most!r} should be a positive number.")
        files = {name: Path(strings[name]).expanduser() for name in FILES if name in strings}
        return cls(
            None if client is None else str(client),
            partition,
            Path(strings["state-dir"]).expanduser() if "state-dir" in strings else state or default_state(),
            files.get("data-file"),
            strings.get("data-root"),
            strings.get("data-cache"),
            strings.get("device"),
            files.get("node-key"),
            files.get("registry"),
            fewest,
            None if most is None else float(most),
            _told(strings.get("tell", "")),
        )

    def client_id(self, clients: Sequence[str]) -> str:
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

    def data_settings(self, settings: DataSettings) -> DataSettings:
        """The experiment's data settings with this node's own folders in them."""
        return replace(settings, root=self.data_root or settings.root, cache=self.data_cache or settings.cache)


def _told(words: str) -> frozenset[str]:
    """What a node tells, from words with commas between them."""
    told = [word.strip() for word in words.split(",") if word.strip()]
    for word in told:
        if word not in TOLD:
            raise FedapmError(f"--node-config: tell names {word!r}; {did_you_mean(word, TOLD)}")
    return frozenset(told)


def default_state() -> Path:
    """The state folder where neither node nor app names one: $FEDAPM_STATE, or fedapm in the user's state folder.

    The user's state folder is $XDG_STATE_HOME, or ~/.local/state where that is unset or not an absolute path.
    """
    if own := os.environ.get(STATE_VARIABLE):
        return Path(own).expanduser()
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "fedapm"
