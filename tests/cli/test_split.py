"""``fedapm split``, and ``model.split = "auto"`` in other commands, as a user meets them."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path

import pytest

from fedapm.runs.files import read_json
from fedapm.runs.records import find_runs, load_run
from tests.helpers.cli import Outcome, assert_refused, fedapm

QUICK = ["--rounds", 2, "--set", "data.clients=4", "--set", "engine.fraction=1.0", "--set", "solver.batch_size=200"]
AUTO = ["--set", "model.split=auto"]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def split(*more: object) -> Outcome:
    return fedapm("split", *QUICK, "--out", "search", *more)


def test_a_search_prints_a_table_the_advice_and_the_command() -> None:
    outcome = split()
    assert outcome.code == 0, outcome.err
    for words in ("last layer (head), stage output", "nothing personal", "95% interval", "Report: search/report.html"):
        assert words in outcome.out
    content = read_json(Path("search/split.json"))
    for sentence in content["advice"]:
        assert sentence in outcome.out
    assert {p.name for p in Path("search").iterdir()} == {
        "split.json", "split.png", "report.html", "card.json", "card.md", "sessions.jsonl", "candidates"
    }  # fmt: skip
    assert Path("search/split.png").read_bytes().startswith(b"\x89PNG")
    page = Path("search/report.html").read_text("utf-8")
    assert "last layer (head), stage output" in page
    assert "<svg" in page
    assert "A search of the split" in Path("search/card.md").read_text("utf-8")

    line = next(line for line in outcome.out.splitlines() if line.startswith("Run it: "))
    program, *words = shlex.split(line.removeprefix("Run it: "))
    assert program == "fedapm"
    ran = fedapm(*words, "--out", "run")
    assert ran.code == 0, ran.err
    chosen = content["chosen"]["personal"]
    assert tomllib.loads(Path("run/config.toml").read_text())["model"]["personal"] == chosen


def test_the_same_command_again_only_reads_and_another_is_refused() -> None:
    first = split("--json")
    again = split("--json")
    assert first.code == again.code == 0
    assert json.loads(first.out) == json.loads(again.out)
    assert again.err.count("after") == first.err.count("after")
    assert_refused(split("--set", "solver.lr=0.3"), "other arguments", "solver.lr")
    shown = fedapm("report", "search", "--json")
    assert json.loads(shown.out)["rows"] == json.loads(first.out)["rows"]
    assert fedapm("report", "search").out.count("nothing personal") == 1


def test_json_has_every_candidate() -> None:
    found = json.loads(split("--json", "--budget", 30, "--seeds", "3,4").out)
    assert found["command"].startswith("fedapm run --rounds 2 ")
    assert "--budget" not in found["command"]
    assert sum(row["verdict"] == "chosen" for row in found["rows"]) == 1
    assert {"name", "personal", "share", "score", "behind", "rounds", "bytes"} <= found["rows"][0].keys()
    assert found["chosen"] == {"personal": next(r["personal"] for r in found["rows"] if r["verdict"] == "chosen")}


def test_a_run_may_search_its_split_first() -> None:
    outcome = fedapm("run", *QUICK, *AUTO, "--out", "run")
    assert outcome.code == 0, outcome.err
    chosen = read_json(Path("run/split/split.json"))["chosen"]["personal"]
    model = tomllib.loads(Path("run/config.toml").read_text())["model"]
    assert model["personal"] == chosen
    assert not {"split", "preset"} & model.keys()
    assert [run.path for run in find_runs(Path("run"))] == [Path("run")]
    assert Path("run/split/report.html").is_file()
    assert_refused(fedapm("run", *QUICK, *AUTO, "--out", "run"), "already holds a run", "--resume")


def test_a_run_that_stopped_in_its_search_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fedapm("run", *QUICK, *AUTO, "--out", "whole")
    assert whole.code == 0
    rounds = 0

    def interrupt(*_: object) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 5:
            raise KeyboardInterrupt

    command = ["run", *QUICK, *AUTO, "--out", "run"]
    with monkeypatch.context() as patch:
        patch.setattr("fedapm.tuning.split.run._Follow.on_round_end", interrupt)
        stopped = fedapm(*command)
    assert stopped.code == 130
    assert "--resume" in stopped.err
    assert_refused(fedapm(*command), "beginning of a run", "--resume")
    assert fedapm(*command, "--resume").code == 0
    assert load_run(Path("run")).rounds == load_run(Path("whole")).rounds


def test_resuming_keeps_the_split_that_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fedapm("run", *QUICK, *AUTO, "--out", "run").code == 0
    monkeypatch.setattr("fedapm.tuning.split.auto.find_split", None)
    longer = fedapm("run", *QUICK, "--rounds", 3, *AUTO, "--out", "run", "--resume")
    assert longer.code == 0, longer.err
    assert len(load_run(Path("run")).rounds) == 4


def test_a_method_without_a_split_is_just_run() -> None:
    outcome = fedapm("run", "--algorithm", "fedavg", *QUICK, *AUTO, "--out", "run")
    assert outcome.code == 0, outcome.err
    assert not Path("run/split").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["split", "--algorithm", "fedavg"], ["FedAvg", "split"]),
        (["split", "--budget", "3"], ["budget of 3 rounds", "at least"]),
        (["split", "--metric", "acc"], ["unknown metric", "acc"]),
        (["compare", "--set", "model.split=auto"], ["model.split", "fedapm split"]),
        (["run", "--set", "model.split=best"], ["model.split"]),
        (["tune", "--search", "model.split=auto,none"], ["model.split", "auto"]),
        (["tune", "--methods", "fedavg", "--search", "model.split=auto"], ["model.split", "fedavg"]),
    ],
)
def test_what_cannot_be_searched_is_one_line(arguments: list[str], words: list[str]) -> None:
    assert_refused(fedapm(*arguments, "--out", "none"), *words)
    assert not Path("none").exists()


def test_the_last_word_about_the_split_counts() -> None:
    Path("own.toml").write_text('[model]\npreset = "input"\n')
    outcome = fedapm("run", "own.toml", *QUICK, "--set", 'model.personal=["head"]', "--out", "run")
    assert outcome.code == 0, outcome.err
    assert load_run(Path("run")).info["split"]["personal"] == ["head.weight", "head.bias"]


def test_tuning_searches_the_split_beside_other_settings() -> None:
    search = ["--search", "model.split=auto", "--search", "solver.lr=0.1,0.3"]
    rest = ["--pruner", "none", "--trials", 4, "--workers", 1, "--methods", "fedalt,local", "--out", "tuned"]
    outcome = fedapm("tune", *QUICK, *search, *rest)
    assert outcome.code == 0, outcome.err
    content = read_json(Path("tuned/tune.json"))
    assert '["head"]' in content["spaces"]["fedalt"]["model.personal"]
    assert "model.personal" not in content["spaces"]["local"]
    first = load_run(Path("tuned/trials/fedalt/0/seed-0"))
    assert first.info["split"]["personal"] == ["head.weight", "head.bias"]
    best = content["methods"]["fedalt"]["settings"]["model.personal"]
    assert tomllib.loads(Path("tuned/tuned.toml").read_text())["fedalt"]["model"]["personal"] == best
    compared = fedapm("compare", *QUICK, "--methods", "fedalt", "--seeds", "0", "--tuned", "tuned", "--out", "compared")
    assert compared.code == 0, compared.err
    config = tomllib.loads(Path("compared/fedalt/seed-0/config.toml").read_text())
    assert config["model"]["personal"] == best
