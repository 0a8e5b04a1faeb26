"""``fedapm split``, and ``model.split = "auto"`` in other commands, as a user meets them."""

from __future__ import annotations

import json
import shlex
import shutil
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


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A finished search, only to be read, and what it printed."""
    folder = tmp_path_factory.mktemp("split") / "search"
    outcome = fedapm("split", *QUICK, "--out", folder)
    assert outcome.code == 0, outcome.err
    return folder, outcome


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that searched its split first, only to be read."""
    folder = tmp_path_factory.mktemp("auto") / "run"
    outcome = fedapm("run", *QUICK, *AUTO, "--out", folder)
    assert outcome.code == 0, outcome.err
    return folder


def test_a_search_prints_a_table_the_advice_and_the_command(searched: tuple[Path, Outcome]) -> None:
    folder, outcome = searched
    for words in ("last layer (head), stage output", "nothing personal", "95% interval", f"Report: {folder}"):
        assert words in outcome.out
    content = read_json(folder / "split.json")
    for sentence in content["advice"]:
        assert sentence in outcome.out
    line = next(line for line in outcome.out.splitlines() if line.startswith("Run it: "))
    program, *words = shlex.split(line.removeprefix("Run it: "))
    assert program == "fedapm"
    ran = fedapm(*words, "--out", "run")
    assert ran.code == 0, ran.err
    chosen = content["chosen"]["personal"]
    assert tomllib.loads(Path("run/config.toml").read_text())["model"]["personal"] == chosen


def test_a_search_leaves_its_folder(searched: tuple[Path, Outcome]) -> None:
    folder, _ = searched
    expected = {"split.json", "split.png", "report.html", "card.json", "card.md", "sessions.jsonl", "candidates"}
    assert {p.name for p in folder.iterdir()} == expected
    assert (folder / "split.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "report.html").read_text("utf-8")
    assert "last layer (head), stage output" in page
    assert "<svg" in page
    assert "A search of the split" in (folder / "card.md").read_text("utf-8")


def test_the_command_of_the_run_has_what_concerns_it() -> None:
    from fedapm.cli.split import run_command

    given = ["split", "own.toml", "--budget", "9", "--seeds=1,2", "--data", "digits", "--json", "--metric", "f1"]
    given += ["--choose", "one-se"]
    assert run_command(given, 'model.personal=["a b"]') == (
        "fedapm run own.toml --data digits --set 'model.personal=[\"a b\"]'"
    )


def test_the_same_command_again_only_reads_and_another_is_refused(
    searched: tuple[Path, Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, first = searched
    monkeypatch.setattr("fedapm.tuning.split.trainer.execute", None)
    again = fedapm("split", *QUICK, "--out", folder)
    assert (again.code, again.out) == (0, first.out)
    assert_refused(fedapm("split", *QUICK, "--set", "solver.lr=0.3", "--out", folder), "other arguments", "solver.lr")
    assert_refused(fedapm("split", *QUICK, "--budget", "60", "--out", folder), "other arguments", "budget was 8")


def test_json_has_every_candidate(searched: tuple[Path, Outcome]) -> None:
    folder, _ = searched
    found = json.loads(fedapm("split", *QUICK, "--json", "--out", folder).out)
    assert found["command"].startswith("fedapm run --rounds 2 ")
    assert {"name", "personal", "share", "score", "behind", "rounds", "bytes"} <= found["rows"][0].keys()
    (chosen,) = (row for row in found["rows"] if row["verdict"] == "chosen")
    assert found["chosen"] == {"personal": chosen["personal"]}
    shown = json.loads(fedapm("report", folder, "--json").out)
    assert shown["rows"] == found["rows"]


def test_a_run_may_search_its_split_first(made: Path) -> None:
    chosen = read_json(made / "split" / "split.json")["chosen"]["personal"]
    model = tomllib.loads((made / "config.toml").read_text())["model"]
    assert model["personal"] == chosen
    assert not {"split", "preset"} & model.keys()
    assert [run.path for run in find_runs(made)] == [made]
    assert (made / "split" / "report.html").is_file()
    assert_refused(fedapm("run", *QUICK, *AUTO, "--out", made), "already holds a run", "--resume")


def test_a_run_that_stopped_in_its_search_goes_on(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = 0

    def interrupt(*_: object) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 5:
            raise KeyboardInterrupt

    command = ["run", *QUICK, *AUTO, "--out", "run"]
    with monkeypatch.context() as patch:
        patch.setattr("fedapm.tuning.split.display.FollowRounds.on_round_end", interrupt)
        stopped = fedapm(*command)
    assert stopped.code == 130
    assert "--resume" in stopped.err
    assert_refused(fedapm(*command), "beginning of a run", "--resume")
    assert fedapm(*command, "--resume").code == 0
    assert load_run(Path("run")).rounds == load_run(made).rounds


def test_resuming_keeps_the_split_that_was_chosen(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(made, "run")
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
    rest = ["--pruner", "none", "--trials", 3, "--workers", 1, "--methods", "fedalt,local", "--out", "tuned"]
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
