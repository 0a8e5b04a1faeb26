"""``model.split = "auto"``: the search that comes before a run, and the experiment that comes out of it."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedapm.core.metrics import Metric
from fedapm.core.network import Loss
from fedapm.data.federation import Federation
from fedapm.experiments.settings import Experiment
from fedapm.runs.folder import locked, refuse_to_overwrite
from fedapm.runs.layout import SPLIT
from fedapm.runs.records import is_run
from fedapm.simulation.problem import Model
from fedapm.tuning.split.record import recorded_choice
from fedapm.tuning.split.run import find_split

logger = logging.getLogger(__name__)


def with_split(
    experiment: Experiment,
    clients: Federation,
    out: Path | None = None,
    *,
    model: Model | None = None,
    loss: Loss | None = None,
    metrics: Sequence[Metric] | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Experiment:
    """An experiment whose split is to be searched, with the split that was found.

    Args:
        experiment: An experiment with ``model.split = "auto"``.
        clients: Its clients.
        out: The folder of the run, which keeps the search in a folder of its own; None keeps nothing.
        model: The network, where it is not the one that the settings name.
        loss: As in :func:`fedapm.train`.
        metrics: As in :func:`fedapm.experiments.build.plan`.
        resume: Whether to go on with what ``out`` holds. A choice that is recorded there is kept.
        progress: Whether progress is displayed.

    Returns:
        The experiment with patterns in place of ``auto``.
    """
    if not experiment.algorithm.takes_split():
        logger.info("%s has no split to search.", experiment.algorithm.label)
        return replace(experiment, model=experiment.model.with_patterns())
    if out is None:
        with tempfile.TemporaryDirectory() as folder:
            return _searched(experiment, clients, Path(folder) / SPLIT, model, loss, metrics, progress)
    with locked(out):
        if not resume:
            refuse_to_overwrite(out)
        choice = recorded_choice(out / SPLIT) if resume else None
        if choice is not None:
            return _taking(experiment, choice)
        if is_run(out):
            # begun with a split of its own: the run says in which settings they differ
            return replace(experiment, model=experiment.model.with_patterns())
        return _searched(experiment, clients, out / SPLIT, model, loss, metrics, progress)


def _searched(
    experiment: Experiment,
    clients: Federation,
    folder: Path,
    model: Model | None,
    loss: Loss | None,
    metrics: Sequence[Metric] | None,
    progress: bool,
) -> Experiment:
    logger.info("Searching which part of the network should be personal.")
    found = find_split(experiment, clients, folder, model=model, loss=loss, metrics=metrics, progress=progress)
    for sentence in found.advice:
        logger.info(sentence)
    return _taking(experiment, found.chosen.patterns)


def _taking(experiment: Experiment, choice: dict[str, list[str]]) -> Experiment:
    return replace(experiment, model=experiment.model.with_patterns(**choice))
