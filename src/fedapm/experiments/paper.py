"""Paper: everything the paper shows about one data set, one step after the other, each in a folder of its own.

First every method is tuned on validation data with the same budget, then all are compared on test data with what was
found, then ρ and the share of selected clients are varied. Whatever is there already is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedapm import tuning
from fedapm.algorithms import METHODS, FedAPM
from fedapm.errors import FedapmError, did_you_mean
from fedapm.experiments import compare, sweep
from fedapm.experiments.alike import Alike
from fedapm.experiments.vary import Axis
from fedapm.report import write_report
from fedapm.report.card import write_card
from fedapm.report.sweep.runs import write_sweep_report
from fedapm.runs.files import read_json, write_json
from fedapm.runs.folder import locked, refuse_foreign, tidy
from fedapm.runs.layout import PAPER_COMPARE, PAPER_FRACTION, PAPER_INFO, PAPER_RHO, PAPER_TUNE

logger = logging.getLogger(__name__)

SIX = ("fedapm", "fedalt", "fedsim", "fedavg", "fedprox", "local")


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    methods: tuple[str, ...] = SIX
    trials: int = 6
    """Trials of each method in the search."""
    tune_rounds: int = 15
    space: str = "wide"
    rounds: int = 50
    """Rounds of the comparison."""
    seeds: tuple[int, ...] = (0, 1, 2)
    sweep_rounds: int = 30
    sweep_seeds: tuple[int, ...] = (0, 1)
    rhos: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3)
    """ρ in per-client units, by which the drift is varied."""
    fractions: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5)

    def runs(self) -> dict[str, int]:
        """The number of runs of each step, for those who want to know how long it will take."""
        both = len([m for m in self.methods if m in ("fedapm", "fedalt")])
        return {
            PAPER_TUNE: len(self.methods) * self.trials,
            PAPER_COMPARE: len(self.methods) * len(self.seeds),
            PAPER_RHO: len(self.rhos) * len(self.sweep_seeds) if "fedapm" in self.methods else 0,
            PAPER_FRACTION: both * len(self.fractions) * len(self.sweep_seeds),
        }


BRIEF = Scale(
    trials=3,
    tune_rounds=4,
    rounds=10,
    seeds=(0, 1),
    sweep_rounds=5,
    sweep_seeds=(0,),
    rhos=(0.01, 0.03, 0.1, 0.3),
    fractions=(0.1, 0.3, 0.5),
)
"""For data sets whose rounds take seconds: about half an hour on two cores."""

FULL = Scale(
    methods=tuple(METHODS),
    trials=20,
    tune_rounds=100,
    rounds=300,
    seeds=(0, 1, 2, 3, 4),
    sweep_rounds=300,
    sweep_seeds=(0, 1, 2),
    rhos=(0.003, 0.01, 0.02, 0.03, 0.1, 0.2, 0.4, 1.0, 2.0),
)
"""The paper's rounds and its values of ρ, which for 20 clients are 0.02, 0.2, 0.4, 1 and 2 here, and smaller ones."""

LIGHT = ("digits",)


def scale(name: str, data: str) -> Scale:
    """The scale of that name for a data set."""
    if name == "small":
        return Scale() if data in LIGHT else BRIEF
    if name == "full":
        return FULL
    raise FedapmError(f"unknown scale {name!r}; {did_you_mean(name, ('small', 'full'))}")


@dataclass(frozen=True)
class Paper:
    """One data set's share of the paper, in a folder."""

    out: Path
    scale: Scale
    layers: Sequence[Mapping[str, Any]]
    workers: int | None

    def run(self, about: Mapping[str, Any]) -> None:
        """Do what is not done yet.

        Args:
            about: What else the folder was begun with; a folder that was begun with something else is refused.
        """
        with locked(self.out):
            self._begin(about)
            steps = [self._tune, self._compare, self._sweep_rho, self._sweep_fraction]
            for number, (step, (name, runs)) in enumerate(zip(steps, self.scale.runs().items(), strict=True), start=1):
                if runs:
                    logger.info("Step %d of %d: %s, %d runs", number, len(steps), name, runs)
                    step()

    def _begin(self, about: Mapping[str, Any]) -> None:
        asked = {"scale": {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self.scale).items()}, **about}
        path = self.out / PAPER_INFO
        if path.is_file():
            before = read_json(path)
            changed = sorted(k for k in {*before, *asked} if before.get(k) != asked.get(k))
            if changed:
                raise FedapmError(f"{self.out} was begun with other {', '.join(changed)}; use another folder.")
            tidy(self.out)
            return
        refuse_foreign(self.out, PAPER_INFO, "paper")
        # refuse what is wrong before anything is left behind
        compare.plans(self.scale.methods, self.scale.seeds, *self.layers)
        write_json(path, asked)

    @property
    def _alike(self) -> Alike:
        return Alike(
            self.out / PAPER_TUNE,
            self.out / PAPER_COMPARE,
            self.scale.methods,
            self.scale.seeds,
            self.layers,
            tuning.Options(trials=self.scale.trials, rounds=self.scale.tune_rounds, space=self.scale.space),
            {"engine": {"rounds": self.scale.rounds}},
            workers=self.workers,
        )

    def _tune(self) -> None:
        self._alike.tune()

    def _compare(self) -> None:
        self._alike.compare()
        write_report(self.out / PAPER_COMPARE)
        write_card(self.out / PAPER_COMPARE)

    def _sweep_rho(self) -> None:
        self._sweep(PAPER_RHO, Axis("algorithm.rho", self.scale.rhos), (FedAPM.name,))

    def _sweep_fraction(self) -> None:
        methods = [name for name in ("fedapm", "fedalt") if name in self.scale.methods]
        self._sweep(PAPER_FRACTION, Axis("engine.fraction", self.scale.fractions), methods)

    def _sweep(self, name: str, axis: Axis, methods: Sequence[str]) -> None:
        known, tuned, _ = self._alike.tuned(methods)
        out = self.out / name
        layers = [*self.layers, tuned, {"engine": {"rounds": self.scale.sweep_rounds, "save_models": False}}]
        runs = sweep.members([axis], known, self.scale.sweep_seeds, *layers)
        sweep.run_all([axis], runs, out, workers=self.workers)
        write_sweep_report(out)
        write_card(out)


def adjusted(
    base: Scale, methods: Sequence[str] | None, seeds: Sequence[int] | None, rounds: int | None, trials: int | None
) -> Scale:
    """A scale with some of its numbers replaced by the user's."""
    chosen = base
    if methods is not None:
        chosen = replace(chosen, methods=tuple(methods))
    if seeds is not None:
        chosen = replace(chosen, seeds=tuple(seeds), sweep_seeds=tuple(seeds[: len(chosen.sweep_seeds)]))
    if rounds is not None:
        chosen = replace(
            chosen,
            rounds=rounds,
            tune_rounds=min(chosen.tune_rounds, rounds),
            sweep_rounds=min(chosen.sweep_rounds, rounds),
        )
    if trials is not None:
        chosen = replace(chosen, trials=trials)
    return chosen
