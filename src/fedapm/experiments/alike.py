"""Methods tuned alike on validation data, then compared on test data with what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedapm import tuning
from fedapm.data import Federation
from fedapm.errors import FedapmError
from fedapm.experiments import compare
from fedapm.experiments.settings import Experiment, Tables


@dataclass(frozen=True)
class Alike:
    """Two steps, each in a folder of its own; whatever is there already is kept."""

    tune_folder: Path
    compare_folder: Path
    methods: Sequence[str]
    seeds: Sequence[int]
    """Of the comparison."""
    layers: Sequence[Mapping[str, Any]]
    """Settings of both steps, as in :func:`fedapm.experiments.compare.plans`."""
    options: tuning.Options
    """How every method is searched."""
    comparing: Mapping[str, Any]
    """What only the comparison has."""
    choosing: Mapping[str, Any] = field(default_factory=dict)
    """What only the search has."""
    targets: Mapping[str, float] = field(default_factory=dict)
    workers: int | None = None
    """Trials and runs at a time."""

    def check(self) -> None:
        """Refuse what is wrong with the settings of either step."""
        compare.plans(self.methods, self.options.seeds, *tuning.trial_layers(self._choosing, self.options))
        compare.plans(self.methods, self.seeds, *self.layers, self.comparing)

    def tune(self) -> None:
        """Search good settings for every method, with the same number of trials."""
        tuning.tune(self.methods, self.tune_folder, *self._choosing, options=self.options, workers=self.workers)

    def tuned(self, methods: Sequence[str]) -> tuple[list[str], Tables, dict[str, Any]]:
        """The methods that have tuned settings, these settings, and where they come from.

        A method whose trials all diverged is left out; the search has named it.
        """
        there = tuning.load_tuned(self.tune_folder)
        known = [name for name in methods if name in there]
        if not known:
            raise FedapmError(f"no method in {self.tune_folder} has tuned settings: every trial diverged.")
        layer, origin = tuning.tuned_layer(self.tune_folder, known)
        return known, layer, {**origin, "file": self.tune_folder.name}

    def runs(self) -> tuple[list[Experiment], compare.About]:
        """The runs of the comparison, with what the search found."""
        methods, found, origin = self.tuned(self.methods)
        experiments = compare.plans(methods, self.seeds, *self.layers, found, self.comparing)
        return experiments, compare.About(methods, self.seeds, self.targets, origin)

    def compare(self, clients: Federation | None = None) -> None:
        """Run every method with every seed.

        Args:
            clients: The clients, where somebody has them already.
        """
        experiments, about = self.runs()
        compare.run_all(experiments, self.compare_folder, about=about, clients=clients, workers=self.workers)

    @property
    def _choosing(self) -> list[Mapping[str, Any]]:
        return [*self.layers, self.choosing]
