"""Tuning: good settings for every method, found on validation data with the same number of trials for each."""

from __future__ import annotations

from fedapm.tuning.options import Options
from fedapm.tuning.results import SearchResult, Tuned, load_tuned, tuned_layer
from fedapm.tuning.run import trial_layers, tune

__all__ = ["Options", "SearchResult", "Tuned", "load_tuned", "trial_layers", "tune", "tuned_layer"]
