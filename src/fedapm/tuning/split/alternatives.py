"""After the split: what the method leaves to itself, decided on the same validation data.

Each alternative is run to the end, with its closing phase, because some only pay early and others only late.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedapm.core.algorithm import Algorithm
from fedapm.core.candidates import SplitCandidate
from fedapm.core.metrics import METRICS, Metric
from fedapm.core.network import Loss
from fedapm.data.federation import Federation
from fedapm.errors import Diverged, Interrupted
from fedapm.experiments.settings import Experiment
from fedapm.report.split.search import gap_text, score_text
from fedapm.runs.files import read_json, write_json
from fedapm.runs.layout import ALTERNATIVES, ALTERNATIVES_INFO
from fedapm.simulation.problem import Model
from fedapm.tuning.split.display import FollowRounds, SearchDisplay
from fedapm.tuning.split.options import SplitOptions, SplitPlan
from fedapm.tuning.split.scores import DIVERGED, Score, gap, mean, score_run, table
from fedapm.tuning.split.trainer import Trainer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """What was decided."""

    name: str
    settings: dict[str, Any]
    """The hyperparameters that differ from those asked for."""
    sentence: str
    """What was chosen, and on what evidence."""


def decide(trainer: Trainer, candidate: SplitCandidate, plan: SplitPlan, *, progress: bool = True) -> Choice | None:
    """Run the method's alternatives with one split, and take the best that beats the most cautious one.

    Args:
        trainer: What trains them: the experiment that was asked for, with its closing phase, and where runs are kept.
        candidate: The split.
        plan: How runs are scored, and with which seeds.
        progress: Whether progress is displayed.

    Returns:
        The choice; None where the method leaves nothing open.

    Raises:
        Interrupted: Ctrl-C; what was run is not run again.
    """
    asked = trainer.base.algorithm
    alternatives = asked.alternatives(personal=bool(candidate.personal or candidate.shared))
    if len(alternatives) < 2:
        return None
    metric = METRICS.find(plan.metric)
    sign = 1 if metric.higher_is_better else -1
    total = plan.rounds * len(alternatives) * len(plan.seeds)
    scores: dict[str, list[Score]] = {}
    try:
        with SearchDisplay(total, progress) as display:
            for name, algorithm in alternatives.items():
                one = replace(trainer, base=replace(trainer.base, algorithm=algorithm))
                scores[name] = [
                    _score(one, len(scores), candidate, plan.rounds, seed, display, name, metric) for seed in plan.seeds
                ]
    except (KeyboardInterrupt, Interrupted):
        raise Interrupted("the search of the split was interrupted.") from None
    name, sentence = _best(scores, sign, metric)
    return Choice(name, _differences(asked, alternatives[name]), sentence)


def _score(
    trainer: Trainer,
    number: int,
    candidate: SplitCandidate,
    rounds: int,
    seed: int,
    display: SearchDisplay,
    name: str,
    metric: Metric,
) -> Score:
    done = display.done + rounds
    try:
        score = score_run(trainer.train(number, candidate, rounds, seed, FollowRounds(display, name)), metric)
    except Diverged:
        score = DIVERGED
    display.show(name, done, f"{name}: {_text(score, metric)} after {rounds} rounds")
    return score


def _text(score: Score, metric: Metric) -> str:
    return "diverged" if score.values is None else score_text(metric.describe(), mean(table([score], 1)))


def _best(scores: dict[str, list[Score]], sign: int, metric: Metric) -> tuple[str, str]:
    """The name of the best alternative, and why."""
    values = {n: table(rows, sign) for n, rows in scores.items() if all(row.values is not None for row in rows)}
    if not values:
        return next(iter(scores)), "Every way of setting the method diverged; the most cautious one is taken."
    cautious, *others = values
    leads = {name: gap(values[name], values[cautious]) for name in others}
    ahead = [name for name, lead in leads.items() if lead.mean > lead.error]
    if not ahead:
        return cautious, f"{_upper(cautious)}: nothing else was better by more than its standard error."
    best = max(ahead, key=lambda name: leads[name].mean)
    middle, interval = gap_text(metric.describe(), leads[best])
    evidence = f"{middle} (95% interval {interval})" if interval else middle
    return best, f"{_upper(best)}: {evidence} better on validation data than {cautious}."


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def _differences(asked: Algorithm, chosen: Algorithm) -> dict[str, Any]:
    before, after = asdict(asked), asdict(chosen)
    return {name: value for name, value in after.items() if value != before[name]}


def with_alternative(
    experiment: Experiment,
    clients: Federation,
    folder: Path,
    *,
    model: Model | None = None,
    loss: Loss | None = None,
    metrics: Sequence[Metric] | None = None,
    progress: bool = True,
) -> Experiment:
    """An experiment with what its method leaves open decided on validation data.

    Args:
        experiment: The experiment, with its split.
        clients: Its clients, with all their training data.
        folder: The folder of the split's search, which keeps what was decided.
        model: As in :func:`fedapm.tuning.split.find_split`.
        loss: As in :func:`fedapm.train`.
        metrics: As in :func:`fedapm.experiments.build.plan`.
        progress: Whether progress is displayed.
    """
    settings = recorded_alternative(folder)
    if settings is None:
        plan = SplitPlan.of(SplitOptions(), experiment, clients)
        engine = replace(experiment.engine, evaluate_every=plan.rounds, save_models=False, stationarity=False)
        data = replace(experiment.data, validation=plan.validation)
        base = replace(experiment, data=data, engine=replace(engine, theory=False))
        held_out = clients.for_validation(plan.validation, data.seed)
        trainer = Trainer(base, held_out, folder / ALTERNATIVES, model, loss, metrics)
        split = SplitCandidate("the split that was chosen", experiment.model.personal, experiment.model.shared)
        choice = decide(trainer, split, plan, progress=progress)
        if choice is None:
            return experiment
        logger.info(choice.sentence)
        settings = choice.settings
        write_json(folder / ALTERNATIVES_INFO, asdict(choice))
    return replace(experiment, algorithm=replace(experiment.algorithm, **settings))


def recorded_alternative(folder: Path) -> dict[str, Any] | None:
    """The hyperparameters that were chosen in a folder; None where nothing was."""
    path = folder / ALTERNATIVES_INFO
    return dict(read_json(path)["settings"]) if path.is_file() else None
