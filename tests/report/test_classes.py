"""Which classes are taken for which: counted at the end of a run, and shown under their names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedapm.errors import FedapmError
from fedapm.report import write_report
from fedapm.report.comparison.sections import classes
from fedapm.report.comparison.series import all_series, group_runs
from fedapm.report.results import Results
from fedapm.runs.records import class_counts, find_runs, load_run
from tests.helpers.cli import QUICK, fedapm
from tests.report.fake_runs import COMPARISON, Fake, write_comparison, write_fake

NAMES = ["cat", "dog", "<b>cow</b>"]
FIRST = [[[0, 0, 3], [0, 1, 1], [1, 1, 2]], [[0, 0, 1]], [], [], [], []]
"""Client 0 has four cats, of which one is taken for a dog, and two dogs; client 1 has one cat."""


def with_classes(path: Path, fake: Fake, counts: list[list[list[int]]], last: int | None = None) -> Path:
    write_fake(path, fake)
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(info | {"class_names": NAMES, "classes": 3}))
    content = {"round": fake.rounds if last is None else last, "views": {"model": counts}}
    (path / "classes.json").write_text(json.dumps(content))
    return path


def found(folder: Path) -> classes.Confusion:
    (series,) = all_series(group_runs(find_runs(folder)))
    made = classes.confusion(series, NAMES)
    assert made is not None
    return made


def test_scores_are_means_over_the_clients_that_have_a_class(tmp_path: Path) -> None:
    with_classes(tmp_path / "one", Fake("fedapm", "FedAPM"), FIRST)
    made = found(tmp_path)
    cat, dog, cow = made.scores
    assert cat.recall == pytest.approx((3 / 4 + 1) / 2)
    assert cat.precision == 1.0
    assert cat.f1 == pytest.approx((2 * 3 / 7 + 1) / 2)
    assert (cat.clients, cat.samples) == (2, 5)
    assert (dog.recall, dog.precision) == (1.0, pytest.approx(2 / 3))
    assert (cow.recall, cow.precision, cow.f1, cow.clients) == (None, None, None, 0)
    assert made.shares == pytest.approx({(0, 0): 0.875, (0, 1): 0.125, (1, 1): 1.0})
    assert made.mistakes == [("cat", "dog", pytest.approx(0.125))]


def test_seeds_count_alike(tmp_path: Path) -> None:
    with_classes(tmp_path / "1", Fake("fedapm", "FedAPM", seed=1), FIRST)
    with_classes(tmp_path / "2", Fake("fedapm", "FedAPM", seed=2), [[[0, 1, 5]], [], [], [], [], []])
    made = found(tmp_path)
    assert made.scores[0].recall == pytest.approx(0.875 / 2)
    assert made.shares[0, 1] == pytest.approx((0.125 + 1) / 2)
    assert made.shares[1, 1] == 1.0, "the seed without dogs says nothing of them"


def test_the_page_has_a_matrix_with_names_and_exact_values(tmp_path: Path) -> None:
    with_classes(tmp_path / "one", Fake("fedapm", "FedAPM"), FIRST)
    page = write_report(tmp_path).read_text("utf-8")
    assert 'href="#classes"' in page
    assert "cat taken for dog: 12.5% (mean over 2 clients)" in page
    assert 'class="heat-9"' in page
    assert "&lt;b&gt;cow&lt;/b&gt;" in page
    assert "<b>cow" not in page


def test_many_classes_are_a_list_of_mistakes(tmp_path: Path) -> None:
    path = with_classes(tmp_path / "one", Fake("fedapm", "FedAPM"), [[[7, 30, 2], [7, 7, 2]], *FIRST[1:]])
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(info | {"class_names": [], "classes": 40}))
    section = classes.section(Results.of(find_runs(tmp_path)))
    assert section is not None
    assert "Taken for" in section.body
    assert "matrix" not in section.context["names"]
    assert ">30</td><td>50.0</td>" in section.body


def test_counts_of_another_round_are_not_shown(tmp_path: Path) -> None:
    with_classes(tmp_path / "one", Fake("fedapm", "FedAPM"), FIRST, last=3)
    assert class_counts(load_run(tmp_path / "one")) == {}
    assert 'href="#classes"' not in write_report(tmp_path).read_text("utf-8")


def test_runs_without_counts_have_no_such_section(tmp_path: Path) -> None:
    assert 'id="classes"' not in write_report(write_comparison(tmp_path, COMPARISON)).read_text("utf-8")


@pytest.mark.parametrize("content", ['{"round": 12}', '{"round": 12, "views": {"model": [[[0, 1]]]}}', "[]"])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    write_fake(tmp_path / "one", Fake("fedapm", "FedAPM"))
    (tmp_path / "one" / "classes.json").write_text(content)
    with pytest.raises(FedapmError, match=r"classes\.json"):
        write_report(tmp_path)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_run_counts_what_its_last_evaluation_scored(tmp_path: Path, engine: str) -> None:
    options = [*QUICK, "--rounds", 2, "--algorithm", "ditto", "--set", f"engine.engine={engine}"]
    assert fedapm("run", *options, "--out", tmp_path / "run").code == 0
    run = load_run(tmp_path / "run")
    counts = class_counts(run)
    assert list(counts) == ["P", "G"]
    for view, clients in counts.items():
        accuracy = run.rounds[-1]["evaluations"][view]["per_client"]["accuracy"]
        for client, expected, info in zip(clients, accuracy, run.info["clients"], strict=True):
            assert sum(n for *_, n in client) == info["test"]
            assert sum(n for a, b, n in client if a == b) / info["test"] == pytest.approx(expected)
    # without models nothing is counted, and the records do not know of it
    assert fedapm("run", *options, "--set", "engine.save_models=false", "--out", tmp_path / "bare").code == 0
    assert not (tmp_path / "bare" / "classes.json").exists()
    assert (tmp_path / "bare" / "rounds.jsonl").read_bytes() == (tmp_path / "run" / "rounds.jsonl").read_bytes()
