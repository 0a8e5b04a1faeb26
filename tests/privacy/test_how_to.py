"""The commands of the page work, in small."""

import json

import pytest

from tests.helpers.cli import fedapm
from tests.test_docs import ROOT, commands

PAGE = ROOT / "docs" / "how-to" / "privacy.md"
LESS = ("data.clients=5", "data.train_limit=30", "engine.rounds=2", "engine.evaluate_every=2")
SMALL = [word for setting in LESS for word in ("--set", setting)]


@pytest.mark.parametrize("number", range(len(commands(PAGE))))
def test_a_command_of_the_page_runs(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = commands(PAGE)[number]
    if {"privacy.sampling=poisson", "privacy.level=sample"} & {*command}:
        pytest.importorskip("opacus")
    everybody = ["--set", "engine.fraction=1.0"] if "upload.mask=true" in command else []
    done = fedapm(*command, *SMALL, *everybody, *(["--seeds", "0"] if command[0] == "compare" else []))
    assert done.code == 0, done.err
    ends = [json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("run.json")]
    assert {end["status"] for end in ends} == {"complete"}
