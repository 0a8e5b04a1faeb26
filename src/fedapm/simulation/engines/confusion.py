"""Which classes are taken for which: counted once, with the models that a run ends with."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fedapm.core.algorithm import State
from fedapm.core.metrics import Predictions
from fedapm.simulation.engines.base import LocalEngine
from fedapm.simulation.engines.sequential import load_model

Counts = list[list[int]]
"""Of one client: the right class, the class it was taken for, and how often; only what occurs."""


def class_counts(engine: LocalEngine, server: State, round: int) -> dict[str, Any] | None:
    """What classes.json says: for every model of every evaluated client, how often each class was taken for each.

    Args:
        engine: The engine of the run, after its last round.
        server: The server's state.
        round: The last round.

    Returns:
        The round, and by view the counts of each client; None where targets are quantities.
    """
    problem, algorithm = engine.problem, engine.algorithm
    if not problem.federation.classes:
        return None
    broadcast = algorithm.broadcast(server)
    views: dict[str, list[Counts]] = {}
    for view in algorithm.views:
        clients = []
        for client in problem.evaluated:
            load_model(problem, algorithm, client, engine.client_state(client), broadcast, view)
            test = problem.samples(client, "test")
            clients.append(
                _counts(Predictions(problem.network(client).predict(test), test.targets)) if len(test) else []
            )
        views[view] = clients
    return {"round": round, "views": views}


def _counts(predictions: Predictions) -> Counts:
    """The pairs that occur; none where the scores are not finite, which is no prediction at all."""
    if predictions.logits is None:
        return []
    pairs = Counter(zip(predictions.truth.tolist(), predictions.predicted.tolist(), strict=True))
    return [[right, taken, count] for (right, taken), count in sorted(pairs.items())]
