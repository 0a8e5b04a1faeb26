"""``fedapm study`` from one file: killed and started again, with one worker and with two, refused where it is wrong."""

from __future__ import annotations

import csv
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from fedapm.errors import FedapmError, Interrupted
from fedapm.experiments import build
from fedapm.experiments.alike import Alike
from fedapm.experiments.study import estimate, part
from fedapm.experiments.study.estimate import Cost, duration
from fedapm.experiments.study.part import Part, parts
from fedapm.experiments.study.run import StudyRun
from fedapm.experiments.study.settings import read_study
from fedapm.report.study.merge import read_summary
from fedapm.report.study.sweeps import read_sweeps
from fedapm.runs.files import write_json
from fedapm.runs.records import find_runs, load_run
from fedapm.tuning.split.options import SplitOptions
from tests.helpers.cli import assert_refused, fedapm
from tests.helpers.forked import program

ROOT = Path(__file__).parents[2]
TINY = """
title = "Tiny"
methods = ["fedapm", "fedavg"]
splits = ["chosen"]
cohorts = [0.5]
rounds = 2
trials = 2
seeds = [0, 1]
sweeps = ["algorithm.kappa=0.1,0.4"]

[cases.digits]
title = "Digits"
data = {name = "digits", clients = 4}
solver = {batch_size = 200, epochs = 1}
engine = {checkpoint_every = 1}
"""
TIMES = ("cpu_seconds", "cpu_to_level")


def results(folder: Path) -> dict[str, bytes]:
    """What the steps left, without anything that depends on the clock or the workers."""
    found = [*folder.rglob("rounds.jsonl"), *folder.rglob("tuned.toml"), *folder.rglob("compare/*/*/*/config.toml")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def summary(folder: Path) -> list[dict[str, str]]:
    rows = list(csv.DictReader((folder / "summary.csv").read_text().splitlines()))
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("file") / "study.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def straight(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything with one worker, without a break."""
    out = tmp_path_factory.mktemp("study") / "out"
    done = fedapm("study", file, "--out", out, "--workers", 1)
    assert done.code == 0, done.err
    assert "About" in done.err
    assert "left with 1 process" in done.err
    assert re.search(r"^Digits, 50% of clients a round, chosen split: FedA", done.out, re.M)
    assert f"Report: {out / 'report.html'}" in done.out.replace("\n", "")
    return out


def test_killed_while_it_tunes_it_goes_on_with_two_workers_to_the_same_bits(
    file: Path, straight: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ["study", file, "--out", out, "--workers", 2]
    first = program(*command, said=tmp_path / "said")
    first.until(lambda: list(out.glob("digits/*/tune/*/trials/*/1/seed-*/rounds.jsonl"))).end()
    assert not (out / "summary.csv").exists()
    again = fedapm(*command)
    assert again.code == 0, again.err
    assert "measuring" not in again.err, "what was measured is remembered"
    assert results(out) == results(straight)
    assert summary(out) == summary(straight)


def test_a_line_for_each_run_with_everything_in_it(straight: Path) -> None:
    rows = summary(straight)
    assert [(row["method"], row["split"], row["seed"]) for row in rows] == [
        ("fedapm", "chosen", "0"),
        ("fedapm", "chosen", "1"),
        ("fedavg", "unsplit", "0"),
        ("fedavg", "unsplit", "1"),
    ]
    runs = {(run.info["method"], run.seed): run for run in find_runs(straight / "digits" / "cohort-0.5" / "compare")}
    for row in rows:
        record = runs[row["method"], int(row["seed"])].rounds[-1]
        (last,) = record["evaluations"].values()
        for column, metric in (("accuracy", "accuracy"), ("f1", "f1"), ("test_loss", "test_loss")):
            assert float(row[column]) == pytest.approx(last[metric]["mean"], rel=1e-4)
        assert float(row["worst10"]) == pytest.approx(last["accuracy"]["worst10"], rel=1e-4)
        assert int(row["bytes"]) == record["total_bytes_up"] + record["total_bytes_down"]
        assert row["rival"] == "FedAvg"
        assert row["status"] == "complete"
        assert row["cohort"] == "0.5"
    fedavg = {row["seed"]: row for row in rows if row["method"] == "fedavg"}
    assert all(row["level"] == fedavg[row["seed"]]["accuracy"] for row in rows)
    assert all(row["rounds_to_level"] for row in fedavg.values()), "a rival reaches its own level"
    assert rows[0]["settings"]
    assert not rows[1]["settings"]


def test_settings_are_chosen_on_validation_data_with_other_seeds(straight: Path) -> None:
    part = straight / "digits" / "cohort-0.5"
    trials = find_runs(part / "tune")
    assert len(trials) == 4
    assert {run.seed for run in trials} == {100}
    assert all("validation = 0.2" in run.config for run in trials)
    assert all("validation = 0.0" in run.config for run in find_runs(part / "compare"))
    chosen = json.loads((part / "split" / "split.json").read_text())
    assert chosen["arguments"]["method"] == "FedAPM"
    assert chosen["settings"]["data"]["validation"] == 0.2
    assert not list(part.glob("compare/**/checkpoints")), "checkpoints of complete runs are not kept"


def test_a_setting_is_varied_with_what_was_tuned(straight: Path) -> None:
    part = straight / "digits" / "cohort-0.5"
    folder = part / "sweeps" / "algorithm.kappa"
    tuned = tomllib.loads((part / "tune" / "chosen" / "tuned.toml").read_text())["fedapm"]
    runs = find_runs(folder)
    assert len(runs) == 4, "FedAvg has no such setting"
    for run in runs:
        assert tomllib.loads(run.config)["solver"]["lr"] == tuned["solver"]["lr"]
        assert "validation = 0.0" in run.config
    assert {(line.value, line.seed) for line in read_sweeps(straight / "sweeps.csv")} == {
        (0.1, 0), (0.1, 1), (0.4, 0), (0.4, 1)
    }  # fmt: skip
    for line in read_sweeps(straight / "sweeps.csv"):
        record = load_run(folder / f"algorithm.kappa={line.value}" / "fedapm" / f"seed-{line.seed}").rounds[-1]
        assert line.accuracy == pytest.approx(record["evaluations"]["model"]["accuracy"]["mean"], rel=1e-4)
        assert (line.method, line.status, line.cohort) == ("fedapm", "complete", 0.5)
    assert (folder / "report.html").is_file()
    assert not list(folder.rglob("checkpoints"))


def test_the_page_is_made_of_the_summary_alone(straight: Path, tmp_path: Path) -> None:
    page = (straight / "report.html").read_text()
    for name in ("summary.csv", "study.json", "sweeps.csv"):
        (tmp_path / name).write_bytes((straight / name).read_bytes())
    done = fedapm("report", tmp_path)
    assert done.code == 0, done.err
    assert (tmp_path / "report.html").read_text() == page
    assert page.count("<svg") == 2
    assert "What algorithm.kappa does" in page
    assert "Ranks by mean accuracy" in page
    assert 'href="digits/cohort-0.5/compare/report.html"' in page
    assert (straight / "digits/cohort-0.5/compare/report.html").is_file()
    ids = re.findall(r' id="([^"]+)"', page)
    assert sorted(set(ids)) == sorted(ids)


def test_the_card_says_which_command_computed_what(file: Path, straight: Path) -> None:
    card = json.loads((straight / "card.json").read_text())
    (part,) = card["parts"]
    assert part["cells"] == [["digits", 0.5]]
    assert part["command"].startswith("fedapm study")
    assert part["command"].endswith("--workers 1")
    assert part["hours"] > 0
    assert part["processor_hours"] > 0
    assert {"python", "torch"} <= part["versions"].keys()
    assert part["hardware"]["cores"]


def test_started_again_it_finds_everything_done(file: Path, straight: Path) -> None:
    before, card = results(straight), (straight / "card.json").read_bytes()
    again = fedapm("study", file, "--out", straight, "--only", "digits")
    assert again.code == 0, again.err
    assert results(straight) == before
    assert "About 0 s left" in again.err
    assert (straight / "card.json").read_bytes() == card, "this command computed nothing"


SHORT = """
title = "Short"
methods = ["fedavg"]
splits = ["paper"]
cohorts = [0.5, 0.25]
rounds = 1
trials = 1
seeds = [0]

[cases.digits]
data = {name = "digits", clients = 4}
solver = {batch_size = 200, epochs = 1}
"""


def test_what_is_done_is_reported_although_the_rest_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = tmp_path / "study.toml", tmp_path / "out"
    file.write_text(SHORT)
    tune = Alike.tune

    def interrupted(alike: Alike) -> None:
        if "cohort-0.25" in str(alike.tune_folder):
            raise Interrupted("interrupted.")
        tune(alike)

    monkeypatch.setattr(Alike, "tune", interrupted)
    with pytest.raises(Interrupted):
        StudyRun(read_study(file), out, workers=1, command="first").run()
    half = read_summary(out)
    assert half.cells == {("digits", 0.5)}
    assert [(card["command"], card["cells"]) for card in half.cards] == [("first", [["digits", 0.5]])]
    assert "FedAvg" in (out / "report.html").read_text()
    monkeypatch.undo()
    StudyRun(read_study(file), out, workers=1, command="second").run()
    whole = read_summary(out)
    assert whole.cells == {("digits", 0.5), ("digits", 0.25)}
    assert [(card["command"], card["cells"]) for card in whole.cards] == [
        ("first", [["digits", 0.5]]),
        ("second", [["digits", 0.25]]),
    ]


def test_another_study_in_the_same_folder_is_refused(straight: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    for text, named in (
        (TINY.replace("trials = 2", "trials = 3"), "trials of the case digits is other"),
        (TINY.replace("clients = 4", "clients = 5"), "settings of the case digits is other"),
        (TINY.replace("[cases.digits]", "[cases.numbers]"), "the case digits is gone"),
    ):
        other.write_text(text)
        assert_refused(fedapm("study", other, "--out", straight), "was begun with another study", named)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("trials = 2", "trails = 2", "trails"),
        ("trials = 2", "trials = 0", "trials"),
        ("[0.5]", "[1.5]", "1.5 is not a share"),
        ('"fedavg"', '"fedavgg"', "did you mean 'fedavg'"),
        ('["chosen"]', '["auto"]', "splits"),
        ("seeds = [0, 1]", "seeds = [0, 100]", "tune_seeds"),
        ("algorithm.kappa=0.1,0.4", "kappa", "sweeps takes table.key=v1,v2"),
        ("algorithm.kappa=0.1,0.4", "algorithm.phases=joint,alternating", "sweeps: algorithm.phases"),
        ("algorithm.kappa=0.1,0.4", "algorithm.kappa=0.1,-1", "kappa"),
        ("seeds = [0, 1]", "seeds = [0, 0]", "each only once"),
        ('title = "Digits"', 'titel = "Digits"', "cases.digits.titel"),
        ("epochs = 1", "epocs = 1", "epocs"),
        ("checkpoint_every = 1", "count = 2", "engine.count"),
        ('data = {name = "digits", clients = 4}', "", "names no data"),
        ('data = {name = "digits", clients = 4}', 'file = "no.toml"', "no.toml does not exist"),
        ('name = "digits"', 'name = "digitz"', "digitz"),
        ('name = "digits"', 'name = "motionsense", root = "/nowhere"', "--only"),
        ("[cases.digits]", "[cases.Digits]", "lower-case"),
        ("[cases.digits]", "[case.digits]", "no cases"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_left_behind(tmp_path: Path, old: str, new: str, named: str) -> None:
    assert old in TINY
    path, out = tmp_path / "study.toml", tmp_path / "out"
    path.write_text(TINY.replace(old, new))
    assert_refused(fedapm("study", path, "--out", out), named)
    assert [entry.name for entry in tmp_path.iterdir()] == ["study.toml"]


def test_an_unknown_case_is_refused(file: Path, tmp_path: Path) -> None:
    assert_refused(fedapm("study", file, "--only", "digit", "--out", tmp_path / "out"), "did you mean 'digits'")
    assert_refused(fedapm("study", file, "--workers", "0", "--out", tmp_path / "out"), "at least one")


def test_a_cohort_is_run_by_itself_and_another_one_is_refused(file: Path, straight: Path, tmp_path: Path) -> None:
    study = read_study(file)
    both = replace(study.cases[0], plan=replace(study.cases[0].plan, cohorts=(0.5, 0.25)))
    run = StudyRun(replace(study, cases=(both,)), tmp_path, cohorts=(0.25,))
    assert [part.cohort for part in run.parts(run.study.cases)] == [0.25]
    again = fedapm("study", file, "--out", straight, "--cohort", 0.5, "--workers", 1)
    assert again.code == 0, again.err
    refused = fedapm("study", file, "--out", tmp_path / "out", "--cohort", 0.3)
    assert_refused(refused, "--cohort 0.3: it is not in the study; it has 0.5.")


def test_the_estimate_leaves_nothing_behind_and_passes_over_missing_data(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(TINY + '\n[cases.sensors.data]\nname = "motionsense"\nroot = "/nowhere"\n')
    done = fedapm("study", path, "--estimate", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert "of processor time" in done.out
    assert "left out: sensors:" in done.out
    assert [entry.name for entry in tmp_path.iterdir()] == ["study.toml"]


def test_the_arithmetic_of_the_estimate() -> None:
    cost = Cost(start=1.0, client=0.5, evaluation=0.2, closing=3.0, clients=20, evaluate_every=5)
    assert cost.run(10, 0.3) == pytest.approx(1.0 + 10 * 6 * 0.5 + 3 * 0.2 + 3.0)
    assert [duration(seconds) for seconds in (59, 1800, 9000)] == ["59 s", "30 min", "2.5 h"]


def test_getting_ready_counts_once_and_not_with_every_evaluation(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, planned = [0.0], build.plan

    def plan(*given):
        clock[0] += 100.0
        return planned(*given)

    monkeypatch.setattr(estimate.time, "process_time", lambda: clock[0])
    monkeypatch.setattr(estimate.build, "plan", plan)
    (case,) = read_study(file).cases
    for cost in estimate.measure(Part(case, 0.5, tmp_path, None)).values():
        assert (cost.start, cost.evaluation, cost.client) == (100.0, 0.0, 0.0)


def test_a_slow_first_round_does_not_count_where_more_are_measured(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (case,) = read_study(file).cases
    part, times = Part(case, 0.5, tmp_path, None), iter([0.0, 0.0, 1.0, 10.0, 12.0, 15.0, 40.0, 40.0])
    monkeypatch.setattr(estimate.time, "process_time", lambda: next(times))
    # ready at 0, round 0 until 1, round 1 until 10, then one of 2 s, one of 3 s, and one that is evaluated
    cost = estimate._measured(part, "fedavg", part.clients(), 0.5, 4, rounds=4)
    assert (cost.evaluation, cost.client) == (1.0, 2.0 / 2)


def test_what_takes_little_is_measured_with_all_clients(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met, planned = [], build.plan
    monkeypatch.setattr(
        estimate.build, "plan", lambda made, clients: met.append(len(clients)) or planned(made, clients)
    )
    (case,) = read_study(file).cases
    part = Part(case, 0.5, tmp_path, None)
    monkeypatch.setattr(estimate, "SHORT", 1e9)
    estimate.measure(part)
    monkeypatch.setattr(estimate, "SHORT", -1.0)
    estimate.measure(part)
    assert met == [3, 4, 3, 4, 3, 3]


@pytest.mark.parametrize(("given", "used"), [("", (100, 101)), ("tune_seeds = [7, 3, 9]", (7, 3, 9))])
def test_the_split_is_searched_with_the_seeds_of_the_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, used: tuple[int, ...]
) -> None:
    path = tmp_path / "study.toml"
    path.write_text(TINY.replace("trials = 2", f"trials = 2\n{given}"))
    (case,) = read_study(path).cases
    asked = []

    def find(*_: object, options: SplitOptions) -> None:
        asked.append(options.seeds)
        raise FedapmError("that is all")

    monkeypatch.setattr(part, "find_split", find)
    with pytest.raises(FedapmError, match="that is all"):
        next(Part(case, 0.5, tmp_path).steps()).do()
    assert asked == [used]


def test_the_examples_are_studies() -> None:
    small, whole = (read_study(ROOT / "examples" / f"study{size}.toml") for size in ("-small", ""))
    assert [case.name for case in small.cases] == ["digits"]
    assert len(whole.cases) == 10
    for case in whole.cases:
        assert case.plan.cohorts == (0.3, 0.1)
        assert case.plan.splits == (("chosen",) if case.name == "cifar-cnn" else ("chosen", "paper"))
        assert len(case.plan.method_names) == 15
        assert {"scaffold", "local", "fedapm-paper", "fedapm"} <= {*case.plan.method_names}
        slow = case.name in ("cifar-cnn", "motionsense-raw")
        assert (case.plan.trials, len(case.plan.seeds)) == ((4, 3) if slow else (12, 5))
    assert {case.name: case.experiment.data.concentration for case in whole.cases}["cifar-features-skewed"] == 0.1


def test_methods_that_take_no_split_are_run_once() -> None:
    (case,) = read_study(ROOT / "examples" / "study-small.toml").cases
    assert case.groups == {
        "chosen": ["fedapm", "fedapm-paper", "fedalt"],
        "paper": ["fedapm", "fedapm-paper", "fedalt"],
        "unsplit": ["fedavg", "local"],
    }


def test_methods_are_searched_for_settings_of_their_own_where_they_are_tuned(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    own = ["solver.lr=0.1,0.2", "fedapm.phases=alternating,joint", "fedprox.mu=0.1,1"]
    path.write_text(TINY.replace('"fedavg"]', '"fedprox"]').replace("rounds = 2", f"rounds = 2\nsearch = {own}"))
    (case,) = read_study(path).cases
    groups = {split: case.plan.options(2, methods).search for split, methods in case.groups.items()}
    assert groups == {"chosen": (own[0], own[1]), "unsplit": (own[0], own[2])}
    Part(case, 0.5, tmp_path).check()
    path.write_text(TINY.replace("rounds = 2", f"rounds = 2\nsearch = {own}"))
    with pytest.raises(FedapmError, match="fedprox is not among the methods that are tuned"):
        read_study(path)


def test_every_case_has_its_first_cohort_before_any_has_its_second(tmp_path: Path) -> None:
    study = read_study(ROOT / "examples" / "study.toml")
    order = [(part.cohort, part.case.name) for part in parts(study.cases, tmp_path)]
    names = [case.name for case in study.cases]
    assert order == [(0.3, name) for name in names] + [(0.1, name) for name in names]


def test_a_chosen_split_that_is_the_papers_is_run_once(tmp_path: Path) -> None:
    (case,) = read_study(ROOT / "examples" / "study-small.toml").cases
    part = Part(case, 0.3, tmp_path)
    assert list(part.groups) == ["chosen", "paper", "unsplit"]
    for same, groups in ((False, ["chosen", "paper", "unsplit"]), (True, ["chosen", "unsplit"])):
        write_json(part.folder / "choice.json", {"model": {"personal": ["head"]}, "as_paper": same})
        assert list(part.groups) == groups


def test_a_folder_is_not_a_study(tmp_path: Path) -> None:
    with pytest.raises(FedapmError, match="is a folder"):
        read_study(tmp_path)
