"""The table [flower] of an experiment file: who takes part, and how long a round waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from fedapm.core.ranges import check_ranges
from fedapm.errors import FedapmError
from fedapm.experiments import build
from fedapm.experiments.settings import Experiment, Tables, merged, validated
from fedapm.privacy import Private
from fedapm.uploads import Masked, layer_of

TABLE = build.NETWORK_TABLE
OWN = "own"
"""The data set's name where every node has data of its own, from a file or from the app."""


@dataclass(frozen=True)
class FlowerSettings:
    """How rounds are run over a network."""

    clients: tuple[str, ...] = ()
    """The ids of all clients, in order; by default they are numbered from 0, as many as `data.clients`."""
    minimum: PositiveInt = 1
    """Fewest usable replies with which a round counts."""
    timeout: float = 600.0
    """Seconds a round waits for replies before it ends with those that arrived."""
    retries: NonNegativeInt = 2
    """How often a round with too few replies is announced again before the run stops."""
    wait: float = 300.0
    """Seconds to wait at the start until every client is online."""
    lost: Literal["wait", "readmit"] = "wait"
    """What happens to a client that lost its state, where the server remembers it: leave it out until an operator
    restores or re-admits it, or subtract what it sent and let it start over."""
    keep_contributions: bool = True
    """Whether the server stores what each client has sent, so that it can be subtracted again: one more shared vector
    per client on the server's disk."""
    at_once: PositiveInt | None = None
    """How many messages are under way at a time, for nodes that share machines; the next is sent when a reply comes.
    All of a round if not given, but on the federation of `fedapm flower up` three for each processor."""
    norm_limit: NonNegativeFloat = 50.0
    """How many times the usual norm an update may have: the median of the last 100 that were accepted and of the
    round's. A longer one is refused; 0 takes any."""
    max_samples: PositiveInt = 10_000_000
    """The most samples a client may say it has."""
    bind_keys: bool = True
    """Whether a client is known by its node's key from the first time it is seen on. Without authentication of
    SuperNodes, where they make a new key at every start, turn it off."""
    registry: str | None = None
    """A TOML file on the server with each client's public key or its fingerprint; without it the first node that says
    it is a client is taken for it."""

    def __post_init__(self) -> None:
        check_ranges(self, TABLE)
        if self.registry is not None and not self.bind_keys:
            raise ValueError(f"{TABLE}.registry names keys, but {TABLE}.bind_keys is off; leave one of them out.")
        for name in ("timeout", "wait"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{TABLE}.{name} = {getattr(self, name)} must be a positive number of seconds.")
        for client in self.clients:
            if self.clients.count(client) > 1:
                raise ValueError(f"{TABLE}.clients names {client!r} twice; give every client its own id.")
            if not client.strip():
                raise ValueError(f"{TABLE}.clients holds an empty id.")


@dataclass(frozen=True)
class Deployment:
    """An experiment, and how it is run on Flower."""

    experiment: Experiment
    flower: FlowerSettings
    clients: tuple[str, ...]
    """The ids of all clients, in the order of every list in the records."""

    def to_json(self) -> dict[str, Any]:
        """The settings of [flower], as engine.json holds them."""
        return asdict(self.flower) | {"clients": list(self.clients)}


def deployment(*layers: Mapping[str, Any]) -> Deployment:
    """Merge the tables of an experiment, validate them, and settle who the clients are.

    Args:
        layers: Tables as in an experiment file; later ones override earlier ones.

    Raises:
        FedapmError: If a setting is unknown, out of range or impossible on Flower.
    """
    tables: Tables = merged(*layers)
    table = tables.pop(TABLE, {})
    if not isinstance(table, Mapping):
        raise FedapmError(f"{TABLE!r} should be a table, as in [{TABLE}].")
    flower = validated(FlowerSettings, TABLE, table)
    data = tables.get("data", {})
    own = isinstance(data, Mapping) and data.get("name") == OWN
    experiment = Experiment.from_tables(tables) if own else build.resolve(tables)
    clients = flower.clients
    if not clients:
        if experiment.data.partition == "natural":
            raise FedapmError("with the natural partition, flower.clients must list the ids of all clients.")
        clients = tuple(str(k) for k in range(experiment.data.clients or build.CLIENTS))
    elif experiment.data.clients not in (None, len(clients)):
        raise FedapmError(f"data.clients = {experiment.data.clients}, but flower.clients names {len(clients)}.")
    if experiment.data.partition != "natural":
        experiment = replace(experiment, data=replace(experiment.data, clients=len(clients)))
    selected = build.schedule(experiment.engine).sampling.size(len(clients))
    if flower.minimum > selected:
        raise FedapmError(f"flower.minimum = {flower.minimum}, but only {selected} clients are selected in a round.")
    if experiment.data.unseen:
        raise FedapmError("data.unseen is for simulations; on Flower leave clients out of flower.clients instead.")
    if experiment.data.transform is not None:
        raise FedapmError("data.transform is for simulations; on Flower transform inputs where a node reads them.")
    _check_private(experiment, flower)
    masks = layer_of(experiment.method, Masked)
    if masks is not None:
        masks.check(selected)
        if flower.lost == "readmit" and experiment.algorithm.cumulative != ():
            raise FedapmError(
                f'with upload.mask the server does not know what a client has sent, so {TABLE}.lost = "readmit" cannot '
                "take it back; leave it out, and back up the clients' state folders."
            )
    if experiment.engine.evaluate_clients is not None:
        raise FedapmError("engine.evaluate_clients is for simulations; on Flower every client evaluates its own model.")
    for name in ("stationarity", "theory"):
        if getattr(experiment.engine, name):
            raise FedapmError(f"engine.{name} needs every client's state on the server; leave it out on Flower.")
    return Deployment(experiment, flower, clients)


def _check_private(experiment: Experiment, flower: FlowerSettings) -> None:
    """Refuse what would tell more of clients than [privacy] accounts for."""
    if layer_of(experiment.method, Private) is None:
        return
    if experiment.privacy.samples is None:
        raise FedapmError(
            "on Flower [privacy] keeps the clients' sample counts on their nodes; say how many training samples a "
            "client is taken to have: privacy.samples, such as 100."
        )
    if flower.lost == "readmit" and experiment.algorithm.cumulative != ():
        raise FedapmError(
            "to take back what a client has sent would tell more of it than [privacy] accounts for; leave "
            f'{TABLE}.lost = "readmit" out, and back up the clients\' state folders.'
        )
