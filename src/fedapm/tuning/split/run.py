"""The search of the split from start to end: candidates are trained a little, the better half more, the best most.

Every candidate is a run of the same experiment with another split, on training data alone, and all of them get as many
rounds on a rung. Sharing everything is never dropped on the way: whatever is personal has to beat it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree

import torch
from torch import nn

from fedapm.core import random
from fedapm.core.candidates import SplitCandidate, split_candidates
from fedapm.core.metrics import METRICS, Metric
from fedapm.core.network import Loss
from fedapm.core.record import RoundRecord
from fedapm.data.federation import Federation
from fedapm.errors import Diverged, FedapmError, Interrupted
from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.experiments.settings import DataSettings, Experiment
from fedapm.loggers.console import ProgressDisplay
from fedapm.report.split.search import SplitSearch, score_text
from fedapm.runs.folder import locked, refuse_foreign
from fedapm.runs.layout import CANDIDATES, CHECKPOINTS, SPLIT_INFO
from fedapm.simulation.loop import Callback
from fedapm.simulation.problem import Model, model_factory
from fedapm.simulation.spec import RunSpec
from fedapm.simulation.state import RunState
from fedapm.tuning.split.advice import advise
from fedapm.tuning.split.ladder import Rung, cost, ladder
from fedapm.tuning.split.options import SplitOptions, SplitPlan
from fedapm.tuning.split.record import SearchRecord
from fedapm.tuning.split.results import Standings
from fedapm.tuning.split.scores import DIVERGED, Score, mean, score_run, table

logger = logging.getLogger(__name__)
NEVER = 10**9
"""Rounds between evaluations: the last round of a run is always evaluated, and that is the only one that counts."""
TITLE = "split search"


def find_split(
    experiment: Experiment,
    clients: Federation,
    out: Path,
    *,
    model: Model | None = None,
    loss: Loss | None = None,
    metrics: Sequence[Metric] | None = None,
    options: SplitOptions | None = None,
    progress: bool = True,
) -> SplitSearch:
    """Search which part of a network should be personal; an interrupted search is continued.

    Args:
        experiment: The run that the split is for. What it says of the split itself does not matter, but for what is
            frozen.
        clients: The clients. A part of their training data is for scoring; their test data is not looked at.
        out: A folder for the search.
        model: The network, where it is not the one that the settings name.
        loss: As in :func:`fedapm.train`.
        metrics: As in :func:`fedapm.experiments.build.plan`.
        options: How candidates are tried.
        progress: Whether progress is displayed on stderr.

    Returns:
        Every candidate with its score, and the one to take.

    Raises:
        FedapmError: Where there is nothing to search, or the folder holds another search.
    """
    if not experiment.algorithm.takes_split():
        raise FedapmError(
            f"{experiment.algorithm.label} does not take a split, so there is none to search; take a method such as "
            "fedapm, fedalt or fedsim."
        )
    plan = SplitPlan.of(options or SplitOptions(), experiment, clients)
    candidates = split_candidates(networks(experiment, clients, model), experiment.model.frozen)
    continued = experiment.solver.lr_schedule != "cosine"
    rungs = ladder(len(candidates), plan.budget, plan.rounds, plan.seeds, asked=plan.asked, continued=continued)
    base = _base(experiment, plan)
    settings = base.tables()
    if model is not None:
        settings["data"] = {"name": clients.name}
    with locked(out, "fedapm split"):
        refuse_foreign(out, SPLIT_INFO, "split")
        arguments = plan.as_dict() | {"method": experiment.algorithm.label, "clients": len(clients)}
        record = SearchRecord(out, arguments, settings, candidates, rungs)
        trainer = _Trainer(base, _for_scoring(clients, base.data), out, model, loss, metrics, continued)
        # what is refused leaves nothing behind
        trainer.spec(candidates[0], rungs[0].rounds, plan.seeds[0])
        record.write()
        return _Search(record, plan, candidates, rungs, trainer, cost(rungs, continued), progress).run()


def networks(experiment: Experiment, clients: Federation, model: Model | None = None) -> list[nn.Module]:
    """Every different network that clients have.

    Args:
        experiment: The settings, which name a network where none is given.
        clients: The clients.
        model: The network, or a function that makes it.
    """
    make, per_client = model_factory(model or build.network(experiment, clients))
    kinds: dict[str, nn.Module] = {}
    for client in clients.clients if per_client else clients.clients[:1]:
        with random.seeded_globally(torch.device("cpu"), experiment.engine.seed, "init"):
            module = make(client)
        shapes = [(name, tuple(p.shape), p.requires_grad) for name, p in module.named_parameters()]
        kinds.setdefault(repr(shapes), module)
    return list(kinds.values())


def _base(experiment: Experiment, plan: SplitPlan) -> Experiment:
    """What all candidates have in common."""
    return replace(
        experiment,
        data=replace(experiment.data, validation=plan.validation),
        model=experiment.model.with_patterns(),
        engine=replace(experiment.engine, evaluate_every=NEVER, save_models=False, stationarity=False),
    )


def _for_scoring(clients: Federation, data: DataSettings) -> Federation:
    try:
        return clients.for_validation(data.validation, data.seed)
    except FedapmError as error:
        reason = str(error).partition(";")[0].rstrip(".")
        raise FedapmError(f"the split cannot be searched, because {reason}; say what is personal yourself.") from None


@dataclass(frozen=True)
class _Trainer:
    """Trains candidates."""

    base: Experiment
    clients: Federation
    out: Path
    model: Model | None
    loss: Loss | None
    metrics: Sequence[Metric] | None
    continued: bool

    def train(
        self, number: int, candidate: SplitCandidate, rounds: int, seed: int, callback: Callback
    ) -> list[RoundRecord]:
        """Run a candidate up to a round, from where it stands if it was run before; the records of all its rounds."""
        spec, folder = self.spec(candidate, rounds, seed), self._folder(number, rounds, seed)
        return execute(spec, folder, resume=True, progress=False, callbacks=[lambda *_: callback]).records

    def spec(self, candidate: SplitCandidate, rounds: int, seed: int) -> RunSpec:
        """A candidate's run."""
        experiment = replace(
            self.base,
            model=self.base.model.with_patterns(candidate.personal, candidate.shared),
            engine=replace(self.base.engine, rounds=rounds, seed=seed),
        )
        return build.plan(experiment, self.clients, self.model, self.loss, self.metrics)

    def _folder(self, number: int, rounds: int, seed: int) -> Path:
        folder = self.out / CANDIDATES / f"{number:02d}" / f"seed-{seed}"
        # a schedule over all rounds makes a longer run another one
        return folder if self.continued else folder.with_name(f"seed-{seed}-rounds-{rounds}")

    def forget(self, numbers: Sequence[int]) -> None:
        """Remove the checkpoints of candidates that are not trained any more; their records stay."""
        for number in numbers:
            for folder in (self.out / CANDIDATES / f"{number:02d}").glob(f"*/{CHECKPOINTS}"):
                rmtree(folder, ignore_errors=True)


class _Search:
    """Climbs the ladder.

    Args:
        record: What is there already, and where results are written.
        plan: How the search is done.
        candidates: What is tried.
        rungs: How many are trained how long.
        trainer: What trains them.
        total: The rounds of all runs together.
        progress: Whether progress is displayed.
    """

    def __init__(
        self,
        record: SearchRecord,
        plan: SplitPlan,
        candidates: Sequence[SplitCandidate],
        rungs: Sequence[Rung],
        trainer: _Trainer,
        total: int,
        progress: bool,
    ) -> None:
        self.record, self.plan, self.candidates, self.rungs, self.trainer = record, plan, candidates, rungs, trainer
        self.sign = 1 if METRICS.find(plan.metric).higher_is_better else -1
        self.display = _Display(total) if progress else None

    def run(self) -> SplitSearch:
        """Try the candidates that are left to try, and choose."""
        try:
            with self.display.bar if self.display is not None else nullcontext():
                return self._run()
        except KeyboardInterrupt:
            raise Interrupted("interrupted.") from None

    def _run(self) -> SplitSearch:
        standings = Standings(self.record.scores, self.sign)
        left: Sequence[int] = range(len(self.candidates))
        climbed: list[tuple[Rung, Sequence[int]]] = []
        for position, rung in enumerate(self.rungs):
            for number in left:
                self._train(number, rung)
            climbed.append((rung, left))
            if not standings.ranked(left, rung):
                raise FedapmError("every candidate diverged; search the split with a smaller step (solver.lr).")
            if position + 1 < len(self.rungs):
                kept = standings.kept(left, rung, self.rungs[position + 1].candidates)
                self.trainer.forget([k for k in left if k not in kept])
                left = kept
        outcome = standings.outcome(self.candidates, climbed)
        own_copies = self.trainer.base.tables()["algorithm"].get("evaluate") == "local"
        advice = advise(outcome, METRICS.find(self.plan.metric).describe(), own_copies)
        search = self.record.finish(outcome.rows, outcome.chosen, advice)
        self.trainer.forget(left)
        return search

    def _train(self, number: int, rung: Rung) -> None:
        """Train and score a candidate with every seed of a rung, unless that was done before."""
        candidate = self.candidates[number]
        for seed in rung.seeds:
            if (number, rung.rounds, seed) not in self.record.scores:
                follow = _Follow(self.display, candidate.name)
                try:
                    records = self.trainer.train(number, candidate, rung.rounds, seed, follow)
                    score = score_run(records, self.plan.metric)
                except Diverged:
                    score = DIVERGED
                self.record.add(number, rung.rounds, seed, score)
            if self.display is not None:
                self.display.scored(
                    candidate.name, rung.rounds, self._text(self.record.scores[number, rung.rounds, seed])
                )

    def _text(self, score: Score) -> str:
        if score.values is None:
            return "diverged"
        value = mean(table([score], 1))
        return f"{self.plan.metric.replace('_', ' ')} {score_text(METRICS.find(self.plan.metric).describe(), value)}"


class _Display:
    """How far the search is.

    Args:
        total: The rounds of all runs together.
    """

    def __init__(self, total: int) -> None:
        self.total, self.done, self.bar = total, 0, ProgressDisplay()

    def moved(self, name: str) -> None:
        """A round is done."""
        self.done += 1
        self.bar.update(TITLE, min(self.done, self.total), self.total, name)

    def scored(self, name: str, rounds: int, score: str) -> None:
        """A run has reached its rung."""
        line = f"{TITLE}: {name}: {score} after {rounds} rounds"
        self.bar.update(TITLE, min(self.done, self.total), self.total, f"{name}: {score}", line)


class _Follow(Callback):
    """Counts the rounds of a run.

    Args:
        display: Where they are shown.
        name: The candidate.
    """

    def __init__(self, display: _Display | None, name: str) -> None:
        self.display, self.name = display, name

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        """Count a round."""
        del record, seconds
        if self.display is not None and state.round:
            self.display.moved(self.name)
