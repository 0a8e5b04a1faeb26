"""The named spaces: every method has one, both grids are the same one, and units do not change a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedapm import METHODS, FedAvg
from fedapm.algorithms import PRESETS, hyperparameters, method
from fedapm.core.search_space import PERSONAL_SPACE, Choices, choices
from fedapm.data import Federation
from fedapm.experiments import build, compare
from fedapm.experiments.run import execute
from fedapm.tuning import Options
from fedapm.tuning.method_search import MethodSearch, method_searches
from fedapm.tuning.space import get_setting, set_setting
from fedapm.tuning.spaces import COMMON_SPACE, SPACES
from fedapm.tuning.units import converted
from tests.helpers.unit import refused

M = 4
LAYER = {
    "data": {"clients": M, "validation": 0.2},
    "engine": {"fraction": 0.5, "rounds": 1},
    "solver": {"epochs": 1, "batch_size": 150},
}
EVERY = [*METHODS, *PRESETS]


@pytest.fixture(scope="module")
def clients() -> Federation:
    return build.federation(build.resolve(LAYER).data)


def method_search(name: str, *layers: Any, **options: Any) -> MethodSearch:
    (found,) = method_searches([name], [LAYER, *layers], Options(**options), M)
    return found


def test_a_method_searches_and_converts_settings_of_its_own() -> None:
    for name in EVERY:
        kind = method(name)
        own = {f"algorithm.{key}" for key in hyperparameters(kind)}
        assert {d.setting for d in kind.search_space + kind.search_grid} | {*kind.unit_powers} <= own, name
        assert kind.search_space or not own, "what a method has of its own is searched"


def test_a_new_method_is_tuned_by_what_its_class_says(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Weighted(FedAvg):
        name = "weighted"
        label = "Weighted"
        search_space = (choices("algorithm.weight", 0.5, 1.0),)
        search_grid = (choices("algorithm.weight", 1.0, 2.0),)
        unit_powers: ClassVar[Mapping[str, int]] = {"algorithm.weight": -1}

        weight: float = 0.5

    monkeypatch.setitem(METHODS._items, "weighted", Weighted)
    assert [d.setting for d in method_search("weighted").space][-1] == "algorithm.weight"
    assert values(method_search("weighted", space="client"), "algorithm.weight") == (1.0, 2.0)
    assert values(method_search("weighted", space="paper"), "algorithm.weight") == (1.0 / M, 2.0 / M)


@pytest.mark.parametrize("space", SPACES)
def test_every_value_of_a_named_space_is_a_good_one(space: str) -> None:
    for found in method_searches(EVERY, [LAYER], Options(trials=7, space=space, sampler="random"), M):
        assert "solver.lr" in {d.setting for d in found.space}, found.name
        assert {d.path[0] for d in found.space} <= {"solver", "algorithm", "model"}
        assert found.budget == 7 or space != "wide", "every method gets the same number of trials"


def test_common_settings_have_the_same_distribution_for_every_method() -> None:
    cifar = {"data": {"name": "cifar10"}}
    for found in method_searches(EVERY, [LAYER, cifar], Options(), M):
        values = {d.setting: d.values for d in found.space}
        assert {d.setting: d.values for d in COMMON_SPACE}.items() <= values.items(), found.name


def test_every_method_with_a_personal_part_is_searched_for_what_keeps_it_from_overfitting() -> None:
    regularized = {"solver.weight_decay_v", "solver.prior_v", "solver.dropout_v", "solver.validation_v"}
    for found in method_searches(EVERY, [LAYER], Options(), M):
        values = {d.setting: d.values for d in found.space if d.setting in regularized}
        expected = {d.setting: d.values for d in PERSONAL_SPACE} if method(found.name).scope != "whole" else {}
        assert values == expected, found.name
    assert {d.setting for d in PERSONAL_SPACE} == regularized


def test_the_present_settings_are_in_the_wide_space() -> None:
    for found in method_searches(EVERY, [LAYER], Options(), M):
        assert {d.name for d in found.space} == {*found.initial_params}, found.name
        assert "model.options.dropout" not in {d.setting for d in found.space}, "this network has none"


def values(found: MethodSearch, setting: str) -> tuple[Any, ...]:
    (one,) = (d.values for d in found.space if d.setting == setting)
    assert isinstance(one, Choices)
    return one.values


def test_the_papers_grid_is_the_papers() -> None:
    found = method_search("fedapm-paper", space="paper", trials=99)
    assert values(found, "solver.lr") == (0.05, 0.1, 0.5, 1.0)
    assert values(found, "algorithm.rho") == (0.001, 0.01, 0.02, 0.05, 0.1)
    assert found.budget == 21, "20 points, and the settings without a search"
    assert found.experiments(found.settings(None))[0].engine.units == "paper"


@pytest.mark.parametrize("name", [name for name in EVERY if method(name).search_grid] + ["fedavg"])
def test_both_grids_are_the_same_runs(name: str) -> None:
    paper, client = method_search(name, space="paper", trials=99), method_search(name, space="client", trials=99)
    assert paper.points is not None
    assert client.points is not None
    assert len(paper.points) == len(client.points)
    for ours, theirs in [*zip(client.points, paper.points, strict=True)][::5]:
        (run,) = paper.experiments(paper.settings(theirs))
        again = converted(method(name), run.tables(), "client", M)
        for setting, value in client.settings(ours).items():
            assert math.isclose(again.get(setting, get_setting(run.tables(), setting)), value), setting


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].search_grid or METHODS[name].unit_powers])
def test_the_same_settings_in_other_units_are_the_same_run(name: str, clients: Federation) -> None:
    more = {"algorithm": {"xi": 0.5, "max_epochs": 2, "lr_v": 0.1}} if name == "fedapm" else {}
    (here,) = method_search(name, more).experiments({})
    tables: dict[str, Any] = here.tables()
    changed = converted(method(name), tables, "paper", M)
    assert changed["solver.lr"] == M * here.solver.lr
    assert converted(method(name), tables, "client", M) == {}
    for setting, value in {**changed, "engine.units": "paper"}.items():
        set_setting(tables, setting, value)
    there = type(here).from_tables(tables)
    losses = []
    for settings in (here, there):
        last = execute(build.plan(settings, clients), progress=False).records[-1]
        losses.append(next(iter(last["evaluations"].values()))["train_loss"]["mean"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.parametrize("given", ["client", "paper"])
@pytest.mark.parametrize("space", SPACES)
def test_the_first_trial_is_the_run_without_a_search(given: str, space: str, clients: Federation) -> None:
    found = method_search("fedapm", {"engine": {"units": given}}, space=space)
    (base,), (first,) = found.experiments({}), found.experiments(found.settings(None))
    base = type(base).from_tables({**base.tables(), "engine": {**base.tables()["engine"], "units": given}})
    losses = [
        execute(build.plan(run, clients), progress=False).records[-1]["evaluations"]["model"]["train_loss"]["mean"]
        for run in (base, first)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_a_small_grid_is_tried_once_whole_and_a_large_one_in_part() -> None:
    small, large = method_search("fedavg", space="paper"), method_search("fedapm-paper", space="paper", trials=12)
    assert small.points is not None
    assert [params["solver.lr"] for params in small.points] == [0.05, 0.1, 0.5, 1.0]
    assert small.budget == 5
    assert large.points is not None
    assert large.budget == 12
    assert len({tuple(params.items()) for params in large.points}) == 11
    assert large.points == method_search("fedapm-paper", space="paper", trials=12).points
    assert large.points != method_search("fedapm-paper", space="paper", trials=12, seeds=(1,)).points


def test_settings_that_are_tried_first_are_not_tried_again() -> None:
    found = method_search("fedavg", search=("solver.lr=0.1,0.2,0.4",))
    assert found.points == ({"solver.lr": 0.1}, {"solver.lr": 0.4}), "0.2 is what digits has"
    assert found.budget == 3
    for trials in (1, 2, 3):
        few = method_search("fedavg", search=("solver.lr=0.1,0.2,0.4",), trials=trials, sampler="random")
        assert few.points is not None
        assert (few.budget, len(few.points)) == (trials, trials - 1)
        assert {"solver.lr": 0.2} not in few.points


def test_random_draws_depend_on_method_and_number_alone() -> None:
    found = method_search("fedavg", sampler="random", trials=5)
    more = method_search("fedavg", sampler="random", trials=8)
    assert found.points is not None
    assert more.points is not None
    assert more.points[:4] == found.points
    assert len({tuple(params.items()) for params in more.points}) == 7


def test_a_setting_that_a_method_lacks_is_left_out_for_it() -> None:
    search = ("algorithm.rho=0.1,0.2", "solver.lr=0.1,0.3", "fedprox.mu=0.5,0.6", "fedprox.solver.lr=0.7,0.8")
    fedapm, fedprox, local = method_searches(["fedapm", "fedprox", "local"], [LAYER], Options(search=search), M)
    assert [d.setting for d in fedapm.space] == ["algorithm.rho", "solver.lr"]
    assert {d.setting: str(d.values) for d in fedprox.space} == {"solver.lr": "0.7,0.8", "algorithm.mu": "0.5,0.6"}
    assert [d.setting for d in local.space] == ["solver.lr"]


@pytest.mark.parametrize(
    ("search", "mentions"),
    [
        (["algorithm.roh=0.1,0.2"], ["'algorithm.roh'", "algorithm.rho"]),
        (["solver.l=0.1,0.2"], ["'solver.l'"]),
        (["model.options.widht=8,16"], ["'model.options.widht'", "width"]),
        (["data.clients=3,4"], ["data.clients"]),
        (["engine.fraction=0.1,0.2"], ["engine.fraction"]),
        (["fedprox.mu=0.1,0.2"], ["fedprox", "not among"]),
        (["fedapm.mo=0.1,0.2"], ["'fedapm.mo'", "fedapm"]),
        (["solver.lr=0.1", "solver.lr=0.2"], ["twice"]),
        (["solver.lr=0.1,-1"], ["lr", "-1"]),
        (["solver.epochs=lin:1:4"], ["epochs"]),
        (["algorithm.v_at=shared,global"], ["v_at", "'global'"]),
        (["algorithm.rho=big,small"], ["rho", "'big'"]),
    ],
)
def test_a_search_that_cannot_be_is_refused_before_it_begins(search: list[str], mentions: list[str]) -> None:
    with refused(*mentions):
        method_searches(["fedapm", "local"], [LAYER], Options(search=tuple(search)), M)


def test_the_grid_sampler_wants_lists() -> None:
    with refused("grid", "solver.lr", "log:0.005:1.0"):
        method_search("fedavg", sampler="grid")


@pytest.mark.parametrize(
    ("options", "mentions"),
    [
        ({"space": "papre"}, ["'papre'", "'paper'"]),
        ({"sampler": "tep"}, ["'tep'", "'tpe'"]),
        ({"pruner": "medium"}, ["'medium'", "'median'"]),
        ({"metric": "acuracy"}, ["'acuracy'", "'accuracy'"]),
        ({"metric": "train_loss"}, ["'train_loss'", "'test_loss'"]),
        ({"select": "lats"}, ["'lats'", "'last'"]),
        ({"trials": 0}, ["--trials 0"]),
        ({"rounds": 0}, ["--rounds 0"]),
        ({"seeds": ()}, ["seed"]),
        ({"seeds": (1, 1)}, ["seed"]),
        ({"space": "wide", "search": ("solver.lr=1",)}, ["--space", "--search"]),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], mentions: list[str]) -> None:
    with refused(*mentions):
        Options(**options)


def test_a_loss_may_be_written_as_its_negative() -> None:
    assert Options(metric="-test_loss").metric == "test_loss"
    assert Options(metric="-test_loss").scorer.worst == -math.inf


def test_spaces_are_described_in_the_documentation() -> None:
    page = Path(__file__).parents[2].joinpath("docs/how-to/tune.md").read_text("utf-8")
    assert all(f"`{name}`" in page for name in SPACES)


def test_patterns_laid_over_a_preset_are_what_tuned_settings_say() -> None:
    found = method_search("fedalt", {"model": {"preset": "output"}}, {"model": {"personal": ["*bias*"]}})
    tuned = found.tuned_tables(found.settings(None))
    assert tuned["fedalt"]["model"] == {"personal": ["*bias*"]}
    (run,) = compare.plans(["fedalt"], [0], LAYER, tuned)
    assert run.model.rule.personal == ("*bias*",)
