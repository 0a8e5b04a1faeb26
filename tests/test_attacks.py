"""A cheap sample of the attackers; ``make attack`` has all of them."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from attacks._child import warm
from attacks.registry import all_attacks
from attacks.tally import Outcome, Tally, code_digest, held_before, table, write

ROOT = Path(__file__).parents[1]
SAMPLE = (
    "crash points: run",
    "random kills: run",
    "fuzzing: settings",
    "fuzzing: mini",
    "fuzzing: tensor",
    "crash points of the server",
)


def test_the_table_adds_up_and_says_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = Tally("kills of run", "kills"), Tally("kills of tune", "kills", skipped="there is none.")
    for outcome in (Outcome.SURVIVED, Outcome.SURVIVED, Outcome.REFUSED):
        first.add(outcome)
    assert first.held
    first.add(Outcome.LOST, "round 3 is gone")
    assert not first.held
    assert "round 3 is gone" in capsys.readouterr().err
    lines = table([first, second]).splitlines()
    assert lines[2].split()[-8:] == ["4", "2", "1", "1", "0", "0", "0", "0"]
    assert lines[-2].split()[:3] == ["all", "kills", "kills"]
    assert lines[-1] == "kills of tune was skipped: there is none."


def test_what_was_made_on_the_same_code_is_not_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, code = tmp_path / "attack.json", code_digest(True)
    tallies = [Tally(name, "kills", code=made) for name, made in (("a", code), ("b", code), ("c", "other"))]
    for tally in tallies:
        tally.add(Outcome.SURVIVED)
    tallies[1].add(Outcome.LOST, "round 3 is gone")
    write(path, tallies)
    assert held_before(path, code) == {"a": tallies[0]}
    assert code_digest(False) != code
    path.write_text("[{")
    assert held_before(path, code) == {}


def test_every_attack_has_a_name_and_a_unit() -> None:
    found = all_attacks()
    assert len({attack.name for attack in found}) == len(found)
    assert {"crash points", "kills", "inputs"} <= {attack.unit for attack in found}


def test_a_command_may_leave_no_thread_but_those_that_were_there(tmp_path: Path) -> None:
    """Attacks that are made two at a time have one that ends them with their parent."""
    over = threading.Event()
    before = threading.Thread(target=over.wait, daemon=True)
    left = threading.Thread(target=over.wait, daemon=True)
    before.start()
    try:
        warm(lambda: None, tmp_path / "said")
        with pytest.raises(RuntimeError, match="left threads behind"):
            warm(left.start, tmp_path / "said")
    finally:
        over.set()
        gc.unfreeze()


def test_a_sample_of_the_attacks_finds_nothing(tmp_path: Path) -> None:
    only = [word for name in SAMPLE for word in ("--only", name)]
    command = [
        sys.executable,
        "-m",
        "attacks",
        "--quick",
        "--jobs",
        "1",
        *only,
        "--json",
        str(tmp_path / "attack.json"),
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    tallies = json.loads((tmp_path / "attack.json").read_text())
    assert all(tally["tried"] for tally in tallies)
    assert sum(tally[bad] for tally in tallies for bad in ("lost", "differing", "traceback", "hang")) == 0
