"""The record of a round: what every line of rounds.jsonl holds."""

from __future__ import annotations

from typing import Any, TypedDict

Evaluation = dict[str, Any]
"""One model's scores: for each metric mean, std, worst10 and clients, and under ``per_client`` the value of each client
that is evaluated."""


class Closing(TypedDict):
    """The closing phase, in which the evaluated clients continue their personal part after the last round."""

    epochs: int
    bytes_down: int
    """What these clients received for it: the last broadcast. It is not in the totals of the round."""
    before: dict[str, Evaluation] | None
    """The scores before it; those of the record are the scores after it."""


class RoundRecord(TypedDict, total=False):
    """One round. ``stationarity`` and ``theory`` are there only where they were asked for, ``closing`` only after a
    closing phase.
    """

    round: int
    selected: list[int]
    """The positions of the clients that were asked to take part."""
    dropped: list[int]
    """Those of them whose result was not used."""
    bytes_up: int
    bytes_down: int
    total_bytes_up: int
    total_bytes_down: int
    drift: float | None
    """Mean over the round's clients of Σ over shared tensors ‖u_i − ū‖."""
    local: dict[str, float | int] | None
    """What the local solvers did: epochs, loss, and under the ξ-rule what was achieved."""
    server: dict[str, float]
    """The numbers in the server's state, such as FedAPM's ρ and θ; not there for methods that have none."""
    abstaining: list[int]
    """The positions of the clients that take part in no further round, where they have a privacy budget each."""
    stationarity: dict[str, float] | None
    theory: dict[str, float | None]
    """What the method's analysis speaks of; see ``fedapm.simulation.measures``."""
    evaluations: dict[str, Evaluation] | None
    """One entry for each of the method's views; None where the round was not evaluated."""
    closing: Closing
