"""Studies: the trials of every method in one SQLite file, and what is to be tried next.

Only one process opens the file. A trial that is running when it is opened was left behind by a process that ended; it
is the next one to continue.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedapm.core.extras import require
from fedapm.core.random import key
from fedapm.core.search_space import Choices, Dimension, FloatRange, IntRange, Value
from fedapm.errors import FedapmError
from fedapm.tuning.method_search import MethodSearch
from fedapm.tuning.options import Options
from fedapm.tuning.space import Params
from fedapm.tuning.trial import Outcome

BUSY = 60
"""Seconds to wait while another program, such as a dashboard, reads the file."""
TrialState = Literal["running", "complete", "pruned", "diverged"]


def library() -> Any:
    """optuna, or an error that says how to install it."""
    return require("optuna", "tune", "tuning")


@contextmanager
def quiet() -> Iterator[None]:
    """Keep optuna from reporting every study and trial."""
    logging = library().logging
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def storage(path: Path) -> Any:
    """The file of all studies."""
    optuna = library()
    if "?" in str(path.absolute()):
        raise FedapmError(f"{path}: the trials' database cannot lie below a folder with a question mark in its name.")
    # optuna fills in what stands between braces
    url = f"sqlite:///{path.absolute()}".replace("{", "{{").replace("}", "}}")
    try:
        return optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": {"timeout": BUSY}})
    except Exception as error:
        # the database, its driver and its migrations each have errors of their own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FedapmError(
            f"{path} is no database of trials, or a damaged one ({reason}); tune into another folder."
        ) from None


@dataclass(frozen=True)
class Row:
    """One trial as it is recorded."""

    number: int
    state: TrialState
    value: float | None
    settings: Mapping[str, Any]


class Study:
    """The trials of one method.

    Args:
        store: The database, from :func:`storage`.
        search: The method, its space and its number of trials.
        options: How the search is done.
    """

    def __init__(self, store: Any, search: MethodSearch, options: Options) -> None:
        self.search, self.options = search, options
        self._optuna = library()
        self._study = self._optuna.create_study(
            storage=store,
            study_name=search.name,
            direction="maximize",
            pruner=_pruner(self._optuna, options),
            load_if_exists=True,
        )
        self._active: dict[int, Any] = {}
        self._last_step: dict[int, int] = {}

    @property
    def running(self) -> int:
        """How many trials are under way."""
        return len(self._active)

    @property
    def finished(self) -> list[int]:
        """The numbers of the trials that have ended."""
        return [t.number for t in self._trials() if t.state.is_finished()]

    @property
    def remaining(self) -> int:
        """How many trials are not finished or not begun."""
        return self.search.budget - len(self.finished)

    @property
    def started(self) -> int:
        """How many trials there are, finished or not."""
        return len(self._trials())

    def next_trial(self) -> tuple[int, dict[str, Any]] | None:
        """The number and the settings of the next trial; None where there are enough."""
        states = self._optuna.trial.TrialState
        trials = self._trials()
        abandoned = next((t for t in trials if t.state == states.RUNNING and t.number not in self._active), None)
        if abandoned is not None:
            self._study.sampler = self._sampler(abandoned.number)
            self._last_step[abandoned.number] = max(abandoned.intermediate_values, default=0)
            return self._settings(self._optuna.trial.Trial(self._study, abandoned._trial_id))
        # a trial waits where a process died after recording it and before starting it
        waiting = sum(t.state == states.WAITING for t in trials)
        number = len(trials) - waiting
        if number >= self.search.budget:
            return None
        if not waiting and (params := self._params(number)) is not None:
            self._study.enqueue_trial(params)
        self._study.sampler = self._sampler(number)
        return self._settings(self._study.ask())

    def report(self, number: int, step: int, value: float) -> bool:
        """Record a score on the way.

        Args:
            number: The trial.
            step: How far it is. A step that was reported before a restart is not recorded again.
            value: The score there.

        Returns:
            Whether the trial should stop. The first one, with the present settings, is always run to its end.
        """
        if self.options.pruner == "none":
            return False
        trial = self._active[number]
        if step > self._last_step[number]:
            trial.report(value, step)
        return bool(trial.should_prune()) and number > 0

    def finish(self, number: int, outcome: Outcome) -> None:
        """Record how a trial ended."""
        trial = self._active.pop(number)
        trial.set_user_attr("scores", [finite(score) for score in outcome.scores])
        if outcome.status == "pruned":
            self._study.tell(trial, state=self._optuna.trial.TrialState.PRUNED)
            return
        trial.set_user_attr("diverged", outcome.status == "diverged")
        scores = outcome.scores if outcome.status == "complete" else (self.options.scorer.worst,)
        self._study.tell(trial, math.fsum(scores) / len(scores))

    def rows(self) -> list[Row]:
        """Every trial that was started, in order."""
        return [
            Row(t.number, _state(t), _value(t), json.loads(t.user_attrs["settings"]))
            for t in self._trials()
            if "settings" in t.user_attrs
        ]

    def _trials(self) -> Sequence[Any]:
        trials: Sequence[Any] = self._study.get_trials(deepcopy=False)
        return trials

    def _params(self, number: int) -> Params | None:
        """The values of a trial, where the sampler does not draw them."""
        if number == 0:
            return self.search.initial_params
        return self.search.points[number - 1] if self.search.points is not None else None

    def _settings(self, trial: Any) -> tuple[int, dict[str, Any]]:
        """A trial's number and what it sets, which is the same after a restart."""
        self._active[trial.number] = trial
        self._last_step.setdefault(trial.number, 0)
        if "settings" in trial.user_attrs:
            return trial.number, json.loads(trial.user_attrs["settings"])
        first = trial.number == 0
        searched = [d for d in self.search.space if not first or d.name in self.search.initial_params]
        params = {d.name: _suggest(trial, d) for d in searched}
        settings = self.search.settings(None if first else params)
        trial.set_user_attr("settings", json.dumps(settings))
        return trial.number, settings

    def _sampler(self, number: int) -> Any:
        """A sampler for this trial, so that its draws depend on earlier results and not on restarts."""
        seed = key(self.options.seeds[0], "tuning", self.search.name, number) % 2**32
        start = max(4, min(10, self.search.budget // 3))
        return self._optuna.samplers.TPESampler(seed=seed, n_startup_trials=start)


def _pruner(optuna: Any, options: Options) -> Any:
    if options.pruner == "none":
        return optuna.pruners.NopPruner()
    rounds = options.rounds or 1
    if options.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=rounds // 5)
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=max(1, rounds // 9), reduction_factor=3)


def _suggest(trial: Any, d: Dimension) -> Value:
    value: Value
    match d.values:
        case Choices(listed):
            value = trial.suggest_categorical(d.name, listed)
        case IntRange(low, high):
            value = trial.suggest_int(d.name, low, high)
        case FloatRange(low, high, log):
            value = trial.suggest_float(d.name, low, high, log=log)
    return value


def _state(trial: Any) -> TrialState:
    if trial.state.name == "COMPLETE":
        return "diverged" if trial.user_attrs.get("diverged") else "complete"
    return "pruned" if trial.state.name == "PRUNED" else "running"


def _value(trial: Any) -> float | None:
    """The score of a trial that was run to its end; optuna gives a pruned one its last reported score."""
    return trial.value if trial.state.name == "COMPLETE" else None


def finite(score: float | None) -> float | None:
    """A score as JSON can hold it: None for what is not finite."""
    return score if score is not None and math.isfinite(score) else None
