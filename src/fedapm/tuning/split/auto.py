"""``model.split = "auto"``: the search that comes before a run, and the experiment that comes out of it.

First the split, then what the method leaves open, on the same validation data.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedapm.core.metrics import Metric
from fedapm.core.network import Loss
from fedapm.data.federation import Federation
from fedapm.experiments.settings import Experiment
from fedapm.runs.folder import locked, refuse_to_overwrite
from fedapm.runs.layout import SPLIT
from fedapm.runs.records import is_run
from fedapm.simulation.problem import Model
from fedapm.tuning.split.alternatives import recorded_alternative, with_alternative
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
    search = _Search(clients, model, loss, metrics, progress)
    if out is None:
        with tempfile.TemporaryDirectory() as scratch:
            return search.run(experiment, Path(scratch) / SPLIT)
    with locked(out):
        if not resume:
            refuse_to_overwrite(out)
        folder = out / SPLIT
        choice = recorded_choice(folder) if resume else None
        if is_run(out):
            # the run says in which settings they differ, if they do
            decided = replace(experiment, model=experiment.model.with_patterns(**(choice or {})))
            return replace(decided, algorithm=replace(decided.algorithm, **(recorded_alternative(folder) or {})))
        return search.run(experiment, folder, choice)


@dataclass(frozen=True)
class _Search:
    """What both steps of the search need."""

    clients: Federation
    model: Model | None
    loss: Loss | None
    metrics: Sequence[Metric] | None
    progress: bool

    def run(self, experiment: Experiment, folder: Path, choice: dict[str, list[str]] | None = None) -> Experiment:
        """Search the split, unless it was chosen before, and then what the method leaves open."""
        common: dict[str, Any] = {"model": self.model, "loss": self.loss, "metrics": self.metrics}
        common |= {"progress": self.progress}
        if choice is None:
            logger.info("Searching which part of the network should be personal.")
            found = find_split(experiment, self.clients, folder, **common)
            for sentence in found.advice:
                logger.info(sentence)
            choice = found.chosen.patterns
        chosen = replace(experiment, model=experiment.model.with_patterns(**choice))
        return with_alternative(chosen, self.clients, folder, **common)
