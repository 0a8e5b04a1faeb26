"""Small problems with known answers, shared by the theory, limit and contract tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedapm.core.algorithm import Algorithm
from fedapm.core.solver import SGDConfig
from fedapm.core.split import SplitRule
from fedapm.data import Federation
from fedapm.simulation.callbacks import Memory
from fedapm.simulation.loop import Loop, Progress, Record, Schedule
from fedapm.simulation.problem import Problem, Weighting
from fedapm.simulation.sampling import Sampling


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
    watch: list[Progress] | None = None,
    evaluate_every: int = 10**9,
) -> tuple[Progress, list[Record]]:
    """Run a method; ``watch`` collects a picture of each round that later rounds do not change."""
    memory = Memory()
    problem.rounds = rounds
    schedule = Schedule(rounds, Sampling(fraction), evaluate_every, stationarity)
    loop = Loop(problem, method, schedule, [memory, *([Watcher(watch, len(problem))] if watch is not None else [])])
    return loop.run(), memory.records


class Watcher:
    """Keeps every round's state."""

    def __init__(self, into: list[Progress], m: int) -> None:
        self.into, self.m = into, m

    def on_round_end(self, progress: Progress, record: Record, seconds: float) -> None:
        frozen = FrozenStore({k: progress.store.get(k) for k in range(self.m)})
        self.into.append(Progress(progress.round, progress.server, frozen))

    def on_run_end(self, progress: Progress, status: str) -> None:
        pass


class FrozenStore:
    """A picture of a store."""

    def __init__(self, kept: dict) -> None:
        self.kept = kept

    def get(self, client: int):
        return self.kept[client]

    def commit(self, updates) -> None:
        raise AssertionError("a picture does not change")

    def touched(self):
        return iter(self.kept.items())


PAPER = Weighting(units="paper")
