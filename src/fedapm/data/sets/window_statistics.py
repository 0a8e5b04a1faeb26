"""Sensor windows as hand-made features: 54 statistics of a window in place of its signals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch

from fedapm.data.dataset import Pool, Source
from fedapm.data.features.statistics import window_statistics
from fedapm.data.sets.sensors import SensorSet


class WindowStatistics(SensorSet):
    """A version of a sensor data set, to be put before its class among a class's bases."""

    features_name = "statistics"
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "data": {"partition": "natural"},
        "model": {"name": "mlp", "preset": "output"},
        "solver": {"lr": 0.1, "batch_size": 10, "weight_decay": 0.01},
    }

    def read(self, source: Source) -> Pool:
        """The statistics of all windows, in the order of the windows."""
        pool = super().read(source)
        windows = np.concatenate([part.numpy() for part in pool.inputs[:2]], axis=1)
        return replace(pool, modalities=("motion",), inputs=(torch.from_numpy(window_statistics(windows)),))
