"""Sequential: one client after the other, the engine all others must agree with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from fedapm.core.algorithm import Algorithm, State
from fedapm.core.metrics import Predictions, Score
from fedapm.core.samples import Samples
from fedapm.errors import FedapmError
from fedapm.simulation.engines.base import ClientResult, ClientResults
from fedapm.simulation.problem import Problem
from fedapm.simulation.stores.base import ClientState, Store


class SequentialEngine:
    """Runs clients in the caller's process, in order."""

    name = "sequential"

    def __init__(self, problem: Problem, algorithm: Algorithm) -> None:
        self.problem, self.algorithm = problem, algorithm

    @property
    def remarks(self) -> list[str]:
        """What the networks have to say."""
        return self.problem.remarks

    def run_round(self, clients: Sequence[int], broadcast: State, store: Store, round: int) -> ClientResults:
        """The local work of the selected clients."""
        return ClientResults(self.train(clients, broadcast, store, round))

    def close(self) -> None:
        """Nothing is held."""

    def train(self, clients: Sequence[int], broadcast: State, store: Store, round: int) -> Iterator[ClientResult]:
        """The local work of the selected clients."""
        for client in clients:
            kept = store.get(client)
            network = self.problem.network(client)
            network.load(kept.buffers)
            task = self.problem.task(client, round)
            reply = self.algorithm.client_update(broadcast, kept.state, task)
            yield ClientResult(client, reply, network.buffers() if kept.buffers else kept.buffers, task.log)

    def evaluate(self, clients: Sequence[int], broadcast: State, store: Store, view: str) -> Iterator[dict[str, Score]]:
        """Scores of the clients' models, each on its own data."""
        for client in clients:
            load_model(self.problem, self.algorithm, client, broadcast, store.get(client), view)
            yield score_client(self.problem, client)


def score_client(problem: Problem, client: int) -> dict[str, Score]:
    """Every metric of the model that stands in a client's network."""
    network = problem.network(client)
    train, test = problem.samples(client, "train"), problem.samples(client, "test")
    on_train = network.predict(train)
    on_test = network.predict(test) if len(test) else test.targets.new_empty((0, 1))
    check_classes(problem.federation[client].id, on_train, train, test)
    predictions = {
        "train": Predictions(on_train, train.targets, network.loss),
        "test": Predictions(on_test, test.targets, network.loss),
    }
    classified = train.classified and test.classified
    return {m.name: m.compute(predictions[m.data]) for m in problem.metrics if m.applies(classified)}


def check_classes(client: str, outputs: Tensor, *parts: Samples) -> None:
    """Refuse data with a class the client's network has no output for."""
    if outputs.dim() != 2 or outputs.shape[1] < 2:
        return
    for part in parts:
        top = int(part.targets.max()) if part.classified and len(part) else -1
        if top >= outputs.shape[1]:
            raise FedapmError(
                f"client {client} has samples of class {top}, which takes {top + 1} outputs, but its network has "
                f"{outputs.shape[1]}."
            )


def load_model(
    problem: Problem, algorithm: Algorithm, client: int, broadcast: State, kept: ClientState, view: str
) -> None:
    """Put a client's model in place in its network."""
    u, v = algorithm.client_model(broadcast, kept.state, view)
    problem.network(client).load(u, v, kept.buffers)
