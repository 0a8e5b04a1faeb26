"""Sequential: one client after the other, the engine all others must agree with."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedapm.core.algorithm import Algorithm, State
from fedapm.core.metrics import Predictions, Score
from fedapm.core.samples import Samples
from fedapm.errors import FedapmError
from fedapm.simulation.engines.base import ClientResult, ClientResults, DriftingResult, LocalEngine
from fedapm.simulation.problem import Problem
from fedapm.simulation.stores.base import ClientState, Store


class SequentialEngine(LocalEngine):
    """Runs clients in the caller's process, in order."""

    name = "sequential"

    def _train(self, round: int, selected: Sequence[int], broadcast: State) -> DriftingResult:
        results = [
            train_client(self.problem, self.algorithm, client, self.store.get(client), broadcast, round)
            for client in selected
        ]
        return ClientResults(self.store, results, self.algorithm)

    def prefetch(self, round: int, selected: Sequence[int], last: bool) -> None:
        """Read the data of the next round's clients, where it is not in memory."""
        del round, last
        self.read_ahead(selected)

    def read_ahead(self, clients: Sequence[int]) -> None:
        """Read these clients' data in a thread, where it is not in memory."""
        self.problem.federation.read_ahead(clients)

    def close(self) -> None:
        """Read nothing ahead any more."""
        self.problem.federation.stop_reading()

    def evaluate(self, broadcast: State, view: str) -> list[dict[str, Score]]:
        """The scores of the evaluated clients, each on its own data."""
        return [
            evaluate_client(self.problem, self.algorithm, client, self.models.get(client), broadcast, view)
            for client in self.problem.evaluated
        ]

    def _personalize(self, round: int, clients: Sequence[int], broadcast: State, epochs: int, into: Store) -> None:
        for client in clients:
            state = self.store.get(client)
            into.commit(
                {client: personalize_client(self.problem, self.algorithm, client, state, broadcast, round, epochs)}
            )


def train_client(
    problem: Problem, algorithm: Algorithm, client: int, state: ClientState, broadcast: State, round: int
) -> ClientResult:
    """One client's local work in a round; nothing is changed but its network's parameters.

    Args:
        problem: What is learnt.
        algorithm: The method.
        client: The client's position.
        state: What it keeps.
        broadcast: What it receives.
        round: The round, counted from 1.
    """
    network = problem.network(client)
    network.load(state.buffers)
    task = problem.task(client, round)
    update = algorithm.client_update(broadcast, state.state, task)
    result = ClientResult(client, update, network.buffers() if state.buffers else state.buffers, task.log)
    if not result.is_finite() and (instead := algorithm.instead(update, broadcast, state.state, task)) is not None:
        return ClientResult(client, instead, state.buffers, task.log)
    return result


def personalize_client(
    problem: Problem,
    algorithm: Algorithm,
    client: int,
    state: ClientState,
    broadcast: State,
    round: int,
    epochs: int,
) -> ClientState:
    """One client's personal phase after a round; where its numbers do not stay finite, the state it had.

    Args:
        problem: What is learnt.
        algorithm: The method.
        client: The client's position.
        state: What it keeps.
        broadcast: What it would receive now.
        round: The last round.
        epochs: Passes over its data.
    """
    network = problem.network(client)
    network.load(state.buffers)
    new = algorithm.personalize(broadcast, state.state, problem.personal_task(client, round), epochs)
    buffers = network.buffers() if state.buffers else state.buffers
    return ClientState(new, buffers) if new.is_finite() and buffers.is_finite() else state


def evaluate_client(
    problem: Problem, algorithm: Algorithm, client: int, state: ClientState, broadcast: State, view: str
) -> dict[str, Score]:
    """One client's scores, by metric name."""
    load_model(problem, algorithm, client, state, broadcast, view)
    network = problem.network(client)
    train, test = problem.samples(client, "train"), problem.samples(client, "test")
    some = problem.evaluated_samples(client)
    on_train = network.predict(train, some)
    on_test = network.predict(test) if len(test) else test.targets.new_empty((0, 1))
    check_classes(problem.federation[client].id, on_train, train, test)
    predictions = {
        "train": Predictions(on_train, train.targets if some is None else train.targets[some], network.loss),
        "test": Predictions(on_test, test.targets, network.loss),
    }
    classified = train.classified and test.classified
    return {m.name: m.compute(predictions[m.data]) for m in problem.metrics if m.applies(classified)}


def load_model(
    problem: Problem, algorithm: Algorithm, client: int, state: ClientState, broadcast: State, view: str
) -> None:
    """Put a client's model in place in its network."""
    u, v = algorithm.client_model(broadcast, state.state, view)
    problem.network(client).load(u, v, state.buffers)


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
