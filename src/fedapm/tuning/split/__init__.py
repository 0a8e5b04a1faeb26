"""The search of the split: which part of a network should be personal, decided on validation data."""

from __future__ import annotations

from fedapm.tuning.split.auto import with_split
from fedapm.tuning.split.options import SplitOptions
from fedapm.tuning.split.run import find_split, networks

__all__ = ["SplitOptions", "find_split", "networks", "with_split"]
