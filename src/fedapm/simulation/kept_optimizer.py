"""KeptOptimizer: a method whose clients keep their optimizer's running means from one round to the next."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from fedapm.core.algorithm import Algorithm, ClientUpdate, State
from fedapm.core.batched import NotBatchable
from fedapm.core.messages import OnceLogger
from fedapm.core.moments import Moments
from fedapm.core.solver import SGDConfig
from fedapm.core.task import LocalTask, Task
from fedapm.core.vec import Vec
from fedapm.uploads.layer import Layer

FIRST, SECOND, STEPS = "optimizer_first_", "optimizer_second_", "optimizer_steps_"
"""What the fields of a client's state begin with; the phase follows."""


@dataclass(frozen=True)
class KeptOptimizer(Layer):
    """A method around another one: engines, stores, checkpoints and nodes see a client's state with more fields."""

    log: OnceLogger = field(default_factory=lambda: OnceLogger(logging.getLogger(__name__)), compare=False)

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        """The method's own, with running means that go on."""
        if not isinstance(task, LocalTask):
            raise NotBatchable("what the optimizer keeps between rounds (solver.keep_state) is a matter of one client")
        task.moments.update(_moments(state))
        update = self.method.client_update(broadcast, _without(state), task)
        kept = _fields(task)
        self.log.info(f"each client keeps {State(**kept).nbytes} bytes of the optimizer's state between rounds.")
        return ClientUpdate(update.upload, update.state.replace(**kept), update.u)

    def personalize(self, broadcast: State, state: State, task: Task, epochs: int) -> State:
        """The method's own; the closing phase begins anew."""
        return self.method.personalize(broadcast, _without(state), task, epochs)


def kept(method: Algorithm, solver: SGDConfig) -> Algorithm:
    """The method, with an optimizer that goes on from round to round where the settings say so."""
    return KeptOptimizer(method) if solver.keep_state else method


def _fields(task: LocalTask) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for phase, moments in task.moments.items():
        fields[STEPS + phase] = float(moments.steps)
        for prefix, tensors in ((FIRST, moments.first), (SECOND, moments.second)):
            if tensors:
                fields[prefix + phase] = Vec({str(k): t.clone() for k, t in enumerate(tensors)})
    return fields


def _moments(state: State) -> dict[str, Moments]:
    found = {}
    for name, steps in state.numbers.items():
        if name.startswith(STEPS):
            phase = name.removeprefix(STEPS)
            first, second = (state.vectors.get(prefix + phase, Vec()).clone() for prefix in (FIRST, SECOND))
            found[phase] = Moments(list(first.values()), list(second.values()), int(steps))
    return found


def _without(state: State) -> State:
    return State(**{n: value for n, value in state.items() if not n.startswith((FIRST, SECOND, STEPS))})
