"""Consensus ADMM when few clients take part: the penalty ρ, what is sent, and what the server averages.

Boyd, Parikh, Chu, Peleato, Eckstein: Distributed Optimization and Statistical Learning via the Alternating Direction
Method of Multipliers. Foundations and Trends in Machine Learning, 2011 (``server = "all"``, residual balancing).
Acar, Zhao, Matas, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic Regularization. ICLR 2021
(``server = "participants"``, for models without a personal part).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le
from pydantic import NonNegativeFloat, PositiveFloat

from fedapm.core.algorithm import NUMBERS, Aggregate, Algorithm, State, Upload
from fedapm.core.batched import numbers
from fedapm.core.task import Task
from fedapm.core.vec import Vec

MEMORY = 0.8
"""How much of the agreement of earlier rounds is kept in each round."""
ENOUGH = 0.1
"""The agreement from which on H counts fully."""
FAR = 0.5
"""The share of the longest step so far from which on H counts fully: clients that hardly move need no help."""
IMBALANCE = 5.0
"""How many times one relative residual must exceed the other before ρ changes."""
STEP, FARTHEST = 1.2, 10.0
"""By what factor ρ changes in a round at most, and how far it may move from κ/(η·K̄) in all."""


@dataclass(frozen=True)
class Consensus(Algorithm):
    """ū ← mean of the participants' u_i + θ·H with H = (1/m)·Σ π_i/ρ over all clients; or ū ← (1/m)·Σ (u_i + π_i/ρ)."""

    cumulative: ClassVar[tuple[str, ...] | None] = ("change",)
    unit_powers = {"algorithm.rho": -1}

    rho: NonNegativeFloat | Literal["auto", "balanced"] = "auto"
    """ρ: penalty on a copy that differs from the server's model. `auto`: κ/(η·K̄), with η the step size of the round and
    K̄ the clients' mean number of local steps. `balanced`: the same times a factor that keeps the primal and the dual
    residual alike."""
    kappa: PositiveFloat = 0.2
    """κ = ρ·η·K̄: how far ρ alone would pull a copy back in a round; it has no units. Only where ρ is not given."""
    server: Literal["participants", "all"] = "participants"
    """What the server averages: the copies of the round's participants, plus the mean of all π_i/ρ; or, as the paper
    writes, u_i + π_i/ρ of all clients, most of which are old."""
    theta: Annotated[float, Ge(0), Le(1)] | Literal["auto"] = "auto"
    """θ: how much of H the server adds under `participants`. `auto`: between κ and 1, more where rounds agree with H
    and still move far."""

    @property
    def told(self) -> dict[str, str]:
        """Δz_i, or the change of π_i; without a penalty the server only averages."""
        return {"change": "z"} if self.server == "all" else {"change": "pi"} if self.rho else {}

    def averaged(self, u0: Vec) -> dict[str, Vec]:
        """u_i − ū, where there is neither z_i nor π_i."""
        return {} if self.told else {"change": u0.zeros()}

    def penalty(self, broadcast: State, task: Task) -> float:
        """ρ in this round."""
        if not isinstance(self.rho, str):
            return self.rho
        factor: float = broadcast.factor if self.rho == "balanced" else 1.0
        return factor * self.kappa / task.path_length()

    def z_init(self, u0: Vec) -> dict[str, Vec]:
        """z_i⁰ = u⁰, kept by a client only where the server averages all z_i."""
        return {"z": u0} if self.server == "all" else {}

    def z(self, u: Vec, pi: Vec, rho: float) -> dict[str, Vec]:
        """z_i = u_i + π_i/ρ, where it is kept; without a penalty there is no dual either."""
        return {} if self.server == "participants" else {"z": u + pi / rho if rho else u}

    def server_init(self, u0: Vec) -> State:
        """ū⁰; under ``participants`` also the mean of all π_i⁰ = 0 and what θ is decided by."""
        state = State(u=u0)
        if self.server == "participants":
            state = state.replace(pi=u0.zeros(), theta=0.0, agreement=0.0, longest=0.0)
        if self._sends_numbers:
            state = state.replace(rho=0.0)
        return state.replace(factor=1.0) if self.rho == "balanced" else state

    def broadcast(self, server: State) -> State:
        """ū, and where residuals are balanced the factor on ρ."""
        return State(u=server.u, factor=server.factor) if self.rho == "balanced" else State(u=server.u)

    def upload(self, state: State, rho: float, gap: Vec, pi: Vec, z: dict[str, Vec], task: Task) -> Upload:
        """What is sent: the change of what the server knows of this client, and where they are needed some numbers.

        Args:
            state: The client's state before the round.
            rho: The round's ρ.
            gap: u_i − ū.
            pi: The new π_i.
            z: The new z_i, where the server averages all of them.
            task: The client's problem.

        Returns:
            Δz_i, or ρ·(u_i − ū), which is the change of π_i and without a penalty just u_i − ū.
        """
        change = z["z"] - state.z if z else rho * gap if rho else gap
        unit = self._unit(rho)
        if not self._sends_numbers:
            return Upload({"change": change}, unit=unit)
        values: dict[str, Any] = {"rho": rho, "kappa": rho * task.path_length()}
        if self.rho == "balanced":
            values |= {"gap": gap.sq(), "dual": pi.sq()}
        return Upload({"change": change, NUMBERS: numbers(gap, **values)}, unit=unit)

    def message_unit(self, broadcast: State, task: Task) -> float:
        """ρ, where the change of π_i is sent."""
        return self._unit(self.penalty(broadcast, task))

    def _unit(self, rho: float) -> float:
        return rho if rho and self.server == "participants" else 1.0

    def certain(self, broadcast: State, task: Task) -> dict[str, dict[str, float]]:
        """ρ and κ are the same for all clients of a round."""
        rho = self.penalty(broadcast, task)
        return {NUMBERS: {"rho": rho, "kappa": rho * task.path_length()}} if self._sends_numbers else {}

    def server_update(self, state: State, total: Aggregate, m: int) -> State:
        """The mean over all clients, kept up to date by changes; or that of the participants, plus θ·H."""
        means = {n: t.item() for n, t in total.mean(NUMBERS).items()} if self._sends_numbers else {}
        if self.server == "all":
            new = state.replace(u=state.u + total["change"] / m)
        else:
            new = self._participants(state, total, m, means["rho"], means["kappa"])
        if self._sends_numbers:
            new = new.replace(rho=means["rho"])
        return new.replace(factor=self._factor(state, new, means)) if self.rho == "balanced" else new

    def _participants(self, state: State, total: Aggregate, m: int, rho: float, kappa: float) -> State:
        """ū += mean Δ_i over the participants + θ·H; H and the mean of all π_i differ by the factor ρ."""
        if not rho:
            return state.replace(u=state.u + total.mean("change"))
        step, old_H, pi = total.mean("change") / rho, state.pi / rho, state.pi + total["change"] / m
        plain = step + kappa * old_H  # what averaging alone would do: the duals took κH out of the clients' steps
        agreement = MEMORY * state.agreement + (1 - MEMORY) * _cosine(plain, old_H)
        longest = max(state.longest, plain.norm())
        theta = self.theta
        if isinstance(theta, str):
            theta = _theta(kappa, agreement, _ratio(plain.norm(), longest))
        u = state.u + step + theta * (pi / rho)
        return state.replace(u=u, pi=pi, theta=theta, agreement=agreement, longest=longest)

    def _factor(self, old: State, new: State, means: dict[str, float]) -> float:
        """Residual balancing: ρ grows where copies are relatively far from ū, and falls where ū moves far."""
        primal = _ratio(means["gap"] ** 0.5, new.u.norm())
        dual = _ratio(means["rho"] * (new.u - old.u).norm(), means["dual"] ** 0.5)
        factor: float = old.factor
        if primal > IMBALANCE * dual:
            factor *= STEP
        elif dual > IMBALANCE * primal:
            factor /= STEP
        return min(max(factor, 1 / FARTHEST), FARTHEST)

    @property
    def _sends_numbers(self) -> bool:
        return self.server == "participants" or isinstance(self.rho, str)


def _theta(kappa: float, agreement: float, length: float) -> float:
    """From κ, with which a round moves ū as far as averaging would, up to 1.

    Args:
        kappa: κ = ρ·η·K̄.
        agreement: How well rounds agree with H, between −1 and 1.
        length: The length of this round's step as a share of the longest so far.
    """
    low = min(kappa, 1.0)
    return low + (1 - low) * min(max(agreement / ENOUGH, 0.0), 1.0) * min(length / FAR, 1.0) ** 2


def _cosine(a: Vec, b: Vec) -> float:
    return _ratio(a @ b, a.norm() * b.norm())


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0
