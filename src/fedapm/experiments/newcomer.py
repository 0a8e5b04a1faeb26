"""Newcomer: a personal part for a client that took no part in training, at the fixed shared model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch

from fedapm.algorithms import FedAPM
from fedapm.core.algorithm import Algorithm, State
from fedapm.core.metrics import Predictions, Score
from fedapm.core.random import key, numpy_generator
from fedapm.core.samples import Samples
from fedapm.core.task import LocalTask
from fedapm.core.transform import Transform
from fedapm.core.vec import Vec
from fedapm.data.clients import ClientData
from fedapm.data.federation import Federation
from fedapm.data.splitting import split_samples
from fedapm.errors import FedapmError
from fedapm.experiments.new_client import JudgedOn, NewClient, Options, StartedFrom
from fedapm.exports import Description
from fedapm.simulation.engines.sequential import check_classes
from fedapm.simulation.problem import Problem
from fedapm.simulation.stores.base import ClientState
from fedapm.simulation.threads import suitable_threads

FEWEST = 10
"""With fewer samples none are held out: one or two say nothing about when to stop."""


@dataclass(frozen=True)
class TrainedRun:
    """What new clients need of a run."""

    algorithm: Algorithm
    server: State
    seed: int
    round: int
    """The last round."""
    problem_for: Callable[[Federation], Problem]
    """Makes the run's problem for other clients."""
    trained: Callable[[], Iterable[ClientState]]
    """The states of the clients that took part, as the last round left them; asked for once."""
    seen_classes: frozenset[int] | None = None
    """The classes they have; None where that is not known."""
    info: Callable[[], dict[str, Any]] = dict
    """What run.json says, for the models of new clients."""
    transform: Transform | None = None
    """What turns raw inputs into those of the network."""

    @cached_property
    def mean(self) -> tuple[Vec, Vec] | None:
        """The mean of the trained clients' personal parts, and of those of their buffers that have one.

        None where there is nothing to average: no personal part, no client, or networks of different shapes.
        """
        name, means, count = self.algorithm.personal_field, None, 0
        for state in self.trained() if name is not None else ():
            moving = [n for n, t in state.buffers.items() if t.is_floating_point()]
            both = cast(Vec, state.state[cast(str, name)]), state.buffers.only(moving)
            if means is not None and (_shapes(means[0]), _shapes(means[1])) != (_shapes(both[0]), _shapes(both[1])):
                return None
            means = both if means is None else (means[0] + both[0], means[1] + both[1])
            count += 1
        return (means[0] / count, means[1] / count) if means is not None else None


def personalize_client(run: TrainedRun, data: ClientData, options: Options) -> NewClient:
    """Give a client a personal part of its own.

    Args:
        run: The run whose shared model it takes over.
        data: Its data. A part of the training data chooses the number of epochs; test data, if any, is only scored.
        options: How it is done.
    """
    newcomer = _Newcomer(run, data, options)
    with suitable_threads(newcomer.problem):
        return newcomer.personalized()


class _Newcomer:
    """One new client at work."""

    def __init__(self, run: TrainedRun, data: ClientData, options: Options) -> None:
        self.run, self.options, self.algorithm = run, options, run.algorithm
        self.correct = options.correct
        if isinstance(run.algorithm, FedAPM) and run.algorithm.evaluate == "local":
            # the others have copies of their own; so has this client, after its personal part was chosen at ū
            self.algorithm, self.correct = replace(run.algorithm, evaluate="shared"), True
        self.broadcast = run.algorithm.broadcast(run.server)
        self.notes: list[str] = []
        if options.correct and not isinstance(run.algorithm, FedAPM):
            raise FedapmError(
                f"only FedAPM corrects the shared part for one client; {run.algorithm.label} has no penalty that would "
                "hold it to the others."
            )
        self.problem = run.problem_for(Federation([data], "new client"))
        self.data, self.network = self.problem.federation[0], self.problem.network(0)
        self.fit, self.held_out = (part.to(self.problem.device) for part in self._parted())
        self.test = self.problem.samples(0, "test")
        self._check()
        # its streams depend on its id alone, not on its place among others
        stream = key(run.seed, "new client", data.id)
        task = self.problem.personal_task(0, run.round)
        # it has early stopping of its own, over all epochs
        solver = replace(task.solver, validation_v=None)
        # nothing of its part is settled yet, so the schedule begins anew
        self.task: LocalTask = replace(task, train=self.fit, client=stream, solver=solver, lr_factor=1.0)

    def personalized(self) -> NewClient:
        """Start where the loss on its own data is lower, and stop where the loss on what is held out is lowest."""
        start, state = self._start()
        judged_on, judged = self._judged()
        before = self._scores(state, judged)
        epochs = 0
        if self.algorithm.personal_field is None:
            self.notes.append(f"{self.algorithm.label} has no personal part, so the model is the global one.")
        else:
            state, epochs = self._search(state)
        algorithm = self.algorithm
        corrected = self._corrected(state) if self.correct else None
        if corrected is not None:
            algorithm, state = corrected
        after = self._scores(state, judged, algorithm)
        module = deepcopy(self.network.module).cpu().eval()
        for parameter in module.parameters():
            parameter.requires_grad_(True)
        return NewClient(
            self.data.id,
            len(self.fit),
            start,
            epochs,
            corrected is not None,
            judged_on,
            before,
            after,
            tuple(self.notes),
            module,
            self._description(after, judged_on),
        )

    def _description(self, scores: dict[str, Score], judged_on: JudgedOn) -> Description:
        run, view = self.run, self.algorithm.views[0]
        return Description(self.data.id, view, run.round, run.info(), scores, judged_on, run.transform)

    def _parted(self) -> tuple[Samples, Samples]:
        """What it is trained on, and what is held out."""
        train, options = self.data.train, self.options
        stream = numpy_generator(self.run.seed, "new client", self.data.id)
        if options.samples is not None and options.samples < len(train):
            drawn = stream.permutation(len(train))[: options.samples]
            train = train[torch.as_tensor(drawn)]
        if options.validation and len(train) >= FEWEST:
            return split_samples(train, options.validation, stream)
        return train, train[:0]

    def _check(self) -> None:
        data = self.data
        self._load(self._fresh())
        try:
            outputs = self.network.predict(self.fit[:1])
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            shapes = ", ".join(str(tuple(t.shape[1:])) for t in data.train.inputs)
            reason = str(error).splitlines()[0].rstrip(".")
            raise FedapmError(
                f"client {data.id}: the run's network does not take samples of shape {shapes} ({reason})."
            ) from None
        seen = self.run.seen_classes
        if seen is not None and bool(seen) != data.train.classified:
            theirs, own = ("classes", "quantities") if seen else ("quantities", "classes")
            raise FedapmError(f"client {data.id} has {own} as targets, the clients of the run have {theirs}.")
        check_classes(data.id, outputs, data.train, data.test)
        if not data.train.classified:
            return
        classes = sorted(set(self.fit.targets.tolist()))
        if len(classes) == 1:
            self.notes.append(f"All its training samples are of class {classes[0]}; its model has seen no other.")
        new = [c for c in classes if seen is not None and c not in seen]
        if new:
            listed = ", ".join(map(str, new))
            self.notes.append(f"No client that took part had class {listed}; only its own samples speak of it.")

    def _fresh(self) -> ClientState:
        """As a client that joins now: the method's start, with the shared model as it is."""
        start = self.problem.start(0)
        shared = self.broadcast.vectors.get("u", self.problem.u0)
        return ClientState(self.algorithm.client_init(shared, start.v0), start.buffers)

    def _start(self) -> tuple[StartedFrom, ClientState]:
        fresh, name = self._fresh(), self.algorithm.personal_field
        if name is None or self.run.mean is None or _shapes(self.run.mean[0]) != _shapes(fresh.state[name]):
            return "initial", fresh
        part, buffers = (vector.to(self.problem.device) for vector in self.run.mean)
        merged = Vec({n: buffers.get(n, t) for n, t in fresh.buffers.items()})
        average = ClientState(fresh.state.replace(**{name: part}), merged)
        return ("mean", average) if self._loss(average, self.fit) < self._loss(fresh, self.fit) else ("initial", fresh)

    def _judged(self) -> tuple[JudgedOn, Samples]:
        if len(self.test):
            return "test", self.test
        if len(self.held_out):
            self.notes.append("The scores are on the samples that chose the number of epochs, so a little too good.")
            return "validation", self.held_out
        self.notes.append("The scores are on its training samples, because it has no others: they say little.")
        return "training", self.fit

    def _search(self, state: ClientState) -> tuple[ClientState, int]:
        options = self.options
        if not len(self.held_out):
            epochs = options.epochs if not options.validation else min(options.epochs, self.problem.solver.epochs)
            if options.validation:
                few = f"{len(self.fit)} sample{'s are' if len(self.fit) > 1 else ' is'} too few to hold some out"
                self.notes.append(f"{few}, so it was trained for {epochs} epochs, as in a round.")
            start = state
            for _ in range(epochs):
                state = self._epoch(state)
            if not math.isfinite(self._loss(state, self.fit)):
                self.notes.append("Its numbers did not stay finite, so it keeps the personal part it started with.")
                return start, 0
            return state, epochs
        best, chosen, lowest = state, 0, self._loss(state, self.held_out)
        for epoch in range(1, options.epochs + 1):
            state = self._epoch(state)
            loss = self._loss(state, self.held_out)
            if loss < lowest:
                best, chosen, lowest = state, epoch, loss
            elif epoch - chosen >= options.patience or not math.isfinite(loss):
                break
        return best, chosen

    def _epoch(self, state: ClientState) -> ClientState:
        self.network.load(state.buffers)
        new = self.algorithm.personalize(self.broadcast, state.state, self.task, 1)
        return ClientState(new, self.network.buffers() if state.buffers else state.buffers)

    def _corrected(self, state: ClientState) -> tuple[Algorithm, ClientState] | None:
        """A copy u_i of its own, as in FedAPM's first step; None where it does not help on what is held out."""
        assert isinstance(self.algorithm, FedAPM)
        alone = replace(self.algorithm, epochs_v=0, evaluate="local")
        self.network.load(state.buffers)
        update = alone.client_update(self.broadcast, state.state, self.task)
        new = ClientState(update.state, self.network.buffers() if state.buffers else state.buffers)
        if len(self.held_out) and not self._loss(new, self.held_out, alone) < self._loss(state, self.held_out):
            self.notes.append("The correction of the shared part did not help on what was held out and was left out.")
            return None
        return alone, new

    def _load(self, state: ClientState, algorithm: Algorithm | None = None) -> None:
        chosen = algorithm or self.algorithm
        u, v = chosen.client_model(self.broadcast, state.state, chosen.views[0])
        self.network.load(u, v, state.buffers)

    def _loss(self, state: ClientState, samples: Samples, algorithm: Algorithm | None = None) -> float:
        self._load(state, algorithm)
        loss, _ = self.network.gradient((), samples)
        return loss if math.isfinite(loss) else math.inf

    def _scores(self, state: ClientState, samples: Samples, algorithm: Algorithm | None = None) -> dict[str, Score]:
        self._load(state, algorithm)
        predictions = Predictions(self.network.predict(samples), samples.targets, self.network.loss)
        metrics = [m for m in self.problem.metrics if m.data == "test" and m.applies(samples.classified)]
        scores = {metric.name: metric.compute(predictions) for metric in metrics}
        return {n: s if s is None or math.isfinite(s) else None for n, s in scores.items()}


def _shapes(vector: Any) -> dict[str, tuple[int, ...]]:
    return {n: tuple(t.shape) for n, t in vector.items()}
