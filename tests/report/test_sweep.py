"""The report of a sweep: what it says and draws, safely and the same each time, and that a browser shows it whole."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

from fedapm.errors import FedapmError
from fedapm.report.numbers import tick
from fedapm.report.sweep.axis import value_axis
from fedapm.report.sweep.runs import read_sweep, write_sweep_report
from fedapm.runs.layout import SWEEP_INFO
from tests.report.fake_runs import Fake, tiny_run, write_fake
from tests.report.pages import check_markup, words_of
from tests.report.test_browser import CHROMIUM, DRIVER, FLAGS, WIDTHS

RHO = "algorithm.rho"
APM = Fake("fedapm", "FedAPM", views={"model": 0.9}, config="")
AVG = Fake("fedavg", "FedAvg", views={"model": 0.8}, drift=2.0, config="")
Place = tuple[Fake, dict[str, Any]]


def write_sweep(folder: Path, vary: dict[str, Any], places: Sequence[Place], seeds: Sequence[int] = (1, 2, 3)) -> Path:
    """Runs and the record of their sweep."""
    runs = {}
    for fake, values in places:
        for seed in seeds:
            inside = "/".join([*(f"{name}={i}" for i, name in enumerate(values)), *map(str, values.values())])
            place = f"{inside or 'all'}/{fake.method}/seed-{seed}"
            write_fake(folder / place, replace(fake, seed=seed))
            runs[place] = values
    (folder / SWEEP_INFO).write_text(json.dumps({"vary": vary, "runs": runs}), encoding="utf-8")
    return folder


def rho_sweep(folder: Path, seeds: Sequence[int] = (1, 2, 3)) -> Path:
    """FedAPM at four values, and FedAvg, which does not have the setting."""
    ends = {0.001: 0.6, 0.01: 0.93, 0.1: 0.8, 1: 0.5}
    places: list[Place] = [(replace(APM, views={"model": end}), {RHO: rho}) for rho, end in ends.items()]
    return write_sweep(folder, {RHO: [1, 0.001, 0.01, 0.1]}, [*places, (AVG, {})], seeds)


def page_of(folder: Path) -> str:
    return write_sweep_report(folder).read_text(encoding="utf-8")


def description(page: str, start: str) -> str:
    """The description of the first figure whose description starts like this."""
    labels = re.findall(r'aria-label="([^"]*)"', page)
    return next(text for text in labels if text.startswith(start))


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep and its report, only to be read."""
    folder = rho_sweep(tmp_path_factory.mktemp("sweep"))
    assert write_sweep_report(folder) == folder / "report.html"
    return folder


def test_the_same_folder_gives_the_same_bytes(usual: Path, tmp_path: Path) -> None:
    again = write_sweep_report(usual, tmp_path / "x" / "again.html")
    assert again.read_bytes() == (usual / "report.html").read_bytes()


def test_a_sweep_over_one_setting(usual: Path) -> None:
    page = (usual / "report.html").read_text(encoding="utf-8")
    check_markup(page)
    words = words_of(page)
    assert "Sweep over algorithm.rho" in words
    assert "algorithm.rho 0.001, 0.01, 0.1, 1" in words, "numbers are in their order"
    assert "The highest mean accuracy is that of FedAPM at algorithm.rho = 0.01" in words
    assert "The difference is significant over 3 seeds" in words
    assert re.search(r"Over the values tried, the mean accuracy goes from [\d.]+% to [\d.]+% for FedAPM\.", words)
    assert "Every run finished" in words
    assert "scores on test data" in words
    assert page.count("<figure>") == 3 + 2 * 2
    assert "algorithm.rho, log scale" in page
    accuracy = description(page, "Accuracy in per cent against algorithm.rho.")
    assert "at 0.001" in accuracy
    assert "without the setting" in accuracy
    assert "FedAvg, no rho" in page
    assert "is a dashed line" in words
    assert len(re.findall(r"<tr><th scope=\"row\"><div class=\"named\">", page)) == 5


def test_the_figure_has_the_numbers_of_the_table(tmp_path: Path) -> None:
    for seed, (low, high) in {1: (0.5, 0.9), 2: (0.6, 0.7)}.items():
        tiny_run(tmp_path / f"a/seed-{seed}", "fedapm", seed, [[0.1], [low]])
        tiny_run(tmp_path / f"b/seed-{seed}", "fedapm", seed, [[0.1], [high]])
    runs = {f"{name}/seed-{seed}": {RHO: rho} for name, rho in {"a": 1, "b": 2}.items() for seed in (1, 2)}
    (tmp_path / SWEEP_INFO).write_text(json.dumps({"vary": {RHO: [1, 2]}, "runs": runs}))
    page = page_of(tmp_path)
    assert description(page, "Accuracy in per cent against").endswith("Fedapm: 55.00 at 1, 80.00 at 2.")
    cells = re.findall(r"<td>([^<]*) <span class=\"std\">([^<]*)</span></td>", page)
    assert ("55.00", "± 7.07") in cells
    assert ("80.00", "± 14.14") in cells
    assert "log scale" not in description(page, "Accuracy")
    assert "The difference is not significant" in words_of(page)


def test_diverged_and_unfinished_and_missing_runs_are_named_and_drawn_as_that(tmp_path: Path) -> None:
    places: list[Place] = [
        (APM, {RHO: 0.1}),
        (replace(APM, status="diverged", reached=1), {RHO: 1}),
        (replace(APM, status="interrupted", reached=3), {RHO: 10}),
    ]
    write_sweep(tmp_path, {RHO: [0.1, 1, 10, 100]}, places, seeds=(1,))
    record = json.loads((tmp_path / SWEEP_INFO).read_text())
    record["runs"]["not/there/seed-1"] = {RHO: 100}
    (tmp_path / SWEEP_INFO).write_text(json.dumps(record))
    page = page_of(tmp_path)
    check_markup(page)
    words = words_of(page)
    assert "1 run of the sweep has not been started yet: “not/there/seed-1”" in words
    assert "FedAPM, algorithm.rho = 1: seed 1 diverged after round 1 of 12. There is no result" in words
    assert "FedAPM, algorithm.rho = 10: seed 1 was interrupted after round 3 of 12. There is no result" in words
    accuracy = description(page, "Accuracy")
    assert "diverged at 1" in accuracy
    assert "at 10" not in accuracy, "an unfinished run is no result"
    assert "10 (unfinished): " in description(page, "accuracy (%) over rounds")
    assert ", 1: " not in description(page, "accuracy (%) over rounds"), "a diverged run has no course worth drawing"
    assert [point.state for point in read_sweep(tmp_path).points] == ["complete", "diverged", "unfinished"]
    assert "there is nothing to compare it with" in words


def test_a_lost_seed_makes_a_point_inconclusive(tmp_path: Path) -> None:
    rho_sweep(tmp_path)
    for path in tmp_path.rglob("seed-1/run.json"):
        path.write_text(path.read_text().replace('"complete"', '"diverged"'))
    page = page_of(tmp_path)
    check_markup(page)
    assert "so this is not conclusive" in words_of(page)
    assert "FedAPM, algorithm.rho = 0.1: seed 1 diverged after round 12 of 12. The other seeds count" in words_of(page)
    assert '<em class="flag">incomplete</em>' in page


def test_two_settings_give_a_figure_a_method_and_a_line_for_the_other(tmp_path: Path) -> None:
    places: list[Place] = [
        (replace(fake, views={"model": 0.5 + 0.1 * i + 0.02 * j}), {RHO: rho, "engine.fraction": share})
        for i, rho in enumerate((0.1, 0.2, 0.3))
        for j, share in enumerate((0.5, 1.0))
        for fake in (APM, replace(APM, method="fedadmm", label="FedADMM"))
    ]
    places += [(AVG, {"engine.fraction": share}) for share in (0.5, 1.0)]
    vary = {RHO: [0.1, 0.2, 0.3], "engine.fraction": [0.5, 1.0]}
    page = page_of(write_sweep(tmp_path, vary, places, seeds=(1, 2)))
    check_markup(page)
    assert page.count("<figure>") == 3 * 3 + 2 * 3
    assert "<figcaption>Accuracy, FedADMM</figcaption>" in page
    assert "engine.fraction = 0.5" in page
    assert "rho 0.1, fraction 0.5" in page
    assert "Sweep over algorithm.rho and engine.fraction" in words_of(page)
    assert "log scale" not in description(page, "Accuracy")


def test_values_that_are_no_numbers_stand_side_by_side(tmp_path: Path) -> None:
    names = ["local", "shared", "a name that is much too long for an axis", "<b>&", "d", "e", "f"]
    places: list[Place] = [(APM, {"algorithm.v_at": name}) for name in names]
    folder = write_sweep(tmp_path, {"algorithm.v_at": names}, [], seeds=())
    runs = {}
    for i, (fake, values) in enumerate(places):
        write_fake(folder / f"v{i}" / "seed-1", fake)
        runs[f"v{i}/seed-1"] = values
    (folder / SWEEP_INFO).write_text(json.dumps({"vary": {"algorithm.v_at": names}, "runs": runs}))
    page = page_of(folder)
    check_markup(page)
    assert "<b>&<" not in page
    assert "there is one seed, so there are no whiskers" in words_of(page)


def test_models_of_one_method_are_lines_of_their_own_and_drift_is_drawn_once(tmp_path: Path) -> None:
    ditto = Fake("ditto", "Ditto", views={"P": 0.9, "G": 0.7})
    page = page_of(write_sweep(tmp_path, {"algorithm.lam": [1, 2]}, [(ditto, {"algorithm.lam": x}) for x in (1, 2)]))
    check_markup(page)
    assert "Ditto-G: " in description(page, "Accuracy")
    assert "Ditto: " in description(page, "Drift")


def test_validation_scores_are_called_that(tmp_path: Path) -> None:
    judged = replace(APM, config="[data]\nvalidation = 0.2\n[algorithm]\nrho = 1.0\n")
    page = page_of(write_sweep(tmp_path, {RHO: [1, 2]}, [(judged, {RHO: 1}), (judged, {RHO: 2})]))
    words = words_of(page)
    assert "Every score here is a validation score" in words
    assert "scores on test data" not in words


def test_runs_that_differ_in_more_than_what_was_varied_are_named(tmp_path: Path) -> None:
    def with_lr(rho: float, lr: float) -> Place:
        config = f"[algorithm]\nrho = {rho}\n[solver]\nlr = {lr}\n[engine]\nseed = 1\nworkers = {int(rho)}\n"
        return replace(APM, config=config), {RHO: rho}

    page = page_of(write_sweep(tmp_path / "a", {RHO: [1.0, 2.0]}, [with_lr(1.0, 0.1), with_lr(2.0, 0.1)]))
    assert "differ in more than" not in words_of(page)
    page = page_of(write_sweep(tmp_path / "b", {RHO: [1.0, 2.0]}, [with_lr(1.0, 0.1), with_lr(2.0, 0.2)]))
    assert "differ in more than the seed and what was varied (solver.lr)" in words_of(page)


def test_many_values_and_rounds_stay_readable(tmp_path: Path) -> None:
    values = [round(0.05 * i, 2) for i in range(1, 21)]
    places: list[Place] = [(replace(APM, rounds=300, every=5), {"engine.fraction": x}) for x in values]
    page = page_of(write_sweep(tmp_path, {"engine.fraction": values}, places, seeds=(1,)))
    check_markup(page)
    assert "of the others at most 12 are drawn" in words_of(page)
    legend = description(page, "accuracy (%) over rounds")
    assert legend.count(":") == 12
    assert "0.05:" in legend
    assert "1:" in legend


@pytest.mark.parametrize(
    ("values", "log", "places"),
    [
        ([0.1, 0.2, 0.5], False, [0.1, 0.2, 0.5]),
        ([1, 29], False, [1, 29]),
        ([1, 10, 100], True, [0, 1, 2]),
        ([0, 0.01, 1], True, [-4, -2, 0]),
        ([0, 1], False, [0, 1]),
        ([-1, 100], False, [-1, 100]),
        (["a", "b"], False, [0, 1]),
        ([True, False], False, [0, 1]),
        ([5], False, [5]),
    ],
)
def test_where_values_stand(values: list[Any], log: bool, places: list[float]) -> None:
    axis = value_axis("a.b", values)
    assert axis.log is log
    assert list(axis.places) == pytest.approx(places)
    assert [axis.place(value) for value in values] == pytest.approx(places)
    assert axis.width > 0


def test_labels_of_crowded_values_are_left_out_and_never_touch() -> None:
    axis = value_axis("a.b", [0.001, 0.0011, 0.0012, 0.5, 1.0])
    shown = [text for text in axis._thinned(list(axis.labels)) if text]
    assert shown == ["0.001", "0.5", "1"] or shown == ["0.001", "0.5"]
    assert tick(0.001) in shown


@pytest.mark.parametrize(
    ("text", "mention"),
    [
        ("{", "not valid JSON"),
        ("{}", "not the record of a sweep"),
        ('{"vary": {}, "runs": {}}', "not the record of a sweep"),
        ('{"vary": {"a.b": [1]}, "runs": {}}', "no run"),
        ('{"vary": {"a.b": [1]}, "runs": {"../x": {}}}', "not in its folder"),
        ('{"vary": {"a.b": [1]}, "runs": {"/x": {}}}', "not in its folder"),
        ('{"vary": {"a.b": [1]}, "runs": {"x": 3}}', "not in its folder"),
    ],
)
def test_a_bad_record_is_one_line(tmp_path: Path, text: str, mention: str) -> None:
    (tmp_path / SWEEP_INFO).write_text(text)
    with pytest.raises(FedapmError, match=mention) as caught:
        write_sweep_report(tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "report.html").exists()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    try:
        yield browser
    finally:
        browser.quit()


@pytest.mark.browser
@pytest.mark.skipif(not (shutil.which("chromium") and DRIVER), reason="chromium or chromedriver is not installed")
def test_a_browser_shows_it_whole_at_any_width(usual: Path, driver: webdriver.Chrome) -> None:
    report = usual / "report.html"
    for width in WIDTHS.values():
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        driver.get(report.as_uri())
        assert driver.execute_script("return document.scrollingElement.scrollWidth") <= width
        texts = driver.execute_script(
            "return [...document.querySelectorAll('figure > svg')].flatMap(svg => {"
            "const s = svg.getBoundingClientRect(); return [...svg.querySelectorAll('text')].map(e => {"
            "const t = e.getBoundingClientRect(), inside = t.left >= s.left - 1 && t.right <= s.right + 1"
            " && t.top >= s.top - 1 && t.bottom <= s.bottom + 1;"
            "const scale = s.width / svg.viewBox.baseVal.width;"
            "return [e.textContent, inside, parseFloat(getComputedStyle(e).fontSize) * scale]})})"
        )
        assert len(texts) > 50
        assert [text for text, inside, _ in texts if not inside] == []
        assert min(size for *_, size in texts) >= 8
