"""Private: a method whose messages are bounded and whose sums are noised before the server uses them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedapm.core.algorithm import NUMBERS, Aggregate, Algorithm, ClientUpdate, State, Upload
from fedapm.core.batched import BatchedVec, NotBatchable
from fedapm.core.task import Task
from fedapm.core.vec import Vec
from fedapm.core.vec import total as total_of
from fedapm.errors import FedapmError
from fedapm.privacy.accountant import Accountant, Draw
from fedapm.privacy.noise import keyed_noise, span, system_noise
from fedapm.privacy.settings import TABLE, PrivacySettings
from fedapm.uploads import UploadSettings, transmitted
from fedapm.uploads.layer import Layer

RELEASES, EPSILON = "releases", "epsilon"
"""The numbers in the server's state: how many noised sums it has used, and ε after them."""
TREE = "noise_of_"
"""What the fields begin with that hold the draws of a tree; their names end with the rounds that each covers."""


@dataclass(frozen=True)
class Private(Layer):
    """A method whose messages are bounded and whose sums are noised before the server uses them."""

    settings: PrivacySettings
    accountant: Accountant
    seed: int = 0

    def server_init(self, u0: Vec) -> State:
        """Nothing is released yet."""
        return self.method.server_init(u0).replace(**{RELEASES: 0.0, EPSILON: 0.0})

    def broadcast(self, server: State) -> State:
        """The method's own."""
        return self.method.broadcast(_own(server))

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """The method's own. Who has no finite result sends zeros: that it has none would say something of its data."""
        update = self.method.client_update(broadcast, state, task)
        sums = update.upload.sums
        if any(isinstance(vector, BatchedVec) for vector in sums.values()):
            if not update.is_finite():
                raise NotBatchable("a client's result is not finite")
            return update
        if update.is_finite():
            return update
        zeros = {name: vector if name == NUMBERS else vector.zeros() for name, vector in sums.items()}
        u = broadcast.vectors.get("u", update.u.zeros())
        return ClientUpdate(Upload(zeros, update.upload.weight, update.upload.unit, update.upload.wire), state, u)

    def server_update(self, state: State, total: Aggregate, m: int) -> State:
        """Noise on the sum, and then the method's own."""
        round = int(state[RELEASES]) + 1  # type: ignore[arg-type]  # a number
        sums, tree = dict(total.sums), dict[str, Vec]()
        for name in sums.keys() - {NUMBERS}:
            noise, tree = self._noise(state, sums[name], round)
            sums[name] = sums[name] + abs(total.unit) * noise
        new = self.method.server_update(_own(state), replace(total, sums=sums), m)
        return new.replace(**tree, **{RELEASES: float(round), EPSILON: self.accountant.epsilon(m, round)})

    def stop_before(self, round: int, m: int) -> str | None:
        """The budget is spent where one more round would exceed it."""
        budget = self.settings.epsilon
        if budget is None or self.accountant.epsilon(m, round) <= budget:
            return self.method.stop_before(round, m)
        return (
            f"the privacy budget is spent: round {round} would exceed ε = {budget:g} at δ = {self.settings.failure:g}"
        )

    def _noise(self, state: State, like: Vec, round: int) -> tuple[Vec, dict[str, Vec]]:
        """A round's noise, in the units of the model, and the draws that are to be taken back later."""
        deviation = self.settings.sigma * self.settings.bound
        if self.settings.noise == "keyed":
            new = keyed_noise(like, deviation, self.seed, round)
        else:
            new = system_noise(like, deviation)
        if self.settings.correlation is None:
            return new, {}
        covered = span(round, tree=True)
        left = {name: old for name, old in state.vectors.items() if name.startswith(TREE)}
        done = [name for name in left if int(name.removeprefix(TREE)) < covered]
        noise = new - total_of(left.pop(name) for name in done) if done else new
        return noise, left | {f"{TREE}{covered}": new}


def private(
    method: Algorithm, settings: PrivacySettings, upload: UploadSettings, draw: Draw, seed: int, *, uniform: bool
) -> Algorithm:
    """A method with what the tables [upload] and [privacy] do to its messages; itself where they do nothing.

    Args:
        method: Any method.
        settings: The table [privacy].
        upload: The table [upload].
        draw: Who is selected in a round.
        seed: The run's seed, for noise that is repeated.
        uniform: Whether all clients weigh the same.

    Raises:
        FedapmError: If the method cannot carry it, or two settings contradict each other.
    """
    if not settings.active:
        return transmitted(method, upload, uniform=uniform)
    if not uniform:
        raise FedapmError(
            f"[{TABLE}] bounds what each client adds, so all must weigh the same; leave engine.weights out."
        )
    if upload.clip is not None:
        raise FedapmError(f"upload.clip and {TABLE}.clip both bound a message; leave upload.clip out.")
    if upload.screens:
        raise FedapmError(
            f"a robust mean (upload.aggregate, upload.norm_limit) may follow one client farther than [{TABLE}] "
            "accounts for; leave one of them out."
        )
    if upload.round_to is not None:
        raise FedapmError(
            f"rounding (upload.round_to) may make a message longer than {TABLE}.clip allows; leave one of them out."
        )
    if upload.mask:
        raise FedapmError(
            f"in a simulation upload.mask hides nothing, and its rounding may make a message longer than {TABLE}.clip "
            "allows; leave one of them out."
        )
    if getattr(method, "rho", None) == "balanced":
        raise FedapmError(
            f'algorithm.rho = "balanced" sends numbers that [{TABLE}] does not account for; take "auto" or a number.'
        )
    bounded = transmitted(method, replace(upload, clip=settings.bound))
    tree = settings.correlation == "tree"
    return Private(bounded, settings, Accountant(settings.sigma, settings.failure, draw, tree), seed)


def _own(server: State) -> State:
    """What the method itself keeps."""
    added = (RELEASES, EPSILON)
    return State(**{n: v for n, v in server.items() if n not in added and not n.startswith(TREE)})
