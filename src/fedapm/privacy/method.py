"""Private: a method whose messages are bounded and whose sums are noised before the server uses them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from fedapm.core.algorithm import NUMBERS, Aggregate, Algorithm, ClientUpdate, State, Upload
from fedapm.core.batched import BatchedVec, NotBatchable, PerClient, numbers
from fedapm.core.task import Task
from fedapm.core.vec import Vec
from fedapm.core.vec import total as total_of
from fedapm.errors import FedapmError
from fedapm.privacy.accountant import LARGEST, Accountant, Draw
from fedapm.privacy.clipping import START, AdaptiveClip
from fedapm.privacy.noise import keyed_noise, span, system_noise
from fedapm.privacy.samples import Counting
from fedapm.privacy.settings import TABLE, PrivacySettings
from fedapm.privacy.subsampled import PoissonAccountant, check_installed
from fedapm.uploads import Transmitted, UploadSettings, transmitted
from fedapm.uploads.layer import Layer, layer_of

RELEASES, EPSILON = "releases", "epsilon"
"""The numbers in the server's state: how many noised sums it has used, and ε after them."""
CLIP, SHORTER = "clip", "shorter"
"""S in the server's state and in broadcasts, where it moves, and the number that clients send for it."""
ROUNDING = 1e-6
"""How much shorter than S a message may be that was shortened to it."""
TREE = "noise_of_"
"""What the fields begin with that hold the draws of a tree; their names end with the rounds that each covers."""


@dataclass(frozen=True)
class Private(Layer):
    """A method whose messages are bounded and whose sums are noised before the server uses them."""

    settings: PrivacySettings
    accountant: Accountant | PoissonAccountant
    seed: int = 0
    fraction: float = 1.0
    """The share of clients that is expected in a round."""

    def server_init(self, u0: Vec) -> State:
        """Nothing is released yet."""
        start = {CLIP: START} if self.settings.adaptive else {}
        return self.method.server_init(u0).replace(**{RELEASES: 0.0, EPSILON: 0.0}, **start)

    def broadcast(self, server: State) -> State:
        """The method's own, and where it moves the bound S."""
        own = self.method.broadcast(_own(server))
        return own.replace(**{CLIP: server[CLIP]}) if self.settings.adaptive else own

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """The method's own, and where S moves whether the message is shorter."""
        if not self.settings.adaptive:
            return _one_by_one_if_infinite(self.method.client_update(broadcast, state, task))
        clip = float(broadcast.numbers[CLIP])
        layer = self.method
        assert isinstance(layer, Transmitted)
        bounded = replace(layer, transform=replace(layer.transform, clip=clip))
        update = _one_by_one_if_infinite(bounded.client_update(_without_clip(broadcast), state, task))
        return replace(update, upload=_with_bit(update.upload, clip))

    def instead(self, update: ClientUpdate, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """Zeros: that a client has no finite result would say something of its data. It keeps what it had."""
        layer, upload = layer_of(self.method, Transmitted), update.upload
        assert layer is not None
        sums = {name: vector if name == NUMBERS else vector.zeros() for name, vector in upload.sums.items()}
        if self.settings.adaptive:  # a message of zeros is shorter than any bound
            said = sums[NUMBERS]
            sums[NUMBERS] = said.without([SHORTER]) | Vec({SHORTER: torch.full_like(said[SHORTER], 0.5)})
        wire = layer.encode(sums, task) if upload.wire is not None else None
        u = broadcast.vectors.get("u", update.u.zeros())
        return ClientUpdate(Upload(sums, upload.weight, upload.unit, wire), state, u)

    def server_update(self, state: State, total: Aggregate, m: int) -> State:
        """Noise on the sum, and then the method's own."""
        round = int(state[RELEASES]) + 1  # type: ignore[arg-type]  # a number
        expected = self.fraction * m if self.settings.poisson else total.count
        if self.settings.poisson:  # who took part is a secret, so nothing is divided by their number
            counted = {NUMBERS: (expected / total.count) * total[NUMBERS]} if NUMBERS in total.sums else {}
            weight = expected / total.count * total.weight
            total = replace(total, sums={**total.sums, **counted}, weight=weight, count=expected)
        sums, tree = dict(total.sums), dict[str, Vec]()
        for name in sums.keys() - {NUMBERS}:
            noise, tree = self._noise(state, sums[name], round, expected)
            sums[name] = sums[name] + abs(total.unit) * noise
        new = self.method.server_update(_own(state), replace(total, sums=sums), m)
        moved = {CLIP: self._moved(state, total, round)} if self.settings.adaptive else {}
        return new.replace(**tree, **self._spent(m, round), **moved)

    def without_round(self, state: State, m: int) -> State:
        """A round that was begun in vain counts as if its sum had been released: no draw is used for two rounds."""
        own, round = _own(state), int(state[RELEASES]) + 1  # type: ignore[arg-type]  # a number
        added: dict[str, Any] = {name: value for name, value in state.items() if name not in own}
        return self.method.without_round(own, m).replace(**added | self._spent(m, round))

    def _spent(self, m: int, rounds: int) -> dict[str, float]:
        """What the state says was spent; ε beyond a million protects nobody, and a state is finite."""
        return {RELEASES: float(rounds), EPSILON: min(self.accountant.epsilon(m, rounds), LARGEST)}

    def longest(self, server: State) -> float:
        """S in the next round."""
        return float(server.numbers[CLIP]) if self.settings.adaptive else self.settings.bound

    def stop_before(self, round: int, m: int) -> str | None:
        """The budget is spent where one more round would exceed it."""
        budget = self.settings.epsilon
        if budget is None or self.accountant.epsilon(m, round) <= budget:
            return self.method.stop_before(round, m)
        return (
            f"the privacy budget is spent: round {round} would exceed ε = {budget:g} at δ = {self.settings.failure:g}"
        )

    def _moved(self, state: State, total: Aggregate, round: int) -> float:
        """S after a round, from the noised share of messages that were shorter."""
        adaptive = AdaptiveClip(self.settings.sigma)
        bits = total[NUMBERS].only([SHORTER])
        noised = bits + self._draw(bits, adaptive.bit_deviation(total.count), -round)
        return adaptive.moved(float(state.numbers[CLIP]), noised[SHORTER].item() / total.count + 0.5)

    def _draw(self, like: Vec, deviation: float, key: int) -> Vec:
        if self.settings.noise == "keyed":
            return keyed_noise(like, deviation, self.seed, key)
        return system_noise(like, deviation)

    def _noise(self, state: State, like: Vec, round: int, expected: float) -> tuple[Vec, dict[str, Vec]]:
        """A round's noise, in the units of the model, and the draws that are to be taken back later."""
        deviation = self.settings.sigma * self.settings.bound
        if self.settings.adaptive:
            deviation = AdaptiveClip(self.settings.sigma).vector_sigma(expected) * float(state.numbers[CLIP])
        new = self._draw(like, deviation, round)
        if self.settings.correlation is None:
            return new, {}
        covered = span(round, tree=True)
        left = {name: old for name, old in state.vectors.items() if name.startswith(TREE)}
        done = [name for name in left if int(name.removeprefix(TREE)) < covered]
        noise = new - total_of(left.pop(name) for name in done) if done else new
        return noise, left | {f"{TREE}{covered}": new}


def private(
    method: Algorithm,
    settings: PrivacySettings,
    upload: UploadSettings,
    draw: Draw,
    seed: int,
    *,
    uniform: bool,
    fraction: float | None = None,
) -> Algorithm:
    """A method with what the tables [upload] and [privacy] do to its messages; itself where they do nothing.

    Args:
        method: Any method.
        settings: The table [privacy].
        upload: The table [upload].
        draw: Who is selected in a round.
        seed: The run's seed, for noise that is repeated.
        uniform: Whether all clients weigh the same.
        fraction: The share of clients that is expected in a round; None where their number is given instead.

    Raises:
        FedapmError: If the method cannot carry it, or two settings contradict each other.
    """
    if not settings.active:
        return transmitted(method, upload, uniform=uniform)
    if settings.per_sample:
        if method.cumulative is None:
            raise FedapmError(
                f'{TABLE}.level = "sample" is for the methods of this package; it is not known what {method.label} '
                "makes of its data."
            )
        return Counting(transmitted(method, upload, uniform=uniform), settings)
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
        _check_masked(settings)
    if getattr(method, "rho", None) == "balanced":
        raise FedapmError(
            f'algorithm.rho = "balanced" sends numbers that [{TABLE}] does not account for; take "auto" or a number.'
        )
    if settings.adaptive and upload.compress is not None:
        raise FedapmError(
            f'{TABLE}.clip = "adaptive" measures whole messages; leave upload.compress out or give a number.'
        )
    bounded = transmitted(method, replace(upload, clip=settings.bound))
    if not settings.poisson:
        tree = settings.correlation == "tree"
        return Private(bounded, settings, Accountant(settings.sigma, settings.failure, draw, tree), seed)
    if fraction is None or upload.broadcast is not None:
        what = "engine.count" if fraction is None else "upload.broadcast"
        raise FedapmError(f'{TABLE}.sampling = "poisson" keeps secret who takes part in a round; leave {what} out.')
    check_installed()
    accountant = PoissonAccountant(settings.sigma, settings.failure, fraction, settings.kind)
    if settings.epsilon is not None and (once := accountant.epsilon(0, 1)) > settings.epsilon:
        raise FedapmError(
            f"{TABLE}.epsilon = {settings.epsilon:g} does not allow a single round: one costs {once:.3g} with "
            f"{TABLE}.noise_multiplier = {settings.sigma:g}; raise either."
        )
    return Private(bounded, settings, accountant, seed, fraction)


def _check_masked(settings: PrivacySettings) -> None:
    """Refuse what cannot be done for sums over masked messages."""
    refused = {
        f'{TABLE}.clip = "adaptive"': (settings.adaptive, "sends a bit that upload.mask does not cover"),
        f'{TABLE}.sampling = "poisson"': (settings.poisson, "may draw fewer clients than upload.mask_threshold"),
        f'{TABLE}.correlation = "tree"': (
            settings.correlation is not None,
            "takes noise of each round back later, also of one that is abandoned under upload.mask",
        ),
    }
    for what, (is_set, why) in refused.items():
        if is_set:
            raise FedapmError(f"{what} {why}; leave one of them out.")


def _one_by_one_if_infinite(update: ClientUpdate) -> ClientUpdate:
    """Refuse results of several clients that are not all finite; see :meth:`Private.instead`."""
    if any(isinstance(vector, BatchedVec) for vector in update.upload.sums.values()) and not update.is_finite():
        raise NotBatchable("a client's result is not finite")
    return update


def _without_clip(broadcast: State) -> State:
    return State(**{name: value for name, value in broadcast.items() if name != CLIP})


def _with_bit(upload: Upload, clip: float) -> Upload:
    """An upload that also says whether its message is shorter than S: a half more or less than nothing."""
    (name,) = [name for name in upload.sums if name != NUMBERS]
    vector, others = upload.sums[name], upload.sums.get(NUMBERS)
    length: Any = vector.norm() / abs(upload.unit)
    values = length.values if isinstance(length, PerClient) else torch.tensor([length], dtype=torch.float64)
    shorter = (values < clip * (1 - ROUNDING)).double() - 0.5
    bit: Any = PerClient(shorter) if isinstance(length, PerClient) else float(shorter)
    said = numbers(vector, **{SHORTER: bit})
    return replace(upload, sums={**upload.sums, NUMBERS: said if others is None else others | said})


def _own(server: State) -> State:
    """What the method itself keeps."""
    added = (RELEASES, EPSILON, CLIP)
    return State(**{n: v for n, v in server.items() if n not in added and not n.startswith(TREE)})
