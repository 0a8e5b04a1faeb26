"""What a process that runs clients for another is asked, and how it answers.

Vectors go as groups of named fields, numbers as plain JSON; how groups travel is for the two processes to agree on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, cast

from fedapm.core.algorithm import Algorithm, ClientUpdate, State, Upload, Value
from fedapm.core.solver import SolveStats
from fedapm.core.vec import Vec
from fedapm.simulation.engines.base import ClientResult
from fedapm.simulation.engines.sequential import evaluate_client, personalize_client, train_client
from fedapm.simulation.engines.shared_memory import Fields
from fedapm.simulation.problem import Problem
from fedapm.simulation.stores.base import ClientState

Groups = Mapping[str, Fields]


def answered(
    problem: Problem,
    algorithm: Algorithm,
    asked: Mapping[str, Any],
    client: int,
    state: ClientState,
    broadcast: State,
    pack: Callable[[Groups], Any],
) -> dict[str, Any]:
    """Do what is asked for one client.

    Args:
        problem: What is learnt.
        algorithm: The method.
        asked: ``do`` is "train" or "personalize", with ``round``, or "evaluate", with ``view``.
        client: The client's position.
        state: What it keeps.
        broadcast: What it receives.
        pack: Makes of vectors what the answer carries.
    """
    if asked["do"] == "evaluate":
        return {"scores": evaluate_client(problem, algorithm, client, state, broadcast, asked["view"])}
    if asked["do"] == "personalize":
        new = personalize_client(problem, algorithm, client, state, broadcast, asked["round"], asked["epochs"])
        return {"kept": pack(state_groups(new))}
    result = train_client(problem, algorithm, client, state, broadcast, asked["round"])
    upload = result.update.upload
    wire = {} if upload.wire is None else {"wire": upload.wire}
    groups: dict[str, Fields] = {
        "sums": upload.sums,
        "state": result.update.state,
        "more": {"u": result.update.u, "buffers": result.buffers, **wire},
    }
    return {
        "update": pack(groups),
        "weight": upload.weight,
        "unit": upload.unit,
        "log": [asdict(stats) for stats in result.log],
    }


def result_of(client: int, answer: Mapping[str, Any], groups: Mapping[str, dict[str, Value]]) -> ClientResult:
    """A client's finished round.

    Args:
        client: The client's position.
        answer: What was answered.
        groups: The vectors that went with it.
    """
    sums = cast(dict[str, Vec], groups["sums"])
    more = groups["more"]
    upload = Upload(sums, answer["weight"], answer["unit"], cast(Vec | None, more.get("wire")))
    update = ClientUpdate(upload, State(**groups["state"]), cast(Vec, more["u"]))
    log = [SolveStats(**stats) for stats in answer["log"]]
    return ClientResult(client, update, cast(Vec, more["buffers"]), log)


def state_groups(client_state: ClientState) -> dict[str, Fields]:
    """What a client keeps, as groups."""
    return {"state": client_state.state, "kept": {"buffers": client_state.buffers}}


def state_of(groups: Mapping[str, dict[str, Value]]) -> ClientState:
    """The inverse of :func:`state_groups`."""
    return ClientState(State(**groups["state"]), cast(Vec, groups["kept"]["buffers"]))
