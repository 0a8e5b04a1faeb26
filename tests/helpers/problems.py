"""Small problems with known answers, shared by the theory, limit and contract tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedapm.core.algorithm import Algorithm
from fedapm.core.record import RoundRecord
from fedapm.core.solver import SGDConfig
from fedapm.core.split import SplitRule
from fedapm.data import Federation
from fedapm.simulation.engines.base import LocalEngine
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.loop import Callback, Schedule
from fedapm.simulation.problem import Problem, Weighting
from fedapm.simulation.sampling import Sampling
from fedapm.simulation.state import RunState
from tests.helpers.running import Picture, play


class Linear2(nn.Module):
    """x·u + w·v (+ nothing): linear in a shared vector u and a personal vector v, in double precision."""

    def __init__(self, d: int, p: int) -> None:
        super().__init__()
        stream = torch.Generator().manual_seed(5)
        self.u = nn.Parameter(torch.randn(d, generator=stream, dtype=torch.float64))
        self.v = nn.Parameter(torch.randn(p, generator=stream, dtype=torch.float64))

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        return x @ self.u + w @ self.v


def half_squares(output: Tensor, target: Tensor) -> Tensor:
    return 0.5 * ((output - target) ** 2).mean()


def logistic(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(output, target)


def quartic(output: Tensor, target: Tensor) -> Tensor:
    return 0.25 * ((output - target) ** 4).mean()


@dataclass(frozen=True)
class Convex:
    """A strongly convex federated problem f_i(v_i, u) and its exact solution."""

    federation: Federation
    loss: object
    ridge: float
    d: int
    p: int
    u: np.ndarray
    v: list[np.ndarray]

    def problem(self, method: Algorithm, solver: SGDConfig, **options: object) -> Problem:
        return Problem(
            self.federation,
            lambda: Linear2(self.d, self.p),
            SplitRule(personal=("v",)) if self.p else SplitRule(),
            adapt=method.adapt,
            solver=solver,
            loss=self.loss,  # type: ignore[arg-type]
            **options,  # type: ignore[arg-type]
        )


def convex(kind: str, m: int = 4, n: int = 40, d: int = 3, p: int = 2, ridge: float = 0.1) -> Convex:
    """Clients whose data disagree about u, so that averaging local solutions is biased."""
    rng = np.random.default_rng(3)
    data = {}
    for client in range(m):
        x = rng.standard_normal((n, d)) * rng.uniform(0.5, 1.5, d)
        w = rng.standard_normal((n, p))
        score = x @ (rng.standard_normal(d) * 2) + w @ rng.standard_normal(p) + 0.1 * rng.standard_normal(n)
        y = score if kind == "quadratic" else (score + rng.standard_normal(n) > 0).astype(float)
        data[client] = ((torch.from_numpy(x), torch.from_numpy(w)), torch.from_numpy(y))
    federation = Federation.from_clients(data, test=data)
    loss = half_squares if kind == "quadratic" else logistic
    u, v = _solve(federation, kind, d, p, ridge)
    return Convex(federation, loss, ridge, d, p, u, v)


def _solve(federation: Federation, kind: str, d: int, p: int, ridge: float) -> tuple[np.ndarray, list[np.ndarray]]:
    """The minimiser of Σ f_i(v_i, u) by scipy, polished by Newton's method: nothing of this package is used."""
    from scipy.optimize import minimize

    m = len(federation)
    blocks = [
        (np.hstack([c.train.inputs[0].numpy(), c.train.inputs[1].numpy()]), c.train.targets.numpy())
        for c in federation.clients
    ]

    def local(theta: np.ndarray, i: int) -> np.ndarray:
        return np.concatenate([theta[:d], theta[d + i * p : d + (i + 1) * p]])

    def pieces(theta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        value, grad, hess = 0.0, np.zeros_like(theta), np.zeros((len(theta), len(theta)))
        for i, (a, y) in enumerate(blocks):
            q = local(theta, i)
            where = np.r_[0:d, d + i * p : d + (i + 1) * p]
            r = a @ q
            if kind == "quadratic":
                value += 0.5 * np.mean((r - y) ** 2)
                slope, curve = (r - y) / len(y), np.full(len(y), 1 / len(y))
            else:
                s = 1 / (1 + np.exp(-r))
                value += np.mean(np.logaddexp(0, r) - y * r)
                slope, curve = (s - y) / len(y), s * (1 - s) / len(y)
            value += 0.5 * ridge * q @ q
            grad[where] += a.T @ slope + ridge * q
            hess[np.ix_(where, where)] += (a.T * curve) @ a + ridge * np.eye(d + p)
        return value, grad, hess

    theta = minimize(lambda t: pieces(t)[:2], np.zeros(d + m * p), jac=True, method="BFGS").x
    for _ in range(20):
        _, grad, hess = pieces(theta)
        theta = theta - np.linalg.solve(hess, grad)
    return theta[:d], [theta[d + i * p : d + (i + 1) * p] for i in range(m)]


def run(
    problem: Problem,
    method: Algorithm,
    rounds: int,
    fraction: float = 1.0,
    *,
    stationarity: bool = False,
    theory: bool = False,
    watch: list[Picture] | None = None,
    evaluate_every: int = 10**9,
    engine: type[LocalEngine] = SequentialEngine,
) -> tuple[Picture, list[RoundRecord]]:
    """Run a method; ``watch`` collects a picture of each round that later rounds do not change."""
    problem.rounds = rounds
    schedule = Schedule(rounds, Sampling(fraction), evaluate_every, stationarity, theory)
    runner = engine(problem, method)
    return play(problem, method, schedule, [Watcher(watch, runner)] if watch is not None else [], runner)


class Watcher(Callback):
    """Keeps every round's state."""

    def __init__(self, into: list[Picture], engine: LocalEngine) -> None:
        self.into, self.engine = into, engine

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        everyone = {k: self.engine.client_state(k) for k in range(len(self.engine.problem))}
        self.into.append(Picture(state.round, state.server, FrozenStore(everyone), state))


class FrozenStore:
    """A picture of a store."""

    def __init__(self, states: dict) -> None:
        self.states = states

    def get(self, client: int):
        return self.states[client]


PAPER = Weighting(units="paper")
