"""The metrics of some runs as a report sees them: those fedapm knows, and those that runs describe themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedapm.core.metrics import ACCURACY, AUC, F1, METRICS, TEST_LOSS, TRAIN_LOSS
from fedapm.runs.records import Run


@dataclass(frozen=True)
class MetricInfo:
    """What a report needs to know of a metric; the fields are those of ``Metric.describe()``."""

    name: str
    title: str
    unit: str = ""
    higher_is_better: bool = True
    data: str = "test"

    @property
    def percentage(self) -> bool:
        """Whether values are shares of one."""
        return self.unit == "%"

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> MetricInfo:
        """Read a description from run.json; what it leaves out has the usual value."""
        name = str(description["name"])
        return cls(
            name,
            " ".join(str(description.get("title") or name).split()),
            str(description.get("unit", "")),
            bool(description.get("higher_is_better", True)),
            str(description.get("data", "test")),
        )


BUILT_IN = frozenset(metric.name for metric in (ACCURACY, F1, AUC, TRAIN_LOSS, TEST_LOSS))
"""Those whose place in a report is fixed; every other metric comes after them."""
MAIN = (ACCURACY.name, TEST_LOSS.name)
"""What a comparison is about: the first of these that the runs have."""


def metrics_of(runs: Sequence[Run]) -> list[MetricInfo]:
    """The metrics that fedapm knows, then those that only the runs describe.

    Args:
        runs: Runs whose ``run.json`` may have a list ``metrics`` of descriptions; older ones do not.
    """
    metrics = {name: MetricInfo.of(metric.describe()) for name, metric in METRICS.items()}
    for run in runs:
        for description in run.info.get("metrics") or []:
            if isinstance(description, Mapping) and description.get("name"):
                metrics.setdefault(str(description["name"]), MetricInfo.of(description))
    return list(metrics.values())


def featured(metrics: Sequence[MetricInfo], main: str) -> list[MetricInfo]:
    """The metrics worth a figure: those on training data, the main one, and those that are not built in."""
    return [
        *(metric for metric in metrics if metric.data == "train" and metric.name in BUILT_IN),
        *(metric for metric in metrics if metric.name == main),
        *(metric for metric in metrics if metric.name not in {*BUILT_IN, main}),
    ]
