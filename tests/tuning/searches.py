"""Small searches that tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedapm.tuning import Options, Tuned, tune

LAYER: dict[str, Any] = {"data": {"clients": 4}, "engine": {"fraction": 0.5}, "solver": {"epochs": 1}}
METHODS = ["fedprox", "local"]
SEARCH = ("solver.lr=0.05,0.1,0.4", "fedprox.mu=0.01,1.0")
OPTIONS = Options(trials=5, rounds=2, search=SEARCH, pruner="none")


def search(out: Path, *layers: Any, options: Options = OPTIONS, methods: list[str] = METHODS, **more: Any) -> Tuned:
    return tune(methods, out, LAYER, *layers, options=options, progress=False, **more)
