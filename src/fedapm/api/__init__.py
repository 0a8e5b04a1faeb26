"""The Python interface: train, compare and tune with data and networks of one's own."""

from __future__ import annotations

from fedapm.api.compare import Comparison, compare
from fedapm.api.train import train
from fedapm.api.tune import tune

__all__ = ["Comparison", "compare", "train", "tune"]
