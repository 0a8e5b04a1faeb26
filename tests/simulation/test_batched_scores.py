"""Scores of several clients at once are those of each client by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedapm import FedAlt, FedAPM, FedAvg, Local
from fedapm.core.algorithm import Algorithm
from fedapm.core.metrics import ACCURACY, AUC, F1, BatchedPredictions, Predictions
from fedapm.core.solver import SGDConfig
from fedapm.core.split import SplitRule
from fedapm.data import Dirichlet
from fedapm.data.sets.digits import federation
from fedapm.models import DigitsNet
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.engines.vectorized import VectorizedEngine
from fedapm.simulation.problem import Problem
from tests.helpers.unit import few


@few
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(2, 5), st.integers(0, 10_000), st.booleans())
def test_every_client_has_the_scores_it_has_by_itself(sizes: list[int], classes: int, seed: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    width = max(sizes)
    logits = torch.as_tensor(rng.normal(size=(len(sizes), width, classes)))
    logits = (2 * logits).round() / 2 if ties else logits
    targets = torch.as_tensor(rng.integers(classes, size=(len(sizes), width)))
    present = torch.arange(width) < torch.tensor(sizes).unsqueeze(1)
    if seed % 3 == 0:
        logits[0, 0, 0] = torch.nan
    if seed % 2 == 0:
        logits[~present] = torch.inf
    together = BatchedPredictions(logits, targets, present)
    for metric in (ACCURACY, F1, AUC):
        assert metric.batched is not None
        found = metric.batched(together)
        for k, size in enumerate(sizes):
            value = metric.compute(Predictions(logits[k, :size], targets[k, :size]))
            assert found[k] == (None if value is None else pytest.approx(value, abs=1e-12)), metric.name


@pytest.mark.parametrize("method", [FedAPM(), FedAPM(evaluate="shared"), FedAlt(), FedAvg(), Local()])
def test_engines_agree_on_every_clients_scores(method: Algorithm) -> None:
    clients = federation(Dirichlet(6, 1.0, 30), test_fraction=0.2, seed=0)
    solver = SGDConfig(lr=0.1, epochs=1, batch_size=20)
    problem = Problem(clients, DigitsNet, SplitRule(preset="output"), adapt=method.adapt, solver=solver)
    one = SequentialEngine(problem, method)
    many = VectorizedEngine(problem, method, one.store)
    server = method.server_init(problem.u0)
    one.run_round(1, range(3), method.broadcast(server)).commit()
    expected = one.evaluate(method.broadcast(server), method.views[0])
    found = many.evaluate(method.broadcast(server), method.views[0])
    assert many._evaluates_batched
    assert len(found) == len(expected)
    for mine, its in zip(found, expected, strict=True):
        assert mine == {name: None if v is None else pytest.approx(v, rel=1e-5) for name, v in its.items()}
