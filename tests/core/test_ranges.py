"""Ranges in annotations hold for objects made in Python as they do in experiment files."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from fedapm import FedAPM, SGDConfig
from fedapm.algorithms import FedALA, FedRep
from fedapm.experiments.settings import EngineSettings


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (FedAPM, {"rho": -1}, "algorithm.rho = -1: should be greater than or equal to 0."),
        (FedAPM, {"rho": math.nan}, "algorithm.rho = nan: should be greater than or equal to 0."),
        (FedAPM, {"relax": 2}, "algorithm.relax = 2: should be less than 2."),
        (FedAPM, {"xi": -1e-9}, "algorithm.xi = -1e-09: should be greater than or equal to 0."),
        (FedALA, {"s": 1.5}, "algorithm.s = 1.5: should be less than or equal to 1."),
        (FedRep, {"lr_v": 0}, "algorithm.lr_v = 0: should be greater than 0."),
        (SGDConfig, {"momentum": 1}, "solver.momentum = 1: should be less than 1."),
        (EngineSettings, {"workers": 0}, "engine.workers = 0: should be greater than 0."),
    ],
)
def test_a_value_out_of_range_is_refused_in_one_line(
    kind: Callable[..., Any], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match="should be") as refused:
        kind(**values)
    assert str(refused.value) == message


def test_what_is_not_set_is_in_range() -> None:
    assert FedAPM(lr_v=None, xi=None).lr_v is None
