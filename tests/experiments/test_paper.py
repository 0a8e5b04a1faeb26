"""``fedapm paper``: all steps in one command, killed in the middle and started again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedapm.algorithms import METHODS
from fedapm.errors import FedapmError
from fedapm.experiments import paper
from fedapm.runs.records import find_runs
from tests.helpers.cli import assert_refused, fedapm
from tests.helpers.forked import program

STEPS = ("tune", "compare", "rho", "fraction")
SETTINGS = [
    "data.clients=4",
    "solver.batch_size=200",
    "solver.epochs=1",
    "engine.evaluate_every=2",
    "engine.stuck_after=60",
]
SIZE = ["--methods", "fedapm,local", "--seeds", "0,1", "--rounds", "3", "--trials", "2", "--workers", "2"]


def command(out: Path, *more: str) -> list[str]:
    sets = [part for setting in SETTINGS for part in ("--set", setting)]
    return ["paper", "--data", "digits", *SIZE, *sets, "--out", str(out), *more]


def results(folder: Path) -> dict[str, bytes]:
    """What the runs of all steps left, without anything that depends on the clock."""
    found = [*folder.rglob("rounds.jsonl"), *folder.rglob("config.toml"), *folder.rglob("tuned.toml")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything, killed once while it compares and started again."""
    out = tmp_path_factory.mktemp("paper") / "out"
    first = program(*command(out), said=out.with_name("said"))
    first.until(lambda: list((out / "compare").rglob("rounds.jsonl"))).end()
    assert not (out / "report.html").exists()
    again = fedapm(*command(out))
    assert again.code == 0, again.err
    assert f"Report: {out / 'report.html'}" in again.out.replace("\n", "")
    return out


def test_every_step_is_there_and_complete(done: Path) -> None:
    for step in STEPS:
        assert all(run.complete for run in find_runs(done / step)), step
        assert (done / step / "card.md").is_file() or step == "tune"
    for step in STEPS[1:]:
        assert (done / step / "report.html").is_file()
    assert {run.info["method"] for run in find_runs(done / "compare")} == {"fedapm", "local"}


def test_the_comparison_uses_what_the_search_found(done: Path) -> None:
    found = json.loads((done / "tune" / "tune.json").read_text())["methods"]["local"]["settings"]
    config = (done / "compare" / "local" / "seed-0" / "config.toml").read_text()
    assert f"lr = {found['solver.lr']}" in config
    assert "validation = 0.0" in config
    assert json.loads((done / "compare" / "compare.json").read_text())["tuned"]["file"] == "tune"


def test_the_first_page_has_the_numbers_and_the_way_to_the_others(done: Path) -> None:
    page = (done / "report.html").read_text()
    for link in ("compare/report.html", "rho/report.html", "fraction/report.html", "tune/tuned.toml", "card.md"):
        assert f'href="{link}"' in page, link
        assert (done / link).is_file()
    assert page.count("FedAPM") > 2
    assert "2 trials of each method" in page


def test_the_first_page_shows_both_sweeps(done: Path) -> None:
    page = (done / "report.html").read_text()
    parts = [re.findall(r"<svg", part) for part in page.split('<section id="sweep-')[1:]]
    assert len(parts) == 2
    assert all(len(figures) >= 3 for figures in parts), "accuracy, training loss and drift"
    ids = re.findall(r' id="([^"]+)"', page)
    assert sorted(set(ids)) == sorted(ids), "no two things on the page have the same id"


def test_started_again_it_finds_everything_done(done: Path) -> None:
    before = results(done)
    again = fedapm(*command(done))
    assert again.code == 0, again.err
    assert results(done) == before


def test_other_arguments_into_the_same_folder_are_refused(done: Path) -> None:
    for more, named in ((["--trials", "3"], "scale"), (["--set", "solver.lr=0.3"], "settings")):
        assert_refused(fedapm(*command(done, *more)), f"was begun with other {named}")


def test_a_mistake_is_refused_before_anything_is_left_behind(tmp_path: Path) -> None:
    for more, named in (
        (["--scale", "tiny"], "unknown scale 'tiny'"),
        (["--set", "solver.speed=3"], "solver.speed"),
        (["--methods", "fedavgg"], "fedavgg"),
        (["--seeds", "one"], "whole numbers"),
    ):
        assert_refused(fedapm(*command(tmp_path / "out", *more)), named)
    assert list(tmp_path.iterdir()) == []


def test_the_full_scale_is_the_papers() -> None:
    full = paper.scale("full", "cifar10")
    assert full.methods == tuple(METHODS)
    assert full.rounds == 300
    # the paper's ρ for 20 clients, in per-client units
    assert {20 * rho for rho in (0.001, 0.01, 0.02, 0.05, 0.1)} <= set(full.rhos)
    assert {0.1, 0.2, 0.3, 0.5} == set(full.fractions)
    assert full.trials >= 20


def test_small_is_smaller_where_rounds_take_long() -> None:
    assert sum(paper.scale("small", "cifar10").runs().values()) < sum(paper.scale("small", "digits").runs().values())
    with pytest.raises(FedapmError, match="unknown scale"):
        paper.scale("medium", "digits")
