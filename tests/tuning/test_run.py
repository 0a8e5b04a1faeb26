"""Whole searches on few clients: the same for every method, blind to test data, the same with any number of workers."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from fedapm import FedapmError
from fedapm.core.samples import Samples
from fedapm.data import ClientData, Federation
from fedapm.experiments import build, compare
from fedapm.runs import folder as run_folder
from fedapm.runs.config import differences
from fedapm.runs.folder import locked
from fedapm.runs.records import load_run
from fedapm.tuning import Options, Tuned, load_tuned
from fedapm.tuning.scorer import Scorer
from tests.helpers.unit import refused
from tests.tuning.searches import LAYER, METHODS, SEARCH, search


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """A finished search, only to be read."""
    return search(tmp_path_factory.mktemp("tuning") / "out", workers=1)


def records(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("rounds.jsonl"))}


def test_every_trial_is_a_run_of_its_own(done: Tuned) -> None:
    folders = sorted(str(p.parent.relative_to(done.folder / "trials")) for p in done.folder.rglob("run.json"))
    assert folders == sorted([f"fedprox/{n}/seed-0" for n in range(5)] + [f"local/{n}/seed-0" for n in range(4)]), (
        "fedprox has 6 combinations and local 3, and each has its first trial"
    )
    for path in folders:
        run = load_run(done.folder / "trials" / path)
        config = tomllib.loads(run.config)
        assert run.complete
        assert config["data"]["validation"] == 0.2
        assert config["engine"]["engine"] == "sequential"
        assert not (run.path / "models").exists()
        assert not (run.path / "checkpoints").exists(), "a finished trial is never continued"


def test_the_best_trial_is_the_one_with_the_highest_score(done: Tuned) -> None:
    for found in done.methods:
        scores = {}
        for folder in (done.folder / "trials" / found.name).iterdir():
            run = load_run(folder / "seed-0")
            scores[int(folder.name)] = Scorer("accuracy", "last").run_score(run.rounds)
        assert found.best == max(scores.values())
        assert found.number == min(n for n, score in scores.items() if score == found.best)
        assert found.default == scores[0]
        assert found.best >= found.default
        assert found.trials == len(scores)
        config = tomllib.loads(load_run(done.folder / "trials" / found.name / str(found.number) / "seed-0").config)
        assert config["solver"]["lr"] == found.settings["solver.lr"]


def test_the_first_trial_has_the_settings_without_a_search(done: Tuned) -> None:
    config = tomllib.loads(load_run(done.folder / "trials" / "fedprox" / "0" / "seed-0").config)
    plain = build.resolve(LAYER, {"algorithm": {"name": "fedprox"}}).tables()
    assert {*differences(plain, config)} == {
        "data.validation",
        "engine.engine",
        "engine.rounds",
        "engine.save_models",
        "engine.workers",
    }


def test_what_was_found_is_written_down(done: Tuned) -> None:
    text = done.path.read_text("utf-8")
    assert tomllib.loads(text) == done.tables == load_tuned(done.folder) == load_tuned(done.path)
    assert text.startswith("# Settings of the best trials of fedapm tune")
    assert "no test data" in text
    assert {*done.tables} == {"fedprox", "local", "engine"}
    assert done.tables["engine"] == {"units": "client"}
    assert {*done.tables["fedprox"]} == {"mu", "solver"}
    record = json.loads((done.folder / "tune.json").read_text("utf-8"))
    assert record["status"] == "complete"
    assert record["depends_on_workers"] is False
    assert record["arguments"]["trials"] == 5
    assert record["methods"]["local"]["trials"] == 4
    assert record["methods"]["fedprox"]["best"] == done.methods[0].best


def test_tuned_settings_are_all_that_the_best_trial_had(tmp_path: Path) -> None:
    given = {"solver": {"lr_decay": 0.5, "weight_decay_v": None}, "model": {"options": {"width": 16}}}
    own = {"fedprox": {"mu": 0.7, "solver": {"momentum": 0.5}}}
    options = Options(trials=2, rounds=1, search=("solver.lr=0.05,0.4",), pruner="none")
    found = search(tmp_path, given, own, options=options, workers=1)
    assert load_tuned(tmp_path) == found.tables
    for one in found.methods:
        trial = tomllib.loads(load_run(tmp_path / "trials" / one.name / str(one.number) / "seed-0").config)
        (compared,) = compare.plans([one.name], [0], {"data": LAYER["data"]}, found.tables)
        changed = differences(trial, compared.tables())
        assert [setting for setting in changed if not setting.startswith(("data.", "engine."))] == []
        assert compared.solver.lr_decay == 0.5
    assert found.tables["fedprox"]["mu"] == 0.7
    assert found.tables["fedprox"]["solver"].keys() == {"epochs", "lr", "lr_decay", "momentum"}


def test_grid_results_do_not_depend_on_the_number_of_workers(done: Tuned, tmp_path: Path) -> None:
    other = search(tmp_path / "out", workers=3)
    assert other.methods == done.methods
    assert other.path.read_bytes() == done.path.read_bytes()
    assert records(tmp_path / "out") == records(done.folder)


def test_the_same_search_again_only_reads(done: Tuned) -> None:
    before = {p: p.stat().st_mtime_ns for p in done.folder.glob("trials/**/*")}
    assert search(done.folder) == done
    assert {p: p.stat().st_mtime_ns for p in done.folder.glob("trials/**/*")} == before


def test_checkpoints_that_a_kill_left_in_a_finished_trial_are_removed(done: Tuned) -> None:
    left = done.folder / "trials" / "local" / "0" / "seed-0" / "checkpoints"
    left.mkdir()
    (left / "round-000000.safetensors").touch()
    assert search(done.folder) == done
    assert not left.exists()


@pytest.mark.parametrize(
    ("layer", "options", "methods", "mentions"),
    [
        ({}, {"trials": 4}, METHODS, ["trials was 5"]),
        ({}, {"rounds": 3}, METHODS, ["rounds was 2"]),
        ({}, {"metric": "f1"}, METHODS, ["metric was accuracy"]),
        ({}, {"pruner": "median"}, METHODS, ["pruner was none"]),
        ({}, {"search": SEARCH[:1]}, METHODS, ["search was"]),
        ({}, {"seeds": (0, 1)}, METHODS, ["seeds was 0"]),
        ({}, {}, ["local", "fedprox"], ["methods was fedprox local"]),
        ({"solver": {"momentum": 0.5}}, {}, METHODS, ["solver.momentum"]),
        ({"data": {"validation": 0.3}}, {}, METHODS, ["data.validation"]),
        ({"fedprox": {"mu": 0.3}}, {}, METHODS, ["algorithm.mu"]),
    ],
)
def test_other_arguments_into_the_same_folder_are_named(
    done: Tuned, layer: Any, options: dict[str, Any], methods: list[str], mentions: list[str]
) -> None:
    before = {p: p.read_bytes() for p in done.folder.rglob("*.json")}
    given = {"trials": 5, "rounds": 2, "search": SEARCH, "pruner": "none"} | options
    with refused(str(done.folder), *mentions):
        search(done.folder, layer, options=Options(**given), methods=methods)
    assert {p: p.read_bytes() for p in done.folder.rglob("*.json")} == before


def test_where_the_data_lies_may_change(done: Tuned) -> None:
    assert search(done.folder, {"data": {"root": "elsewhere"}, "engine": {"workers": 7}}) == done


def poisoned(clients: Federation) -> Federation:
    """The same clients with test data that is all wrong."""
    made = [
        ClientData(c.id, c.train, Samples(tuple(torch.full_like(t, 9.0) for t in c.test.inputs), 9 - c.test.targets))
        for c in clients.clients
    ]
    return Federation(made, clients.name, class_names=clients.class_names, modalities=clients.modalities)


def test_no_test_data_is_looked_at(done: Tuned, tmp_path: Path) -> None:
    clean = build.federation(build.resolve(LAYER).data)
    bad = poisoned(clean)
    assert not torch.equal(clean[0].test.targets, bad[0].test.targets)
    # clients that are given have no defaults of a data set, so its own are said
    own = build.resolve(LAYER).tables()
    found = search(tmp_path / "bad", {name: own[name] for name in ("model", "solver", "engine")}, clients=bad)
    assert found.methods == done.methods
    assert records(tmp_path / "bad") == records(done.folder)


def test_tuning_without_validation_data_is_refused(tmp_path: Path) -> None:
    with refused("tuning needs validation data"):
        search(tmp_path / "out", {"data": {"validation": 0}})
    assert not (tmp_path / "out").exists()


def test_two_searches_at_a_time_in_one_folder_are_refused(done: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "PATIENCE", 0.05)
    with locked(done.folder), refused("another fedapm tune"):
        search(done.folder)


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with refused("not empty"):
        search(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]
    with refused("is a file"):
        search(tmp_path / "thesis.txt")


def test_trials_whose_database_is_gone_are_not_overwritten(done: Tuned, tmp_path: Path) -> None:
    (tmp_path / "out" / "trials" / "local").mkdir(parents=True)
    (tmp_path / "out" / "tune.json").write_bytes((done.folder / "tune.json").read_bytes())
    with refused("trials.db"):
        search(tmp_path / "out")


def test_workers_are_counted(tmp_path: Path) -> None:
    with refused("--workers 0"):
        search(tmp_path / "out", workers=0)


def test_a_tuned_file_that_is_none(tmp_path: Path) -> None:
    for text, word in (("[fedamp]\nrho = 1", "fedapm"), ("fedapm = 1", "'fedapm'"), ("[engine]\nrounds = 3", "engine")):
        (tmp_path / "t.toml").write_text(text)
        with refused("t.toml", word):
            load_tuned(tmp_path / "t.toml")
    with refused("tuned.toml", "fedapm tune"):
        load_tuned(tmp_path)
    (tmp_path / "tune.json").write_text("{}")
    with pytest.raises(FedapmError, match="not finished"):
        load_tuned(tmp_path)
