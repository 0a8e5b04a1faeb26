"""The split as a setting that ``fedapm tune`` searches beside others."""

from __future__ import annotations

import json
from dataclasses import replace

from fedapm.core.candidates import patterns, split_candidates
from fedapm.core.search_space import Choices, Dimension
from fedapm.core.split import SplitRule
from fedapm.data.federation import Federation
from fedapm.experiments.settings import Experiment
from fedapm.simulation.problem import Model
from fedapm.tuning.split.run import networks

PATTERNS = "model.personal"
"""What a trial sets in place of ``model.split``."""


def split_dimension(base: Experiment, clients: Federation, model: Model | None = None) -> tuple[Experiment, Dimension]:
    """The candidates of an experiment's network as values of ``model.personal``.

    Args:
        base: The present settings of a method, which name the network.
        clients: The clients.
        model: The network, where it is not the one that the settings name.

    Returns:
        The settings with the present split written as patterns, and what is searched.
    """
    (network,) = networks(base, clients, model)
    frozen = base.model.frozen
    candidates = [c.personal for c in split_candidates([network], frozen)]
    rule = SplitRule(frozen=frozen) if base.model.split is not None else base.model.rule
    personal = rule.apply(network).personal
    same = (c for c in candidates if SplitRule(personal=c, frozen=frozen).apply(network).personal == personal)
    present = next(same, None) or patterns(personal, [name for name, _ in network.named_parameters()])
    values = Choices(tuple(json.dumps(list(candidate)) for candidate in candidates))
    return replace(base, model=base.model.with_patterns(present)), Dimension(PATTERNS, values, lists=True)
