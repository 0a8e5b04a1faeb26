"""The search of the split from start to end: candidates are trained a little, the better half more, the best most.

Every candidate is a run of the same experiment with another split, on training data alone, and all of them get as many
rounds on a rung. Sharing everything is never dropped on the way: whatever is personal has to beat it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from fedapm.core import random
from fedapm.core.candidates import SplitCandidate, split_candidates
from fedapm.core.metrics import METRICS, Metric
from fedapm.core.network import Loss
from fedapm.data.federation import Federation
from fedapm.errors import Diverged, FedapmError, Interrupted
from fedapm.experiments import build
from fedapm.experiments.settings import DataSettings, Experiment
from fedapm.report.split.search import SplitSearch, score_text
from fedapm.runs.folder import locked, refuse_foreign
from fedapm.runs.layout import SPLIT_INFO
from fedapm.simulation.problem import Model, model_factory
from fedapm.tuning.split.advice import advise
from fedapm.tuning.split.display import FollowRounds, SearchDisplay
from fedapm.tuning.split.ladder import Rung, cost
from fedapm.tuning.split.options import SplitOptions, SplitPlan
from fedapm.tuning.split.record import SearchRecord
from fedapm.tuning.split.results import Standings
from fedapm.tuning.split.scores import DIVERGED, Score, mean, score_run, table
from fedapm.tuning.split.trainer import Trainer

NEVER = 10**9
"""Rounds between evaluations: the last round of a run is always evaluated, and that is the only one that counts."""


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
    base = _base(experiment, plan)
    settings = base.tables()
    if model is not None:
        settings["data"] = {"name": clients.name}
    with locked(out, "fedapm split"):
        refuse_foreign(out, SPLIT_INFO, "split")
        trainer = Trainer(base, _for_scoring(clients, base.data), out, model, loss, metrics)
        rungs = plan.rungs(len(candidates), trainer.continued)
        arguments = plan.as_dict() | {"method": experiment.algorithm.label, "clients": len(clients)}
        record = SearchRecord(out, arguments, settings, candidates, rungs)
        # what is refused leaves nothing behind
        trainer.spec(candidates[0], rungs[0].rounds, plan.seeds[0])
        record.write()
        return _Search(record, plan, candidates, rungs, trainer, progress).run()


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
    """What all candidates have in common. A closing phase would leave no run that could be made longer."""
    engine = replace(
        experiment.engine,
        evaluate_every=NEVER,
        save_models=False,
        stationarity=False,
        theory=False,
        final_personal_epochs=0,
    )
    data = replace(experiment.data, validation=plan.validation)
    return replace(experiment, data=data, model=experiment.model.with_patterns(), engine=engine)


def _for_scoring(clients: Federation, data: DataSettings) -> Federation:
    try:
        return clients.for_validation(data.validation, data.seed)
    except FedapmError as error:
        reason = str(error).partition(";")[0].rstrip(".")
        raise FedapmError(f"the split cannot be searched, because {reason}; say what is personal yourself.") from None


class _Search:
    """Climbs the ladder.

    Args:
        record: What is there already, and where results are written.
        plan: How the search is done.
        candidates: What is tried.
        rungs: How many are trained how long.
        trainer: What trains them.
        progress: Whether progress is displayed.
    """

    def __init__(
        self,
        record: SearchRecord,
        plan: SplitPlan,
        candidates: Sequence[SplitCandidate],
        rungs: Sequence[Rung],
        trainer: Trainer,
        progress: bool,
    ) -> None:
        self.record, self.candidates, self.rungs, self.trainer = record, candidates, rungs, trainer
        self.metric, self.choose = METRICS.find(plan.metric), plan.choose
        self.display = SearchDisplay(cost(rungs, trainer.continued), progress)

    def run(self) -> SplitSearch:
        """Try the candidates that are left to try, and choose."""
        try:
            with self.display:
                return self._run()
        except (KeyboardInterrupt, Interrupted):
            raise Interrupted("the search of the split was interrupted.") from None

    def _run(self) -> SplitSearch:
        sign = 1 if self.metric.higher_is_better else -1
        standings = Standings(self.record.scores, sign, self.choose)
        left: Sequence[int] = range(len(self.candidates))
        climbed: list[tuple[Rung, Sequence[int]]] = []
        for rung, above in itertools.zip_longest(self.rungs, self.rungs[1:]):
            for number in left:
                for seed in rung.seeds:
                    self._train(number, rung.rounds, seed)
            climbed.append((rung, left))
            if not standings.ranked(left, rung):
                raise FedapmError("every candidate diverged; search the split with a smaller step (solver.lr).")
            kept = standings.kept(left, rung, above.candidates) if above is not None else []
            self.trainer.forget([k for k in left if k not in kept])
            left = kept
        outcome = standings.outcome(self.candidates, climbed)
        own_copies = self.trainer.base.tables()["algorithm"].get("evaluate") == "local"
        return self.record.finish(outcome.rows, outcome.chosen, advise(outcome, self.metric.describe(), own_copies))

    def _train(self, number: int, rounds: int, seed: int) -> None:
        """Train and score a candidate, unless that was done before."""
        candidate, scores = self.candidates[number], self.record.scores
        reached = [r for k, r, s in scores if (k, s) == (number, seed) and r < rounds]
        done = self.display.done + rounds - (max(reached, default=0) if self.trainer.continued else 0)
        if (number, rounds, seed) not in scores:
            follow = FollowRounds(self.display, candidate.name)
            try:
                records = self.trainer.train(number, candidate, rounds, seed, follow)
                score = score_run(records, self.metric)
            except Diverged:
                score = DIVERGED
            self.record.add(number, rounds, seed, score)
        text = self._text(scores[number, rounds, seed])
        self.display.show(f"{candidate.name}: {text}", done, f"{candidate.name}: {text} after {rounds} rounds")

    def _text(self, score: Score) -> str:
        if score.values is None:
            return "diverged"
        return f"{self.metric.name.replace('_', ' ')} {score_text(self.metric.describe(), mean(table([score], 1)))}"
