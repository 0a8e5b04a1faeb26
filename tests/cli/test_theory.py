"""fedapm theory, from a run folder and from an experiment file to the terminal, the file and the report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import fedapm as package
from tests.helpers.cli import assert_refused, fedapm
from tests.helpers.unit import blob_clients, two_layers
from tests.report.pages import check_markup, words_of

TOML = """
[data]
name = "digits"
clients = 4
[engine]
rounds = 9
fraction = 0.5
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that recorded what theory speaks of."""
    folder = tmp_path_factory.mktemp("theory")
    (folder / "e.toml").write_text(TOML)
    recorded = ["--set", "engine.theory=true", "--set", "engine.stationarity=true"]
    assert fedapm("run", folder / "e.toml", "--rounds", 10, "--out", folder / "run", *recorded).code == 0
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may write to."""
    return shutil.copytree(made / "run", tmp_path / "run")


def test_a_run_is_measured_where_it_stands(run: Path) -> None:
    outcome = fedapm("theory", run, "--clients", 2)
    assert outcome.code == 0, outcome.err
    for words in (
        "FedAPM on digits, seed 0, after round 10",
        "Curvature, 2 of 4 clients",
        "L_uv = ‖∇²_uv f_i‖",
        "3 α_i max(L_u, L_uv)",
        "disagreement at ū",
        "The descent lemma demands ρ ≥ ",
        "The Lyapunov function went down in ",
        f"Written to {run / 'theory.json'}",
    ):
        assert words in outcome.out, words
    assert outcome.err.splitlines()[-1] == "Curvature of clients: 2 of 2"


def test_the_report_shows_it(run: Path) -> None:
    before = (run / "report.html").read_text("utf-8")
    assert 'id="theory-table"' not in before
    assert 'id="theory"' in before, "the records alone make curves"
    assert fedapm("theory", run, "--clients", 2).code == 0
    page = (run / "report.html").read_text("utf-8")
    check_markup(page)
    assert 'id="theory-table"' in page
    assert "The descent lemma demands ρ ≥ " in words_of(page)
    assert "Lyapunov function against rounds" in page
    assert "Residuals of FedAPM against rounds" in page
    assert "Disagreement against rounds" in page


def test_the_same_command_gives_the_same_numbers(run: Path) -> None:
    first, second = (fedapm("theory", run, "--clients", 2, "--json") for _ in range(2))
    assert first.out == second.out
    found = json.loads(first.out)
    assert json.loads((run / "theory.json").read_text("utf-8")) == found
    study, course = found["study"], found["course"]
    assert study["round"] == course["rounds"] == 10
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text("utf-8").splitlines()]
    for name in ("lagrangian", "lyapunov", "primal", "disagreement"):
        assert study[name] == pytest.approx(rows[-1]["theory"][name], rel=1e-6), name
    assert study["stationarity"]["total"] == pytest.approx(rows[-1]["stationarity"]["total"], rel=1e-6)
    largest = max(max(c["u"], c["uv"]) for c in study["constants"])
    assert study["demanded"]["rho"] == pytest.approx(3 * largest)
    assert len(found["sentences"]) == 4


def test_an_experiment_is_measured_at_its_start_and_later(made: Path, tmp_path: Path) -> None:
    options = ["--clients", 1, "--samples", 20, "--json"]
    start, later = (json.loads(fedapm("theory", made / "e.toml", "--after", n, *options).out) for n in (0, 2))
    assert (start["study"]["round"], later["study"]["round"]) == (0, 2)
    assert start["course"] is None
    assert later["course"]["rounds"] == 2
    assert start["study"]["constants"][0]["samples"] == 20
    assert start["study"]["lyapunov"] > later["study"]["lyapunov"]
    assert start["study"]["primal"] == 0
    assert [p.name for p in made.iterdir() if p.name == "theory.json"] == []


def test_for_other_methods_it_says_what_does_not_apply(made: Path) -> None:
    outcome = fedapm("theory", made / "e.toml", "--set", "algorithm.name=fedavg", "--clients", 1)
    assert "The analysis is about FedAPM; it has no bounds, Lagrangian or rate for FedAvg." in outcome.out
    assert "L_u = " in outcome.out
    assert "L_v = " not in outcome.out
    assert "Penalties" not in outcome.out
    assert "disagreement at ū" in outcome.out
    alone = fedapm("theory", made / "e.toml", "--set", "algorithm.name=local", "--clients", 1)
    assert "nothing to disagree about" in alone.out


def test_what_cannot_be_measured_is_refused(run: Path, tmp_path: Path) -> None:
    assert_refused(fedapm("theory", tmp_path / "none"), "none", "does not exist")
    assert_refused(fedapm("theory", run, "--after", 3), "--after", "experiment file")
    assert_refused(fedapm("theory", tmp_path), "not a run folder")
    own = tmp_path / "own"
    package.train(blob_clients(), two_layers(), personal=["head"], rounds=1, out=own, progress=False)
    assert_refused(fedapm("theory", own), str(own), "of your own", "Result.theory")
    shutil.rmtree(run / "checkpoints")
    assert_refused(fedapm("theory", run), "no checkpoint")


def test_a_result_of_ones_own_data_has_it_too() -> None:
    result = package.train(
        blob_clients(), two_layers(), personal=["head"], rounds=2, fraction=1.0, theory=True, progress=False
    )
    found = result.theory(clients=2)
    assert [c.client for c in found.study.constants] == sorted(c.client for c in found.study.constants)
    assert found.course.steps == 2
    assert found.sentences[0].startswith("The descent lemma demands")
    assert result.history["theory.lyapunov"].iloc[-1] == pytest.approx(found.study.lyapunov, rel=1e-6)
