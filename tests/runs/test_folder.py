"""Folders of results: one command at a time, nothing overwritten, nothing continued with other settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.runs import folder
from fedapm.runs.config import changed_settings, read_config, write_config
from fedapm.runs.folder import (
    check_settings,
    entered,
    is_done,
    is_locked,
    locked,
    refuse_foreign,
    refuse_to_overwrite,
    rewind,
    tidy,
)
from fedapm.runs.records import JsonLines, write_info
from tests.helpers.cli import QUICK, assert_refused, fedapm
from tests.helpers.unit import refused

SETTINGS = {"solver": {"lr": 0.1, "lr_schedule": "constant"}, "engine": {"rounds": 3, "workers": 2}}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "PATIENCE", 0.05)


def test_a_folder_is_locked_by_one_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "run"
    assert not is_locked(out)
    with locked(out):
        assert is_locked(out)
        with refused(f"another fedapm command is at work in {out}"), locked(out):
            raise AssertionError("it is not alone")
    assert not is_locked(out)
    assert list(tmp_path.iterdir()) == [], "the lock and the folder made for it are gone"


def test_what_was_written_under_a_lock_stays(tmp_path: Path) -> None:
    with locked(tmp_path / "runs" / "run"):
        (tmp_path / "runs" / "run").mkdir()
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["run"]


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom fedapm.runs.folder import locked\n"
        "with locked(Path(sys.argv[1])):\n    os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path / "run")], check=False).returncode == 9
    assert (tmp_path / ".run.lock").is_file()
    assert not is_locked(tmp_path / "run")
    with locked(tmp_path / "run"):
        assert is_locked(tmp_path / "run")


@pytest.mark.parametrize("command", ["run", "compare", "sweep", "paper"])
def test_a_second_command_in_the_same_folder_is_refused_in_one_line(tmp_path: Path, command: str) -> None:
    more = {"run": ["--resume"], "sweep": ["--vary", "solver.lr=0.1,0.2"]}.get(command, [])
    with locked(tmp_path / "out"):
        outcome = fedapm(command, *more, "--rounds", 1, *QUICK, "--out", tmp_path / "out")
    assert_refused(outcome, "another fedapm command is at work in", str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_is_not_overwritten(tmp_path: Path) -> None:
    refuse_to_overwrite(tmp_path / "new")
    refuse_to_overwrite(tmp_path)
    (tmp_path / "thesis.txt").write_text("precious")
    with refused("not empty"):
        refuse_to_overwrite(tmp_path)
    with refused("is a file"):
        refuse_to_overwrite(tmp_path / "thesis.txt")
    with refused("not from fedapm paper"):
        refuse_foreign(tmp_path, "paper.json", "paper")
    (tmp_path / "paper.json").write_text("{}")
    refuse_foreign(tmp_path, "paper.json", "paper")


def test_settings_that_change_results_are_named(tmp_path: Path) -> None:
    write_config(tmp_path, SETTINGS)
    assert read_config(tmp_path) == SETTINGS
    check_settings(tmp_path, SETTINGS, "")
    same = {"solver": SETTINGS["solver"], "engine": {"rounds": 3, "workers": 8, "save_models": False}}
    assert changed_settings(SETTINGS, same) == []
    other = {"solver": {"lr": 0.2, "lr_schedule": "constant"}, "engine": {"rounds": 2}, "data": {"name": "x"}}
    with refused(f"{tmp_path} was run with other settings (data.name, engine.rounds, solver.lr, more); do this."):
        check_settings(tmp_path, other, "do this", also_changed=["more"])


def test_a_run_may_be_made_longer_but_not_under_a_cosine_schedule(tmp_path: Path) -> None:
    write_config(tmp_path, SETTINGS)
    longer = SETTINGS | {"engine": {"rounds": 9}}
    check_settings(tmp_path, longer, "", more_rounds=True)
    with refused("engine.rounds"):
        check_settings(tmp_path, longer, "")
    with refused("engine.rounds"):
        check_settings(tmp_path, SETTINGS | {"engine": {"rounds": 1}}, "", more_rounds=True)
    cosine = {"solver": {"lr": 0.1, "lr_schedule": "cosine"}}
    write_config(tmp_path, SETTINGS | cosine)
    with refused("engine.rounds"):
        check_settings(tmp_path, longer | cosine, "", more_rounds=True)


@pytest.mark.parametrize(("status", "done"), [("complete", True), ("diverged", False), ("interrupted", False)])
def test_which_runs_are_done(tmp_path: Path, status: str, done: bool) -> None:
    assert not is_done(tmp_path, SETTINGS, "")
    write_info(tmp_path, {"method": "fedapm", "seed": 0, "clients": [], "status": status})
    write_config(tmp_path, SETTINGS)
    assert is_done(tmp_path, SETTINGS, "") == done
    assert is_done(tmp_path, SETTINGS, "", diverged=True) == (status != "interrupted")
    if done:
        with refused("solver.lr", "elsewhere"):
            is_done(tmp_path, SETTINGS | {"solver": {"lr": 1.0}}, "run it elsewhere")


def test_files_of_rounds_are_cut_back_together(tmp_path: Path) -> None:
    for name in ("rounds.jsonl", "timings.jsonl"):
        for round in range(4):
            JsonLines(tmp_path / name).append({"round": round})
    assert rewind(tmp_path, 1) == [{"round": 0}, {"round": 1}]
    assert len(list(JsonLines(tmp_path / "timings.jsonl"))) == 2


def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with refused("config.toml", "another folder"):
        read_config(tmp_path)
    (tmp_path / "config.toml").write_text("[engine")
    with refused(str(tmp_path / "config.toml"), "not valid TOML"):
        read_config(tmp_path)


def test_a_command_removes_what_a_killed_one_half_wrote_and_nothing_else(tmp_path: Path) -> None:
    half = [tmp_path / ".report.html.ab12cd34.tmp", tmp_path / ".compare.json.ab12_d34.tmp"]
    others = [tmp_path / ".mine.tmp", tmp_path / ".mine.ab12cd34.tmp", tmp_path / "below" / ".report.html.ab12cd34.tmp"]
    others[-1].parent.mkdir()
    for path in (*half, *others):
        path.write_text("half")
    with entered(tmp_path):
        assert not any(path.exists() for path in half)
    assert all(path.exists() for path in others)


def test_a_finished_run_forgets_the_lock_of_a_process_that_was_killed(tmp_path: Path) -> None:
    spec = build.plan(build.resolve({"data": {"clients": 2}, "engine": {"rounds": 1}, "solver": {"epochs": 1}}))
    execute(spec, tmp_path / "run", progress=False)
    lock = tmp_path / ".run.lock"
    lock.write_text("123456\n")
    assert is_done(tmp_path / "run", spec.settings, "no")
    assert not lock.exists()
    with locked(tmp_path / "run"):
        assert is_done(tmp_path / "run", spec.settings, "no")
        tidy(tmp_path)
        assert lock.exists()
    lock.write_text("123456\n")
    (tmp_path / "run" / ".any.json.ab12cd34.tmp").write_text("half")
    tidy(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert not list((tmp_path / "run").glob("*.tmp"))
