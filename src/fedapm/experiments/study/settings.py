"""A study in one TOML file: what is the same for all cases, and the cases, each key checked.

docs/how-to/run-a-study.md describes the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from pydantic import PositiveInt

from fedapm.algorithms import METHODS, PRESETS, FedAlt, FedAPM, FedAPMPaper, method
from fedapm.core.metrics import METRICS
from fedapm.errors import FedapmError, did_you_mean
from fedapm.experiments import build
from fedapm.experiments.settings import Experiment, Tables, in_folder, plain, read_toml, validated
from fedapm.experiments.vary import Axis, parse_vary
from fedapm.report.sweep.runs import is_numeric
from fedapm.runs import files
from fedapm.tuning import Options
from fedapm.tuning.method_search import check_table
from fedapm.tuning.space import parse_dimension

Split = Literal["chosen", "paper"]
UNSPLIT = "unsplit"
"""What stands for the split of methods that take none."""
ALL: Literal["all"] = "all"
TABLES = tuple(f.name for f in fields(Experiment) if f.name != "algorithm")
CASE_KEYS = ("title", "file", "choosing", *TABLES, *METHODS, *PRESETS)
"""What a case may have beside the keys of a :class:`Plan`."""


def all_methods() -> tuple[str, ...]:
    """Every method, and FedAPM as published."""
    return (*METHODS, FedAPMPaper.name)


@dataclass(frozen=True)
class Plan:
    """How much of everything. The study says it for all cases, and a case may say otherwise."""

    methods: tuple[str, ...] | Literal["all"] = ALL
    """The methods; `all` are all methods and `fedapm-paper`."""
    splits: tuple[Split, ...] = ("chosen", "paper")
    """Which splits methods that take one get. `chosen`: found for FedAPM on validation data. `paper`: the one that the
    case's settings name, or else the data set's own."""
    cohorts: tuple[float, ...] = (0.3,)
    """Shares of clients in a round."""
    rounds: PositiveInt | None = None
    """Rounds of a run; the case's `engine.rounds` if not given."""
    split_runs: PositiveInt = 16
    """What the search of the split may cost, in runs of that many rounds; with 16 the last few splits are trained to
    their end, with two seeds."""
    trials: PositiveInt = 8
    """Trials of each method in the search, the first of them with its present settings."""
    tune_rounds: PositiveInt | None = None
    """Rounds of a trial; those of a run if not given."""
    tune_seeds: tuple[int, ...] = (100,)
    """Seeds of the trials. They are other ones than those of the runs."""
    space: str = "wide"
    """The space that is searched, as in `fedapm tune --space`."""
    search: tuple[str, ...] = ()
    """A space of one's own, as in `fedapm tune --search`."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds of the runs on test data."""
    sweeps: tuple[str, ...] = ()
    """Settings that are varied afterwards, each by itself, as in `fedapm sweep --vary`: for FedAPM and FedAlt as they
    were tuned with the first split, with the first cohort and the first three seeds."""
    targets: dict[str, float] = field(default_factory=dict)
    """Levels whose rounds and bytes the reports of comparisons show, such as `accuracy = 0.9`."""

    def __post_init__(self) -> None:
        named: tuple[tuple[str, Any], ...] = (
            ("methods", self.method_names),
            ("splits", self.splits),
            ("cohorts", self.cohorts),
            ("seeds", self.seeds),
            ("tune_seeds", self.tune_seeds),
        )
        for name, values in named:
            if not values or len(set(values)) != len(values):
                raise FedapmError(f"{name} should name at least one, and each only once.")
        for name in self.method_names:
            method(name)
        for share in self.cohorts:
            if not 0 < share <= 1:
                raise FedapmError(f"cohorts: {share} is not a share of clients between 0 and 1.")
        for name in self.targets:
            if name not in METRICS:
                raise FedapmError(f"unknown metric {name!r} in targets; {did_you_mean(name, METRICS)}")
        if set(self.seeds) & set(self.tune_seeds):
            raise FedapmError("seeds and tune_seeds have a seed in common; choose settings with other seeds.")
        self.options(1, self.method_names)
        for text in self.search:
            check_table(parse_dimension(text), self.method_names)
        for axis in self.axes:
            if not is_numeric(axis.values):
                raise FedapmError(f"sweeps: {axis.setting} is varied over what is no number; use fedapm sweep for it.")

    @property
    def axes(self) -> list[Axis]:
        """What is varied afterwards."""
        try:
            return [parse_vary(text) for text in self.sweeps]
        except FedapmError as error:
            raise FedapmError(str(error).replace("--vary", "sweeps", 1)) from None

    def swept(self, axis: Axis) -> list[str]:
        """The methods for which a setting is varied."""
        return [name for name in (FedAPM.name, FedAlt.name) if name in self.method_names and axis.concerns(name)]

    @property
    def method_names(self) -> tuple[str, ...]:
        """The methods by name."""
        return all_methods() if self.methods == ALL else tuple(self.methods)

    def options(self, rounds: int, methods: Sequence[str]) -> Options:
        """How some of the methods are searched: nothing in it depends on which trial ends first.

        Args:
            rounds: Rounds of a trial.
            methods: Those that are tuned together; what is searched of other methods alone is left out.
        """
        others = {name for name in self.method_names if name not in methods}
        return Options(
            trials=self.trials,
            rounds=rounds,
            seeds=self.tune_seeds,
            space=None if self.search else self.space,
            search=tuple(text for text in self.search if text.partition(".")[0].strip() not in others),
            sampler="random",
            pruner="none",
        )


@dataclass(frozen=True)
class Case:
    """One data set with its settings."""

    name: str
    title: str
    plan: Plan
    tables: tuple[Tables, ...]
    """Layers of settings: the experiment file, then the case's own tables."""
    choosing: dict[str, Any]
    """Settings of the data that are different while the split and the settings are chosen."""

    def layers(self, cohort: float, root: Path | None = None) -> list[Tables]:
        """The settings of all runs with a cohort.

        Args:
            cohort: The share of clients in a round.
            root: The folder of data sets, where the command line gives one.
        """
        engine: dict[str, Any] = {"fraction": cohort, "save_models": False}
        place: list[Tables] = [{"data": {"root": str(root)}}] if root is not None else []
        return [*self.tables, *place, {"engine": engine | {"rounds": self.rounds}}]

    @property
    def experiment(self) -> Experiment:
        """FedAPM under the case's own tables; also to see what is wrong with them."""
        common = [{k: v for k, v in layer.items() if k in TABLES} for layer in self.tables]
        return build.resolve(*common, {"algorithm": {"name": FedAPM.name}})

    @property
    def rounds(self) -> int:
        """Rounds of a run."""
        return self.plan.rounds or self.experiment.engine.rounds

    @property
    def tune_rounds(self) -> int:
        """Rounds of a trial."""
        return min(self.plan.tune_rounds or self.rounds, self.rounds)

    @property
    def groups(self) -> dict[str, list[str]]:
        """The methods that are tuned and run together, by split; those that take none are run once."""
        able = [name for name in self.plan.method_names if method(name).takes_split()]
        others = [name for name in self.plan.method_names if name not in able]
        groups: dict[str, list[str]] = dict.fromkeys(self.plan.splits, able) if able else {}
        return groups | ({UNSPLIT: others} if others else {})

    def as_dict(self) -> dict[str, Any]:
        """What a folder must have been begun with to go on with this case."""
        plan = plain(asdict(self.plan)) | {"methods": list(self.plan.method_names)}
        plan |= {"rounds": self.rounds, "tune_rounds": self.tune_rounds}
        return {"title": self.title, "plan": plan, "settings": list(self.tables), "choosing": self.choosing}


@dataclass(frozen=True)
class Study:
    """A whole file."""

    title: str
    cases: tuple[Case, ...]

    def only(self, names: list[str]) -> list[Case]:
        """The cases of these names; all without any."""
        known = [case.name for case in self.cases]
        for name in names:
            if name not in known:
                raise FedapmError(f"--only {name}: the study has no such case; {did_you_mean(name, known)}")
        return [case for case in self.cases if case.name in names or not names]


def read_study(path: Path) -> Study:
    """Read and check a study.

    Args:
        path: The file. Experiment files that it names are looked for beside it.

    Raises:
        FedapmError: In one line, with the case and the key that is wrong.
    """
    if path.is_dir():
        raise FedapmError(f"{path} is a folder; give the study's TOML file.")
    content = files.read_toml(path)
    cases = content.pop("cases", None)
    title = content.pop("title", path.stem)
    if not isinstance(title, str):
        raise FedapmError(f"{path}: title should be a text.")
    if not isinstance(cases, Mapping) or not cases or not all(isinstance(case, Mapping) for case in cases.values()):
        raise FedapmError(f"{path} has no cases; give each a table such as [cases.digits].")
    validated(Plan, "study", content)
    return Study(title, tuple(_named_case(name, case, content, path.parent) for name, case in cases.items()))


def _named_case(name: str, content: Mapping[str, Any], common: Mapping[str, Any], folder: Path) -> Case:
    where = f"cases.{name}"
    try:
        return _case(name, where, content, common, folder)
    except FedapmError as error:
        raise FedapmError(str(error) if where in str(error) else f"[{where}]: {error}") from None


def _case(name: str, where: str, content: Mapping[str, Any], common: Mapping[str, Any], folder: Path) -> Case:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        raise FedapmError(f"[{where}]: a case is a folder; name it with lower-case letters, digits and hyphens.")
    keys = [f.name for f in fields(Plan)]
    for key in content:
        if key not in (*keys, *CASE_KEYS):
            raise FedapmError(f"unknown setting '{where}.{key}'; {did_you_mean(key, (*keys, *CASE_KEYS))}")
    plan = validated(Plan, where, {**common, **{key: content[key] for key in keys if key in content}})
    layers: list[Tables] = []
    if "file" in content:
        layers.append(read_toml(folder / str(content["file"])))
    if own := {key: value for key, value in content.items() if key in (*TABLES, *METHODS, *PRESETS)}:
        layers.append(in_folder(own, folder))
    if not any("data" in layer for layer in layers):
        raise FedapmError(f"[{where}] names no data; give it a file or a table [{where}.data].")
    choosing = content.get("choosing", {})
    if not isinstance(choosing, Mapping):
        raise FedapmError(f"{where}.choosing should be a table of settings of the data.")
    case = Case(name, str(content.get("title", name)), plan, tuple(layers), dict(choosing))
    if case.experiment.engine.count is not None:
        raise FedapmError("engine.count is set, so cohorts would have no effect; leave it out.")
    if case.experiment.model.split is not None:
        raise FedapmError('model.split = "auto" is what splits = ["chosen"] does; leave it out.')
    if case.choosing.get("validation", 1) == 0:
        raise FedapmError("choosing.validation = 0 leaves nothing to choose by; give a share.")
    return case
