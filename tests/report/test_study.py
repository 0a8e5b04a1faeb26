"""A study's numbers, sentences and pages, from summaries whose answers are known."""

from __future__ import annotations

import html
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import ttest_rel

from fedapm.report.study import overview
from fedapm.report.study.holm import holm, paired_p
from fedapm.report.study.lines import Line, read_lines, write_lines
from fedapm.report.study.markdown import study_markdown, tables_markdown
from fedapm.report.study.page import render_study
from fedapm.report.study.tables import Table, by_label, rounds_to_fedalt, tables
from fedapm.report.study.words import against_fedalt, against_published_method, p_text, sentence
from tests.helpers.unit import refused

PLAN = {"methods": ["fedapm", "fedavg"], "trials": 2, "seeds": [0, 1, 2], "cohorts": [0.3], "splits": ["chosen"]}
PLAN |= {"rounds": 20, "tune_rounds": 10}
INFO = {"title": "A study", "cases": {"digits": {"title": "Digits", "plan": PLAN}}}


def lines(method: str, label: str, *accuracies: float, split: str = "chosen", case: str = "digits") -> list[Line]:
    base = Line.without_numbers(case, case.title(), 0.3, split, method, label, 0)
    return [
        replace(base, seed=seed, status="complete", rounds=20, accuracy=accuracy, data=case, best_accuracy=accuracy)
        for seed, accuracy in enumerate(accuracies)
    ]


def only(*some: list[Line]) -> Table:
    (table,) = tables([line for one in some for line in one])
    return table


OURS = lines("fedapm", "FedAPM", 0.90, 0.91, 0.92)
LEVEL = lines("fedalt", "FedAlt", 0.91, 0.88, 0.925)
WORSE = lines("fedavg", "FedAvg", 0.80, 0.82, 0.81, split="unsplit")
BETTER = lines("fedsim", "FedSim", 0.95, 0.961, 0.97)


def test_a_clear_win_is_called_one_with_its_size() -> None:
    text = sentence(only(OURS, WORSE))
    assert text.startswith("FedAPM (91.00 ± 1.00%) wins, 10.00 points ahead of FedAvg (81.00 ± 1.00%)")
    assert "95% interval +7.52 to +12.48, 3 seeds, p = 0.003" in text


def test_within_the_noise_two_methods_are_level() -> None:
    table = only(OURS, LEVEL, WORSE)
    assert sentence(table).startswith("FedAPM (91.00 ± 1.00%) and FedAlt (90.50 ± 2.29%) are level: 0.50 points apart")
    assert overview.verdict(table) == "level"


def test_a_method_that_loses_is_shown_losing() -> None:
    table = only(OURS, BETTER, WORSE)
    text = sentence(table)
    assert text.startswith(
        "FedSim (96.03 ± 1.00%) wins; FedAPM is number 2 of 3 with 91.00 ± 1.00% and loses to it by 5.03 points"
    )
    assert overview.verdict(table) == "behind"


def test_behind_within_the_noise_is_level_and_says_who_is_first() -> None:
    table = only(OURS, lines("fedalt", "FedAlt", 0.89, 0.93, 0.94))
    assert (
        "FedAlt (92.00 ± 2.65%) has the highest accuracy, but the two are level: FedAPM is number 2 of 2"
        in sentence(table)
    )
    assert "1.00 points behind" in sentence(table)


def test_one_seed_decides_nothing() -> None:
    assert "One seed does not show whether this is chance" in sentence(only(OURS[:1], WORSE[:1]))
    assert overview.verdict(only(OURS[:1], BETTER[:1])) == "one seed"


def test_a_run_that_diverged_is_left_out_and_named() -> None:
    broken = [*WORSE[:2], replace(WORSE[2], status="diverged", accuracy=None)]
    never = [replace(line, status="untuned", accuracy=None) for line in BETTER]
    table = only(OURS, broken, never)
    assert [entry.label for entry in table.entries] == ["FedAPM", "FedAvg", "FedSim"]
    assert [entry.seeds_text for entry in table.entries] == ["", "1 of 3 runs diverged", "3 of 3 runs diverged"]
    assert table.ranks == {"FedAPM": 1, "FedAvg": 2}
    assert "3 of 3 runs diverged" in render_study([table], INFO)


def test_p_values_are_those_of_the_paired_t_test() -> None:
    left, right = {0: 0.9, 1: 0.95, 2: 0.97}, {0: 0.85, 1: 0.93, 2: 0.9, 7: 0.1}
    expected = ttest_rel([0.9, 0.95, 0.97], [0.85, 0.93, 0.9]).pvalue
    assert paired_p(left, right) == pytest.approx(expected)
    assert paired_p({0: 1.0}, {0: 0.5}) is None
    assert paired_p({0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.0}) == 1.0
    assert paired_p({0: 1.0, 1: 2.0}, {0: 0.5, 1: 1.5}) == 0.0
    assert [p_text(p) for p in (None, 0.0001, 0.04)] == ["–", "< 0.001", "0.040"]


def test_holm_by_hand() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_ranks_are_shared_by_equals_and_averaged_over_tables() -> None:
    same = lines("fedprox", "FedProx", 0.90, 0.91, 0.92)
    table = only(OURS, same, WORSE)
    assert table.ranks == {"FedAPM": 1, "FedProx": 1, "FedAvg": 3}
    other = only(lines("fedapm", "FedAPM", 0.5, case="cifar10"), lines("fedavg", "FedAvg", 0.6, case="cifar10"))
    assert by_label([table, other]) == {"FedAPM": [1, 2], "FedAvg": [3, 1], "FedProx": [1, None]}


def test_methods_without_a_split_stand_in_every_table() -> None:
    own = [replace(line, split="paper") for line in OURS]
    found = tables([*OURS, *own, *WORSE])
    assert [(table.split, len(table.entries)) for table in found] == [("chosen", 2), ("paper", 2)]


def test_fedapm_beside_fedalt_and_its_published_self() -> None:
    fast = [replace(line, rounds_to_fedalt=4) for line in OURS]
    slow = [replace(line, rounds_to_fedalt=10) for line in LEVEL]
    old = lines("fedapm-paper", "FedAPM-paper", 0.85, 0.87, 0.86)
    table = only(fast, slow, old)
    assert rounds_to_fedalt(table) == (4.0, 10.0)
    assert against_fedalt(table) == (
        "To FedAlt's final accuracy FedAPM needs 4.0 rounds and FedAlt 10.0, a share of 0.40."
    )
    assert against_published_method(table).startswith("FedAPM is ahead of FedAPM as published (86.00 ± 1.00%): +5.00")
    never = only([replace(fast[0], rounds_to_fedalt=None), *fast[1:]], slow)
    assert rounds_to_fedalt(never) is None
    assert "does not reach" in against_fedalt(never)


def test_findings_count_over_the_tables_of_one_split() -> None:
    old = lines("fedapm-paper", "FedAPM-paper", 0.80, 0.82, 0.81)
    fast = [replace(line, rounds_to_fedalt=6) for line in OURS], [replace(line, rounds_to_fedalt=12) for line in LEVEL]
    assert overview.findings([only(OURS, WORSE, old)], "chosen") == (
        "Over 1 table with the chosen split FedAPM is first beyond the noise in 1, level with the best other method in "
        "0, and behind the first beyond the noise in 0. It beats FedAPM as published beyond the noise in 1 of 1 and "
        "loses in 0."
    )
    text = overview.findings([only(*fast), only(OURS, BETTER)], "chosen")
    assert "Over 2 tables" in text
    assert "level with the best other method in 1, and behind the first beyond the noise in 1." in text
    assert "these shares: Digits, 30%: 0.50." in text
    # FedSim has no run in the first table and FedAlt none in the second: there they count as the last of three
    assert text.endswith("Mean ranks, the best of 3 models: FedAPM 1.50, FedSim 2.00 and FedAlt 2.50.")


def test_a_summary_survives_its_file(tmp_path: Path) -> None:
    write_lines(tmp_path / "summary.csv", [*OURS, *WORSE])
    assert read_lines(tmp_path / "summary.csv") == [*OURS, *WORSE]


def test_a_file_that_is_no_summary_is_named(tmp_path: Path) -> None:
    path = tmp_path / "summary.csv"
    with refused("is missing"):
        read_lines(path)
    path.write_text("a,b\n1,2\n")
    with refused("is not the summary of a study"):
        read_lines(path)
    write_lines(path, OURS)
    path.write_text(path.read_text().replace(",0.9,", ",much,", 1))
    with refused("line 2: accuracy is 'much'"):
        read_lines(path)


def test_both_pages_have_the_same_sentences_and_published_numbers_are_labelled() -> None:
    some = [lines("fedapm", "FedAPM", 0.7, 0.71, case="cifar10"), lines("fedavg", "FedAvg", 0.6, 0.62, case="cifar10")]
    table = only(*some)
    info = {"title": "A study", "cases": {"cifar10": {"title": "CIFAR-10", "plan": PLAN}}}
    page, text = render_study([table], info), study_markdown([table], info, {}, "ranks.svg")
    text += tables_markdown([table])
    assert sentence(table) in text
    assert sentence(table) in html.unescape(page)
    for shown in (page, text):
        assert "Published (Zhu et al., KDD 2025" in shown
        assert "73.8" in shown
    assert "![Ranks of methods over data sets](ranks.svg)" in text
    assert "FedAPM is first beyond the noise in 1, level with the best other method in 0" in text
    assert '<svg viewBox="' in page
