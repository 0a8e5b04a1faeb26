"""The page: what it says, that it says it safely, and that it is the same each time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedapm.errors import FedapmError
from fedapm.report import write_report
from tests.report.fake_runs import COMPARISON, Fake, tiny_run, write_comparison, write_fake
from tests.report.pages import Shown, check_markup, page_of, words_of


def test_the_same_folder_gives_the_same_bytes(compared: Shown, tmp_path: Path) -> None:
    second = write_report(compared.folder, tmp_path / "elsewhere" / "again.html")
    assert second == tmp_path / "elsewhere" / "again.html"
    assert second.read_bytes() == (compared.folder / "report.html").read_bytes()


def test_a_comparison(compared: Shown) -> None:
    page, words = compared.page, compared.words
    check_markup(page)
    assert "3 methods on digits" in words
    assert "FedAPM ends with the highest mean accuracy" in words
    assert "The difference is significant (95% interval" in words
    assert "FedAvg is significantly worse" in words
    assert "AUC is the mean over the 5 of 6 clients" in words
    assert "Every run finished" in words
    assert "Best round, as the paper reports it" in words
    assert "chosen with the test data, so these numbers are too optimistic" in words
    assert "nothing is highlighted" not in words
    assert page.count('role="img" aria-label="Accuracy') >= 3
    assert "Local, last value" in page
    assert 'class="best"' in page


def test_a_single_run_in_its_own_folder(single: Shown) -> None:
    check_markup(single.page)
    assert (single.folder / "report.html").is_file()
    words = single.words
    assert "FedAPM on digits" in words
    assert "nothing is highlighted : there is nothing to compare with" in words
    assert "±" not in words.replace("mean ± sample", "")
    assert "no run in which clients train alone" in words


def test_a_difference_that_is_not_significant_is_called_that(tmp_path: Path) -> None:
    for seed, (one, other) in enumerate([(0.9, 0.8), (0.7, 0.72), (0.8, 0.79)]):
        tiny_run(tmp_path / "a" / str(seed), "fedavg", seed, [[0.1], [one]])
        tiny_run(tmp_path / "b" / str(seed), "fedapm", seed, [[0.1], [other]])
    words = words_of(page_of(tmp_path))
    assert "The difference is not significant" in words
    assert "nothing is highlighted" in words


def test_a_tie_is_called_a_tie(tmp_path: Path) -> None:
    tiny_run(tmp_path / "a", "fedavg", 1, [[0.5]])
    tiny_run(tmp_path / "b", "fedapm", 1, [[0.5]])
    assert "Fedapm and Fedavg share the highest mean accuracy, 50.00%" in words_of(page_of(tmp_path))


def test_everything_from_outside_is_escaped(tmp_path: Path) -> None:
    evil = "</pre></svg><script>alert(1)</script>"
    ids = [evil, '" onload="alert(1)', "$x_1$", "客户", "_e", "&amp;"]
    write_comparison(
        tmp_path,
        (
            Fake("m1", f"_A {evil} $y$", ids=ids, data=evil, config=f"# {evil}\n", dropped={2: [0, 1]}),
            Fake("local", f"方法 {evil}", ids=ids, data=evil, drift=None, megabytes=0.0),
        ),
    )
    page = page_of(tmp_path)
    tags = check_markup(page)
    assert "script" not in tags.names
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_what_went_wrong_is_said(tmp_path: Path) -> None:
    write_comparison(tmp_path)
    first, second, _ = COMPARISON
    write_fake(tmp_path / "fedapm" / "seed-2", replace(first, seed=2, status="diverged", reached=5))
    write_fake(tmp_path / "fedavg" / "seed-1", replace(second, dropped={3: [0, 4], 5: [4]}))
    page = page_of(tmp_path)
    check_markup(page)
    words = words_of(page)
    assert "FedAPM, seed 2, diverged" in words
    assert "reached round 5 of 12 and is left out of all numbers and curves" in words
    assert "FedAvg, seed 1: 3 results not finite and not used, in rounds 3 and 5, from clients “0” and “4”" in words
    assert "Not every run of FedAPM finished, so this is not conclusive" in words
    assert "Not everything went as planned" in words


def test_runs_that_have_nothing_yet(tmp_path: Path) -> None:
    write_fake(tmp_path / "a", replace(COMPARISON[0], status="running", reached=-1))
    write_fake(tmp_path / "b", replace(COMPARISON[1], status="interrupted", reached=0))
    page = page_of(tmp_path)
    check_markup(page)
    assert "it was never evaluated" in words_of(page)
    write_fake(tmp_path / "b", replace(COMPARISON[1], status="running", reached=-1))
    page = page_of(tmp_path)
    check_markup(page)
    assert "No model was evaluated" in words_of(page)


def test_unequal_terms_are_said(tmp_path: Path) -> None:
    write_fake(tmp_path / "a1", Fake("fedapm", "FedAPM", 1, config="[solver]\nlr = 0.1\nseed = 1\n"))
    write_fake(tmp_path / "a2", Fake("fedapm", "FedAPM", 2, config="[solver]\nlr = 0.2\nseed = 2\n"))
    write_fake(tmp_path / "b1", Fake("fedavg", "FedAvg", 1, rounds=6, capped=True))
    words = words_of(page_of(tmp_path))
    assert "differ in more than the seed (solver.lr)" in words
    assert "planned for different numbers of rounds: FedAPM 12 and FedAvg 6" in words
    assert "FedAvg has no run with seed 2" in words
    assert "12 of 36 local solves (33%) ended at the limit" in words


def test_what_has_no_effect_on_results_is_no_difference(tmp_path: Path) -> None:
    for seed in (1, 2):
        config = f"[engine]\nseed = {seed}\nworkers = {seed}\ncheckpoint_every = {seed}\n"
        write_fake(tmp_path / str(seed), Fake("fedapm", "FedAPM", seed, config=config))
    assert "differ in more than" not in words_of(page_of(tmp_path))


def test_other_data_is_said(other_data: Shown) -> None:
    assert "do not compare" in other_data.words
    assert "Paired differences" not in other_data.words


def test_regression(regression: Shown) -> None:
    check_markup(regression.page)
    words = regression.words
    assert "lowest mean test loss" in words
    assert "Accuracy" not in words
    assert "Best round" not in words
    assert "Test loss 0." in words


def test_only_local_runs_send_nothing(tmp_path: Path) -> None:
    page = page_of(write_comparison(tmp_path, COMPARISON[2:]))
    check_markup(page)
    assert "by megabytes sent" not in page


def test_settings_hold_the_configuration_and_the_versions(compared: Shown) -> None:
    words = compared.words
    assert "config.toml of seed 1; also run with seeds 2, 3" in words
    assert "Round 0 is before training" in words
    assert "torch 2.13.0" in words


@pytest.mark.parametrize(("methods", "clients", "rounds"), [(2, 2, 1), (14, 130, 5), (3, 5, 300)])
def test_sizes(tmp_path: Path, methods: int, clients: int, rounds: int) -> None:
    fakes = [
        Fake(f"m{i}", f"Method {i}", views={"model": 0.9 - 0.02 * i}, clients=clients, rounds=rounds, every=2)
        for i in range(methods - 1)
    ]
    local = Fake("local", "Local", clients=clients, rounds=rounds, every=2, drift=None, megabytes=0.0)
    page = page_of(write_comparison(tmp_path, (*fakes, local), seeds=(1, 2)))
    check_markup(page)
    curves, differences, drift, spread, gains = 6, 1, int(methods > 2), 1, methods - 1
    assert page.count("<figure>") == curves + differences + drift + spread + gains


def test_stationarity_is_drawn_where_it_was_asked_for(tmp_path: Path) -> None:
    page = page_of(write_fake(tmp_path, Fake("fedapm", "FedAPM", stationarity=True)))
    check_markup(page)
    assert "Distance from a stationary point by round" in page


def test_a_folder_without_runs_is_an_error_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(FedapmError, match="holds no run") as caught:
        write_report(tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
