"""Benchmark cards: what they say, that it is right, that it can be run again, and whose it is they do not say."""

from __future__ import annotations

import json
import platform
import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fedapm import FedapmError, __version__
from fedapm.errors import Interrupted
from fedapm.report import summary_table, write_report
from fedapm.report.card import as_markdown, card, digest, write_card
from fedapm.runs.layout import SESSIONS
from fedapm.runs.provenance import command_line, command_times, private, repeating, timed
from fedapm.runs.records import find_runs
from tests.helpers.cli import QUICK, fedapm

COMPARE = ["compare", "--methods", "fedprox,fedapm", "--seeds", "0,1", "--rounds", "1", *QUICK]
COMPARE += ["--set", "algorithm.mu=0.5", "--set", "model.personal=['head']"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished comparison, only to be read."""
    folder = tmp_path_factory.mktemp("card") / "cmp"
    outcome = fedapm(*COMPARE, "--out", folder)
    assert outcome.code == 0, outcome.err
    return folder


@pytest.fixture
def own(compared: Path, tmp_path: Path) -> Path:
    """The comparison as a copy that may be changed."""
    return Path(shutil.copytree(compared, tmp_path / "cmp"))


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "card.json").read_text("utf-8"))
    return found


def test_a_card_says_what_was_run(compared: Path) -> None:
    found = read(compared)
    assert found["kind"] == "comparison"
    assert found["methods"] == {"fedapm": "FedAPM", "fedprox": "FedProx"}
    assert found["seeds"] == [0, 1]
    assert found["rounds"] == [1]
    assert found["clients"] == [4]
    assert found["data"] == ["digits"]
    assert found["runs"] == {"planned": 4, "complete": 4}
    assert sum(found["engines"].values()) == 4
    assert found["versions"]["fedapm"] == __version__
    assert {"python", "torch", "numpy", "scipy", "scikit-learn"} <= found["versions"].keys()
    assert "optuna" not in found["versions"]
    assert found["hardware"]["cores"] >= 1
    assert found["hardware"]["processor"]
    assert "gpu" not in found["hardware"]


def test_settings_are_where_they_belong(compared: Path) -> None:
    settings = read(compared)["settings"]
    assert settings["common"]["engine.rounds"] == 1
    assert settings["common"]["data.clients"] == 4
    assert settings["common"]["model.personal"] == ["head"]
    assert settings["common"]["algorithm.mu"] == 0.5, "the same name in both, and the same value"
    assert settings["by_method"]["fedapm"]["algorithm.kappa"] == 0.2
    assert settings["by_method"].keys() == {"fedapm"}
    assert settings["varying"] == {}
    assert not {"engine.seed", "algorithm.name", "data.root"} & settings["common"].keys()


def test_settings_that_vary_within_a_method_are_listed(own: Path) -> None:
    path = own / "fedapm" / "seed-1" / "config.toml"
    path.write_text(path.read_text("utf-8").replace("kappa = 0.2", "kappa = 0.5"))
    settings = card(own)["settings"]
    assert settings["varying"] == {"algorithm.kappa": [0.2, 0.5]}
    assert "algorithm.kappa" not in settings["by_method"]["fedapm"]
    assert "- `algorithm.kappa`: `0.2` and `0.5`" in as_markdown(card(own))


def test_the_numbers_are_those_of_the_report(compared: Path) -> None:
    rows = {row.label: row for row in summary_table(find_runs(compared))}
    text = (compared / "card.md").read_text("utf-8")
    for found in read(compared)["scores"]:
        accuracy = rows[found["label"]].cells["accuracy"]
        assert found["accuracy"] == {"mean": accuracy.mean, "std": accuracy.std}
        assert f"| {found['label']} | {100 * (accuracy.mean or 0):.2f} ± {100 * (accuracy.std or 0):.2f} |" in text


def test_the_command_of_a_card_gives_the_same_results_again(
    compared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read(compared)
    assert shlex.split(found["command"])[:2] == ["fedapm", "compare"]
    program, *arguments = shlex.split(found["rerun"])
    assert program == "fedapm"
    monkeypatch.chdir(tmp_path)
    assert fedapm(*arguments).code == 0
    assert digest(tmp_path / "rerun") == found["results"]["sha256"] == digest(compared)
    text = (compared / "card.md").read_text("utf-8")
    assert found["results"]["sha256"] in text
    assert found["rerun"] in text
    (check,) = re.findall(r"python -c '(.*)'", text)
    exec(check, namespace := {"print": lambda digest: namespace.update(printed=digest)})
    assert namespace["printed"] == found["results"]["sha256"]


def test_the_digest_changes_with_a_result_and_with_a_run(own: Path) -> None:
    before = digest(own)
    rounds = own / "fedapm" / "seed-0" / "rounds.jsonl"
    rounds.write_text(rounds.read_text().replace('"bytes_up":', '"bytes_up":1'))
    assert digest(own) != before
    shutil.rmtree(own / "fedapm" / "seed-0")
    assert digest(own) != before


def test_a_run_has_a_card_too_and_time_adds_up_over_resumed_commands(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for rounds in (1, 2):
        outcome = fedapm("run", "--rounds", rounds, "--resume", "--out", folder, *QUICK)
        assert outcome.code == 0, outcome.err
    found = read(folder)
    assert found["kind"] == "run"
    time = found["time"]
    noted = command_times(folder)
    assert time["commands"] == len(noted) == 2
    assert time["wall_seconds"] == pytest.approx(sum(one.wall_seconds for one in noted), abs=0.01)
    assert time["processor_seconds"] == pytest.approx(sum(one.processor_seconds for one in noted), abs=0.01)
    rows = [json.loads(line) for line in (folder / "timings.jsonl").read_text().splitlines()]
    assert time["rounds_seconds"] == pytest.approx(sum(row["seconds"] for row in rows), abs=0.01)
    assert time["began"] == noted[0].began <= time["ended"] == noted[1].ended
    assert "--resume" not in found["rerun"]
    assert found["rerun"].endswith("--out rerun")


def test_a_command_that_was_refused_leaves_no_time_and_one_that_was_cut_off_does(tmp_path: Path) -> None:
    with pytest.raises(FedapmError), timed(tmp_path):
        raise FedapmError("no")
    assert command_times(tmp_path) == []
    with pytest.raises(Interrupted), timed(tmp_path):
        raise Interrupted("stop")
    with timed(tmp_path):
        pass
    assert len(command_times(tmp_path)) == 2
    with timed(tmp_path / "nothing"):
        pass
    assert not (tmp_path / "nothing").exists()


def test_time_that_is_not_whole_is_said_to_be_so(own: Path) -> None:
    timings = own / "fedapm" / "seed-0" / "timings.jsonl"
    timings.write_text('{"round":0,"seconds":9999}\n')
    assert card(own)["time"]["whole"] is False
    assert "A command was killed" in as_markdown(card(own))
    (own / SESSIONS).write_text("damaged\n{}\n")
    found = card(own)["time"]
    assert found["processor_seconds"] is None
    assert found["dates_from"] == "files"
    assert "Processor time was not recorded" in as_markdown(card(own))


def test_a_card_says_nothing_of_whose_it_is(compared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home" / "ada.lovelace"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LOGNAME", "adalove")
    data = tmp_path / "shared" / "adalove" / "data sets"
    folder = home / "my runs" / "one"
    data.mkdir(parents=True)
    arguments = [
        "run",
        "--rounds",
        "1",
        "--data-root",
        data,
        f"--out={folder}",
        "--set",
        f"data.cache={home}/c",
        *QUICK,
    ]
    outcome = fedapm(*arguments)
    assert outcome.code == 0, outcome.err
    for name in ("card.json", "card.md"):
        text = (folder / name).read_text("utf-8")
        for word in (str(home), "lovelace", "adalove", platform.node()):
            assert word not in text, f"{word!r} is in {name}"
    command = read(folder)["command"]
    assert "--out=~/my runs/one" in command.replace("'", "")
    assert "/USER/data sets" in command


def test_paths_and_names_in_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("LOGNAME", "ada")
    assert command_line(["run", "--out", "/home/ada/a b", "--set", "x.y=[1, 2]"]) == (
        "fedapm run --out ~/'a b' --set 'x.y=[1, 2]'"
    )
    assert private("/home/ada") == "~"
    assert private("/home/adam/x") == "/home/adam/x"
    assert private("/scratch/ada/x") == "/scratch/USER/x"
    assert private("/data/x --name ada") == "/data/x --name ada"
    assert private(private("/home/ada/x")) == "~/x"
    monkeypatch.setenv("HOME", "/")
    assert private("/data/x") == "/data/x"


@pytest.mark.parametrize(
    ("command", "again"),
    [
        ("fedapm run", "fedapm run --out rerun"),
        ("fedapm run --out a --rounds 3", "fedapm run --rounds 3 --out rerun"),
        ("fedapm run --out=a --resume --json", "fedapm run --out rerun"),
        ("fedapm run --log tensorboard --log=mlflow --set a.b=1", "fedapm run --set a.b=1 --out rerun"),
        ("fedapm run ~/e.toml --out", "fedapm run ~/e.toml --out rerun"),
        ("fedapm compare 'my file.toml' --out 'a b'", "fedapm compare 'my file.toml' --out rerun"),
    ],
)
def test_the_same_again_into_another_folder(command: str, again: str) -> None:
    assert repeating(command) == again


def test_a_card_without_a_command_and_of_runs_that_say_little(own: Path) -> None:
    for path in own.rglob("config.toml"):
        path.write_text("not = toml = at all")
    for path in own.rglob("engine.json"):
        path.unlink()
    info = own / "fedapm" / "seed-0" / "run.json"
    info.write_text(info.read_text("utf-8").replace('"complete"', '"diverged"').replace("FedAPM", "Fed|APM"))
    assert write_card(own) == own / "card.md"
    found = read(own)
    assert found["command"] is None
    assert found["rerun"] is None
    assert found["runs"] == {"planned": 4, "complete": 3, "diverged": 1}
    assert found["engines"] == {"unknown": 4}
    text = (own / "card.md").read_text("utf-8")
    assert "No command was recorded" in text
    assert "3 complete, 1 diverged" in text
    assert "Fed\\|APM" in text
    assert "None" not in text


def test_validation_scores_are_called_that(tmp_path: Path) -> None:
    outcome = fedapm("run", "--rounds", 1, "--set", "data.validation=0.25", "--out", tmp_path / "run", *QUICK)
    assert outcome.code == 0, outcome.err
    assert read(tmp_path / "run")["judged_by"] == "validation"
    text = (tmp_path / "run" / "card.md").read_text("utf-8")
    assert "Every score is a validation score" in text
    assert "validation samples" in text


def test_a_larger_experiment_points_to_its_parts(compared: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(compared, whole / "compare")
    trial = whole / "tune" / "trials" / "fedapm" / "0" / "seed-0"
    shutil.copytree(compared / "fedapm" / "seed-0", trial)
    (whole / "tune" / "tune.json").write_text("{}")
    write_card(whole / "tune", "fedapm tune")
    assert read(whole / "tune")["kind"] == "tuning"
    text = write_card(whole, "fedapm paper").read_text("utf-8")
    found = read(whole)
    assert found["kind"] == "experiment"
    assert found["parts"] == ["compare", "tune"]
    assert found["runs"]["complete"] == 5
    assert found["scores"] == []
    assert "- [compare](compare/card.md)" in text
    if find_spec("optuna") is not None:
        assert "optuna" in found["versions"]


def test_a_folder_without_runs_has_no_card(tmp_path: Path) -> None:
    with pytest.raises(FedapmError, match="holds no run"):
        write_card(tmp_path, "fedapm run")
    assert list(tmp_path.iterdir()) == []


def test_names_mean_nothing_in_markdown(own: Path) -> None:
    for path in own.rglob("run.json"):
        info = json.loads(path.read_text())
        path.write_text(json.dumps(info | {"data": "<img src=x>|[a](b)\n# c", "label": f"*{info['label']}*`"}))
    write_card(own)
    text = (own / "card.md").read_text()
    assert "\\<img src=x\\>\\|\\[a\\](b) # c" in text
    assert "\n# c" not in text
    assert "\\*FedAPM\\*\\`" in text


def test_a_report_does_not_say_where_data_is_kept(own: Path) -> None:
    config = next(own.rglob("config.toml"))
    config.write_text(
        config.read_text().replace("[data]\n", '[data]\nroot = "/mnt/alice/secret"\ncache = "/mnt/alice/c"\n')
    )
    page = write_report(own).read_text()
    assert "alice" not in page
    assert "partition" in page, "the other settings are there"
