"""The section on theory: what it shows of records and of theory.json, and that it needs neither."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from fedapm.theory.bounds import Penalties
from fedapm.theory.constants import ClientConstants
from fedapm.theory.course import course
from fedapm.theory.findings import Findings
from fedapm.theory.sentences import descent_sentence, disagreement_sentence, rate_sentence, sentences
from fedapm.theory.study import Study
from tests.helpers.unit import refused
from tests.report.fake_runs import Fake, write_fake
from tests.report.pages import check_markup, page_of, words_of

STUDY = Study(
    method="fedapm",
    label="FedAPM",
    data="digits",
    seed=1,
    round=30,
    clients=6,
    local_steps=9.0,
    constants=(ClientConstants("a", 1.0, 50, 50, 2.0, 1.0, 0.5), ClientConstants("b", 1.0, 50, 50, 4.0, 3.0, 1.5)),
    in_use=Penalties(0.03, 0.01),
    demanded=Penalties(12.0, 6.4),
    disagreement=40.0,
    cancels=False,
    lagrangian=1.5,
    lyapunov=1.5,
    primal=0.25,
    stationarity=None,
)


def records(folder: Path, rho: float = 0.3, factor: float = 0.8) -> list[dict]:
    """Give the rounds of a run a Lyapunov function that shrinks by a factor in each."""
    path = folder / "rounds.jsonl"
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for row in rows:
        number = row["round"]
        row["theory"] = {
            "lagrangian": 3 + factor**number,
            "lyapunov": 3 + factor**number,
            "primal": 0.9**number if number else 0.0,
            "dual": 0.5 * 0.9**number if number else None,
            "rho": rho,
            "disagreement": 2.0 + number,
        }
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows


def test_a_run_without_records_has_no_such_section(single) -> None:
    assert 'id="theory"' not in single.page


def test_records_and_a_study_make_a_section(tmp_path: Path) -> None:
    folder = write_fake(tmp_path, Fake("fedapm", "FedAPM", rounds=30))
    rows = records(folder)
    Findings(STUDY, course(rows)).write(folder)
    page = page_of(folder)
    check_markup(page)
    words = words_of(page)
    assert "The descent lemma demands ρ ≥ 12 (in use: 0.03, 400 times less) and σ ≥ 6.4" in words
    assert "Clients disagree by a factor of 40" in words
    assert "went down in every round (30 rounds, up to round 30)" in words
    assert "linear rate, exponent θ = 0.50 ± 0.00 in rounds 10 to 30; what is left shrinks by 20% a round" in words
    assert "3 2 to 4" in words, "L_u: its median and its range"
    assert "demanded 12" in words
    assert "Lyapunov function against rounds" in page
    assert "Residuals of FedAPM against rounds. Last values: primal" in page


def test_records_alone_are_enough(tmp_path: Path) -> None:
    records(write_fake(tmp_path / "a", Fake("fedapm", "FedAPM", rounds=30)))
    write_fake(tmp_path / "b", Fake("fedavg", "FedAvg", rounds=30))
    page = page_of(tmp_path)
    check_markup(page)
    assert "Lyapunov function against rounds" in page
    assert 'id="theory-table"' not in page


def test_a_study_alone_is_too_and_several_runs_are_told_apart(tmp_path: Path) -> None:
    for seed in (1, 2):
        folder = write_fake(tmp_path / f"seed-{seed}", Fake("fedapm", "FedAPM", seed=seed))
        Findings(replace(STUDY, seed=seed), None).write(folder)
    page = page_of(tmp_path)
    check_markup(page)
    assert "FedAPM, seed 2. The descent lemma" in words_of(page)
    assert "Lyapunov function against rounds" not in page


def test_a_method_without_bounds(tmp_path: Path) -> None:
    folder = write_fake(tmp_path, Fake("fedavg", "FedAvg"))
    nothing_personal = tuple(replace(c, v=None, uv=None) for c in STUDY.constants)
    study = replace(STUDY, label="FedAvg", in_use=None, demanded=None, constants=nothing_personal)
    Findings(study, None).write(folder)
    assert "it has no bounds, Lagrangian or rate for FedAvg" in words_of(page_of(folder))


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    folder = write_fake(tmp_path, Fake("fedapm", "FedAPM"))
    (folder / "theory.json").write_text('{"study": {"round": 3}}')
    with refused("theory.json", "fedapm theory"):
        page_of(folder)


def test_values_under_another_rho_do_not_count(tmp_path: Path) -> None:
    rows = records(write_fake(tmp_path, Fake("fedapm", "FedAPM", rounds=30)))
    for row in rows[:11]:
        row["theory"]["rho"] = 0.1
    found = course(rows)
    assert (found.first, found.steps, found.rho_changed) == (11, 19, True)
    assert "since round 11, when ρ last changed" in descent_sentence(found)
    for row in rows:
        row["theory"]["rho"] = 0.9 ** row["round"]
    assert sentences(None, course(rows)) == [
        "ρ changes from round to round, so the values of the Lyapunov function do not compare."
    ]


def test_what_disagreement_means_in_words() -> None:
    def said(**changes: object) -> str:
        return disagreement_sentence(replace(STUDY, **changes))

    assert "averaging is enough" in said(disagreement=0.2)
    assert "look again after some rounds" in said(disagreement=0.2, round=0)
    assert "A comparison says whether it pays" in said(disagreement=3.0)
    assert "expect FedAPM to need fewer rounds" in said(disagreement=5.0)
    assert "a round is one local step" in said(local_steps=1.0)
    assert "cancel" in said(disagreement=None, cancels=True)
    assert "nothing to disagree about" in said(disagreement=None)


def test_why_there_is_no_rate_is_said() -> None:
    assert rate_sentence("5 rounds are too few") == (
        "No rate can be read off the Lyapunov function: 5 rounds are too few."
    )
