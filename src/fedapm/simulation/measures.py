"""Measures of a whole federation at one moment, from every client's state: residuals, Lagrangian, disagreement.

They take a loss or a full gradient of every client, so they are recorded only where they are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from fedapm.core.algorithm import Algorithm, State
from fedapm.core.task import LocalTask
from fedapm.core.vec import Vec, total
from fedapm.simulation.problem import Problem
from fedapm.simulation.stores.base import ClientState

States = Callable[[int], ClientState]
"""What a client keeps, by its position."""


def stationarity(
    problem: Problem, algorithm: Algorithm, states: States, round: int, broadcast: State
) -> dict[str, float] | None:
    """The norm of each condition of a stationary point over all clients, and of all together.

    Args:
        problem: What is learnt.
        algorithm: The method.
        states: What each client keeps.
        round: The round that has ended.
        broadcast: What the server would send now.

    Returns:
        The norms by name; None where the method defines no stationary point or a number is not finite.
    """
    squares: dict[str, float] = {}
    sums: dict[str, list[Vec]] = {}
    for task, state in _clients(problem, states, round):
        residuals = algorithm.stationarity(broadcast, state, task)
        if residuals is None:
            return None
        for name, vector in residuals.each.items():
            squares[name] = squares.get(name, 0.0) + vector.sq()
        for name, vector in residuals.summed.items():
            sums.setdefault(name, []).append(vector)
    squares |= {name: total(vectors).sq() for name, vectors in sums.items()}
    if not all(map(math.isfinite, squares.values())):
        return None
    norms = {name: math.sqrt(square) for name, square in squares.items()}
    return norms | {"total": math.sqrt(math.fsum(squares.values()))}


def theory(
    problem: Problem, algorithm: Algorithm, states: States, round: int, before: State, after: State
) -> dict[str, float | None]:
    """What the method's analysis speaks of, after a round.

    Args:
        problem: What is learnt.
        algorithm: The method.
        states: What each client keeps.
        round: The round that has ended.
        before: What the server sent at its start.
        after: What it would send now.

    Returns:
        ``disagreement`` for every method with a shared part, and for one with an augmented Lagrangian its value
        (``lagrangian``), the Lyapunov function (``lyapunov``), the residuals ``primal`` and ``dual``, and ``rho``. A
        number that is not finite is None.
    """
    found = lagrangian(problem, algorithm, states, round, before, after)
    found["disagreement"] = disagreement(problem, algorithm, states, round, after)
    return {name: value if value is not None and math.isfinite(value) else None for name, value in found.items()}


def lagrangian(
    problem: Problem, algorithm: Algorithm, states: States, round: int, before: State, after: State
) -> dict[str, float | None]:
    """The augmented Lagrangian Σ L_i, the Lyapunov function and the two residuals; nothing where there is none.

    The primal residual is the root mean square over clients of ‖u_i − ū‖, the dual one is ρ‖ū − ū before the round‖.
    Both have the scale of one client, so that they compare.
    """
    parts = [algorithm.lagrangian(after, state, task) for task, state in _clients(problem, states, round)]
    known = [part for part in parts if part is not None]
    if not known:
        return {}
    value = math.fsum(part.value for part in known)
    rho = math.fsum(part.rho for part in known) / len(known)
    moved = (after.vectors["u"] - before.vectors["u"]).norm() if round else None
    return {
        "lagrangian": value,
        "lyapunov": value + math.fsum(part.slack for part in known),
        "primal": math.sqrt(math.fsum(part.gap**2 for part in known) / len(known)),
        "dual": None if moved is None else rho * moved,
        "rho": rho,
    }


def disagreement(problem: Problem, algorithm: Algorithm, states: States, round: int, broadcast: State) -> float | None:
    """m·Σ‖g_i‖²/‖Σ g_i‖² − 1, where g_i = α_i ∇_u f_i(v_i, ū) is how a client pulls at the shared part.

    It is the spread of the pulls around their mean as a multiple of the mean, both squared: zero where all clients pull
    alike, m − 1 where their pulls have nothing to do with each other, without bound where they cancel.

    Returns:
        The ratio; infinite where the mean is zero and the pulls are not, None where nobody pulls at a shared part.
    """
    u = broadcast.vectors.get("u")
    if not u:
        return None
    squares, pulls = [], None
    for task, state in _clients(problem, states, round):
        shared, personal = algorithm.client_model(broadcast, state, algorithm.views[0])
        # the models of some methods replace the shared part altogether, those of others add to it
        beside = (shared | personal).without(u.names)
        pull = task.alpha * task.gradient(u, beside)
        squares.append(pull.sq())
        pulls = pull if pulls is None else pulls + pull
    assert pulls is not None, "a federation has at least one client"
    common, spread = pulls.sq(), len(squares) * math.fsum(squares)
    if common > 0:
        return max(spread / common - 1, 0.0)
    return math.inf if spread > 0 else None


def _clients(problem: Problem, states: States, round: int) -> Iterator[tuple[LocalTask, State]]:
    """Every client's task, with its buffers in place, and its state."""
    for client in range(len(problem)):
        kept = states(client)
        problem.network(client).load(kept.buffers)
        yield problem.task(client, round), kept.state
