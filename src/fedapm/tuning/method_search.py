"""The search of one method: its present settings, the space it is searched in, and the trials it gets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from fedapm import models
from fedapm.algorithms import METHODS, PRESETS, hyperparameters, method
from fedapm.core.random import numpy_generator
from fedapm.core.search_space import Choices, Dimension, FloatRange, SearchSpace, Units
from fedapm.core.solver import SGDConfig
from fedapm.errors import FedapmError, did_you_mean
from fedapm.experiments import compare
from fedapm.experiments.own import option_names
from fedapm.experiments.settings import Experiment, ModelSettings, merged, plain
from fedapm.tuning.options import Options
from fedapm.tuning.space import (
    Params,
    combination,
    corner_values,
    current_value,
    get_setting,
    grid_size,
    match_value,
    parse_dimension,
    sample,
    set_setting,
    spread_combinations,
    trial_settings,
    with_effect,
)
from fedapm.tuning.spaces import SPACES, named_space
from fedapm.tuning.units import converted

SPLIT = "model.split"
TABLES = ("algorithm", "solver", "model")
"""The tables whose settings can be searched."""


@dataclass(frozen=True)
class MethodSearch:
    """One method that is tuned."""

    name: str
    layers: tuple[Mapping[str, Any], ...]
    """The settings that are the same in all trials."""
    base: Experiment
    """The experiment they make for this method."""
    space: SearchSpace
    units: Units
    """The units of the trials' settings."""
    converted: Mapping[str, Any]
    """Settings that only change because the trials are in other units."""
    seeds: tuple[int, ...]
    points: tuple[Params, ...] | None
    """The values of every trial after the first, where they do not depend on earlier trials."""
    budget: int
    """How many trials there will be."""
    given: bool = False
    """Whether clients and network are given in Python."""

    @property
    def label(self) -> str:
        """The method's name as people write it."""
        return method(self.name).label

    @property
    def initial_params(self) -> Params:
        """The values of the present settings, as far as they are in the space."""
        tables = self._base_tables()
        matched = {d.name: match_value(d.values, current_value(d, tables)) for d in self.space}
        return {name: value for name, value in matched.items() if value is not None}

    def settings(self, params: Params | None) -> dict[str, Any]:
        """All that a trial sets, as ``table.key`` to value.

        Args:
            params: The trial's values in the space; None for the present settings.
        """
        tables = self._base_tables()
        if params is not None:
            return {**self.converted, **trial_settings(self.space, params, tables)}
        present = with_effect(self.space, {d.setting: get_setting(tables, d.setting) for d in self.space})
        return {**self.converted, **{setting: value for setting, value in present.items() if value is not None}}

    def tables(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """A trial's settings as the method's own tables, with their units."""
        own: dict[str, Any] = {}
        for setting, value in settings.items():
            set_setting(own, setting.removeprefix("algorithm."), value)
        return {self.name: own, "engine": {"units": self.units}}

    def tuned_tables(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What makes a comparison run as a trial did: the settings of all trials, and over them the trial's own."""
        common = merged(*compare.method_layers(self.name, self.layers))
        own = {key: value for key, value in common["algorithm"].items() if key != "name"}
        own |= {table: common[table] for table in compare.NESTED if common.get(table)}
        if any(d.lists for d in self.space) and "model" in own:
            # the trial says itself what is personal
            own["model"] = {k: v for k, v in own["model"].items() if k not in ("preset", "shared", "split")}
        return compare.overlay({self.name: plain(own)}, self.tables(settings))

    def experiments(self, settings: Mapping[str, Any]) -> list[Experiment]:
        """The runs of a trial, one for each seed."""
        return compare.plans([self.name], self.seeds, *self.layers, self.tables(settings), given=self.given)

    def _base_tables(self) -> dict[str, Any]:
        tables: dict[str, Any] = self.base.tables()
        for setting, value in self.converted.items():
            set_setting(tables, setting, value)
        return tables


def method_searches(
    names: Sequence[str],
    layers: Sequence[Mapping[str, Any]],
    options: Options,
    m: int,
    split: Callable[[Experiment], tuple[Experiment, Dimension]] | None = None,
    *,
    given: bool = False,
) -> list[MethodSearch]:
    """The search of every method, checked before the first trial.

    Args:
        names: The methods.
        layers: The settings of all trials, as in :func:`fedapm.experiments.compare.plans`.
        options: How the search is done.
        m: The number of clients.
        split: Gives the candidates of an experiment's network where ``model.split`` is searched, as
            :func:`fedapm.tuning.split.choices.split_dimension` does.
        given: Whether clients and network are given in Python.

    Raises:
        FedapmError: Where a setting or one of its values cannot be searched.
    """
    bases = compare.plans(names, options.seeds[:1], *layers, given=given)
    spaces = _spaces(bases, options, m)
    searches = []
    for base in bases:
        name = base.algorithm.name
        space = spaces[name]
        if split is not None and any(d.setting == SPLIT for d in space):
            base, found = split(base)
            space = tuple(found if d.setting == SPLIT else d for d in space)
        units = SPACES[options.space_name] if options.space_name is not None else base.engine.units
        changed = converted(type(base.algorithm), base.tables(), units, m)
        search = MethodSearch(
            name, tuple(layers), base, space, units, changed, options.seeds, None, options.trials, given
        )
        points = _points(search, options)
        _try_corners(search)
        searches.append(replace(search, points=points, budget=options.trials if points is None else 1 + len(points)))
    return searches


def _points(search: MethodSearch, options: Options) -> tuple[Params, ...] | None:
    """What the trials after the first one try; None where that depends on the results of earlier ones."""
    space, rest, sampler = search.space, options.trials - 1, options.chosen_sampler
    count = grid_size(space)
    if count is None:
        if sampler == "grid":
            unlisted = next((d for d in space if isinstance(d.values, FloatRange)), space[0])
            raise FedapmError(
                f"the grid sampler needs lists of values, but {unlisted.setting} is searched in {unlisted.values}; "
                "list its values or take another --sampler."
            )
        if sampler == "tpe":
            return None
        seed = options.seeds[0]
        return tuple(sample(space, numpy_generator(seed, "tuning", search.name, n + 1)) for n in range(rest))
    initial = search.initial_params
    inside = len(initial) == len(space)
    others = count - inside
    if others > rest and sampler == "tpe":
        return None
    if others <= rest:
        indices: Sequence[int] = range(count)
    else:
        stream = numpy_generator(options.seeds[0], "tuning", search.name)
        indices = spread_combinations(space, min(rest + 1, count), stream)
    points = (combination(space, index) for index in indices)
    return tuple(params for params in points if not (inside and params == initial))[:rest]


def _spaces(bases: Sequence[Experiment], options: Options, m: int) -> dict[str, SearchSpace]:
    """The space of each method, without settings that it or its network does not have."""
    if options.space_name is not None:
        spaces = {base.algorithm.name: named_space(options.space_name, type(base.algorithm), m) for base in bases}
    else:
        spaces = _user_spaces(bases, [parse_dimension(text) for text in options.search])
    return {
        base.algorithm.name: tuple(d for d in spaces[base.algorithm.name] if d.path in _searchable(base))
        for base in bases
    }


def _user_spaces(bases: Sequence[Experiment], dimensions: Sequence[Dimension]) -> dict[str, SearchSpace]:
    """The spaces that ``--search`` gives; ``fedprox.mu`` is for one method and wins over ``algorithm.mu``."""
    names = [base.algorithm.name for base in bases]
    if len({d.setting for d in dimensions}) != len(dimensions):
        raise FedapmError("--search names a setting twice.")
    spaces: dict[str, dict[str, Dimension]] = {name: {} for name in names}
    for d in sorted(dimensions, key=lambda d: d.path[0] not in TABLES):
        table, _, key = d.setting.partition(".")
        setting, methods = d.setting, names
        check_table(d, names)
        if table not in TABLES:
            setting = key if key.split(".")[0] in compare.NESTED else f"algorithm.{key}"
            methods = [table]
        path = tuple(setting.split("."))
        able = [base.algorithm.name for base in bases if base.algorithm.name in methods and path in _searchable(base)]
        if not able:
            known = {".".join(path) for base in bases for path in _searchable(base)}
            raise FedapmError(
                f"--search: no setting {d.setting!r} of {', '.join(methods)}; {did_you_mean(setting, known)}"
            )
        if setting == SPLIT and d.values != Choices(("auto",)):
            raise FedapmError(f"--search {d.setting} takes auto and nothing else.")
        for name in able:
            spaces[name][setting] = Dimension(setting, d.values)
    return {name: tuple(own.values()) for name, own in spaces.items()}


def check_table(d: Dimension, names: Sequence[str]) -> None:
    """Refuse a setting that is neither one of all methods nor one of a method that is tuned.

    Args:
        d: What ``--search`` names.
        names: The methods that are tuned.
    """
    setting, table = d.setting, d.path[0]
    if table in (*TABLES, *names):
        return
    if table in METHODS | PRESETS:
        raise FedapmError(f"--search names {setting}, but {table} is not among the methods that are tuned.")
    raise FedapmError(
        f"--search cannot vary {setting}; it takes settings of {', '.join(TABLES)} and of the methods "
        f"{', '.join(names)}."
    )


def _searchable(base: Experiment) -> set[tuple[str, ...]]:
    """Every setting of a method and its network that could be searched."""
    takes_split = base.algorithm.takes_split()
    network = models.MODELS.get(base.model.name or "")
    options = [p for p in inspect.signature(network).parameters if p != "classes"] if network is not None else []
    options = option_names(base.model) if base.model.factory is not None else options
    return {
        *(("algorithm", key) for key in hyperparameters(type(base.algorithm))),
        *(("solver", field.name) for field in fields(SGDConfig)),
        *(("model", field.name) for field in fields(ModelSettings) if field.name != "split" or takes_split),
        *(("model", "options", key) for key in options),
    }


def _try_corners(search: MethodSearch) -> None:
    """Check settings from all over the space, so that a value out of range is refused before the first trial."""
    corners = [corner_values(d.values) for d in search.space]
    for at in range(max(map(len, corners), default=0)):
        params = {d.name: values[at % len(values)] for d, values in zip(search.space, corners, strict=True)}
        search.experiments(search.settings(params))
