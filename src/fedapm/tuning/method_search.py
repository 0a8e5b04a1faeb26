"""Subjects: each method with its present settings, the space it is searched in, and the trials it gets."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from fedapm import models
from fedapm.algorithms import METHODS, PRESETS, hyperparameters, method
from fedapm.core.random import numpy_generator
from fedapm.core.solver import SGDConfig
from fedapm.errors import FedapmError, did_you_mean
from fedapm.experiments import compare
from fedapm.experiments.settings import Experiment, ModelSettings, plain
from fedapm.tuning.options import Options
from fedapm.tuning.space import (
    Dimension,
    Params,
    Range,
    Space,
    combination,
    draw,
    effective,
    looked_up,
    parse,
    put,
    settings_of,
    size,
)
from fedapm.tuning.spaces import SPACES
from fedapm.tuning.units import Units, converted

TABLES = ("algorithm", "solver", "model")


@dataclass(frozen=True)
class MethodSearch:
    """One method that is tuned."""

    name: str
    layers: tuple[Mapping[str, Any], ...]
    """The settings that are the same in all trials."""
    base: Experiment
    """What they come to for this method."""
    space: Space
    units: Units
    fixed: Mapping[str, Any]
    """Settings that only change because the trials are in other units."""
    seeds: tuple[int, ...]
    points: tuple[Params, ...] | None
    """What every trial after the first one tries, where that is known beforehand."""
    budget: int
    """How many trials there will be."""

    @property
    def label(self) -> str:
        """The method's name as people write it."""
        return method(self.name).label

    @property
    def start(self) -> Params:
        """The values of the present settings, as far as they are in the space."""
        now = {d.name: d.values.match(d.present(self._present())) for d in self.space}
        return {name: value for name, value in now.items() if value is not None}

    def settings(self, params: Params | None) -> dict[str, Any]:
        """All that a trial sets, as ``table.key`` to value; None for the present settings."""
        tables = self._present()
        if params is not None:
            return {**self.fixed, **settings_of(self.space, params, tables)}
        kept = effective(self.space, {d.setting: looked_up(tables, d.setting) for d in self.space})
        return {**self.fixed, **{setting: value for setting, value in kept.items() if value is not None}}

    def tables(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings as the method's own tables, with the units they are meant in."""
        own: dict[str, Any] = {}
        for setting, value in settings.items():
            put(own, setting.removeprefix("algorithm."), value)
        return {self.name: own, "engine": {"units": self.units}}

    def chosen(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What makes a comparison run as a trial did: what all trials were given, and over it the trial's own."""
        given = compare.laid(*compare.method_layers(self.name, self.layers))
        own = {key: value for key, value in given["algorithm"].items() if key != "name"}
        own |= {table: given[table] for table in compare.NESTED if given.get(table)}
        return compare.laid({self.name: plain(own)}, self.tables(settings))

    def _present(self) -> dict[str, Any]:
        tables: dict[str, Any] = self.base.tables()
        for setting, value in self.fixed.items():
            put(tables, setting, value)
        return tables

    def experiments(self, settings: Mapping[str, Any]) -> list[Experiment]:
        """The runs of a trial, one for each seed."""
        return compare.plans([self.name], self.seeds, *self.layers, self.tables(settings))


def subjects(names: Sequence[str], layers: Sequence[Mapping[str, Any]], options: Options, m: int) -> list[MethodSearch]:
    """Every method's part in the search, with m clients; what cannot be tried is refused here."""
    bases = compare.plans(names, options.seeds[:1], *layers)
    spaces = _spaces(bases, options, m)
    found = []
    for base in bases:
        name = base.algorithm.name
        space = spaces[name]
        units: Units = SPACES[options.space_name][0] if options.space_name is not None else base.engine.units
        fixed = converted(name, base.tables(), units, m)
        made = MethodSearch(name, tuple(layers), base, space, units, fixed, options.seeds, None, options.trials)
        points = _points(made, options)
        budget = options.trials if points is None else 1 + len(points)
        _try_corners(made)
        found.append(replace(made, points=points, budget=budget))
    return found


def _points(subject: MethodSearch, options: Options) -> tuple[Params, ...] | None:
    """What the trials after the first one try; None where that depends on how earlier ones went."""
    space, rest, sampler = subject.space, options.trials - 1, options.chosen_sampler
    count = size(space)
    if count is None:
        if sampler == "grid":
            unlisted = next((d for d in space if isinstance(d.values, Range)), space[0])
            raise FedapmError(
                f"the grid sampler needs lists of values, but {unlisted.setting} is searched in {unlisted.values}; "
                "list its values or take another --sampler."
            )
        if sampler == "tpe":
            return None
        seed = options.seeds[0]
        return tuple(draw(space, numpy_generator(seed, "tuning", subject.name, n + 1)) for n in range(rest))
    start = subject.start
    inside = len(start) == len(space)
    others = count - inside
    if others > rest and sampler == "tpe":
        return None
    if others <= rest:
        every = (combination(space, index) for index in range(count))
        return tuple(params for params in every if not (inside and params == start))
    stream = numpy_generator(options.seeds[0], "tuning", subject.name)
    drawn = [combination(space, int(index)) for index in stream.choice(count, min(rest + 1, count), replace=False)]
    return tuple(params for params in drawn if not (inside and params == start))[:rest]


def _spaces(bases: Sequence[Experiment], options: Options, m: int) -> dict[str, Space]:
    if options.space_name is not None:
        make = SPACES[options.space_name][1]
        named = {base.algorithm.name: make(base.algorithm.name, m) for base in bases}
    else:
        named = _own(bases, [parse(text) for text in options.search])
    return {
        base.algorithm.name: tuple(d for d in named[base.algorithm.name] if d.path in _settings(base)) for base in bases
    }


def _own(bases: Sequence[Experiment], search: Sequence[Dimension]) -> dict[str, Space]:
    """A search of the user's, as each method sees it; ``fedprox.mu`` is for one and wins over ``algorithm.mu``."""
    names = [base.algorithm.name for base in bases]
    if len({d.setting for d in search}) != len(search):
        raise FedapmError("--search names a setting twice.")
    found: dict[str, dict[str, Dimension]] = {name: {} for name in names}
    for special in (False, True):
        for d in search:
            table, _, key = d.setting.partition(".")
            if (table not in TABLES) != special:
                continue
            if special and table not in names:
                _refuse_table(d.setting, table, names)
            setting = d.setting
            if special:
                setting = key if key.split(".")[0] in compare.NESTED else f"algorithm.{key}"
            able = [b.algorithm.name for b in bases if tuple(setting.split(".")) in _settings(b)]
            able = [name for name in able if not special or name == table]
            if not able:
                known = {".".join(path) for base in bases for path in _settings(base)}
                raise FedapmError(
                    f"--search: no setting {d.setting!r} of {table if special else ', '.join(names)}; "
                    f"{did_you_mean(setting, known)}"
                )
            for name in able:
                found[name][setting] = Dimension(setting, d.values)
    return {name: tuple(own.values()) for name, own in found.items()}


def _refuse_table(setting: str, table: str, names: Sequence[str]) -> None:
    if table in METHODS | PRESETS:
        raise FedapmError(f"--search names {setting}, but {table} is not among the methods that are tuned.")
    raise FedapmError(
        f"--search cannot vary {setting}; it takes settings of {', '.join(TABLES)} and of the methods "
        f"{', '.join(names)}."
    )


def _settings(base: Experiment) -> set[tuple[str, ...]]:
    """Every setting of a method and its network that could be searched."""
    network = models.MODELS.get(base.model.name or "")
    options = [p for p in inspect.signature(network).parameters if p != "classes"] if network is not None else []
    return {
        *(("algorithm", key) for key in hyperparameters(type(base.algorithm))),
        *(("solver", field.name) for field in fields(SGDConfig)),
        *(("model", field.name) for field in fields(ModelSettings)),
        *(("model", "options", key) for key in options),
    }


def _try_corners(subject: MethodSearch) -> None:
    """Settings from all over the space, so that a value out of range is refused before the first trial."""
    corners = [d.values.corners() for d in subject.space]
    for at in range(max(map(len, corners), default=0)):
        params = {d.name: values[at % len(values)] for d, values in zip(subject.space, corners, strict=True)}
        subject.experiments(subject.settings(params))
