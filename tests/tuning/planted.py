"""Federations of which it is known what should be personal."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from fedapm import FedAlt, Federation
from fedapm.core.solver import SGDConfig
from fedapm.experiments.settings import EngineSettings, Experiment, ModelSettings

INPUTS, CLASSES, CLIENTS, SAMPLES = 20, 4, 10, 60


def federation(differ: str = "", seed: int = 0) -> Federation:
    """Clients with the same rule, which one has too little data to learn alone, and with one thing that differs.

    Args:
        differ: Nothing, ``output`` (what the classes are called), ``input`` (the order of the inputs) or ``rule``.
        seed: Fixes the data.
    """
    rng = np.random.default_rng(seed)
    rule = rng.standard_normal((INPUTS, CLASSES))
    clients = {}
    for client in range(CLIENTS):
        x = rng.standard_normal((SAMPLES, INPUTS)).astype("float32")
        if differ == "rule":
            rule = rng.standard_normal((INPUTS, CLASSES))
        y = (x @ rule).argmax(1)
        if differ == "output":
            y = (y + client) % CLASSES
        if differ == "input":
            x = x[:, rng.permutation(INPUTS)]
        clients[client] = (x, y)
    return Federation.from_clients(clients, seed=seed)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, CLASSES))


def experiment(**engine: Any) -> Experiment:
    """A run that learns such a federation in few rounds; FedAlt, whose defaults are plain."""
    return Experiment(
        model=ModelSettings(split="auto"),
        algorithm=FedAlt(),
        solver=SGDConfig(lr=0.2, batch_size=8, epochs=2),
        engine=EngineSettings(**{"rounds": 16, "fraction": 1.0, "engine": "vectorized"} | engine),
    )
