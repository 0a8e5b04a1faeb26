"""The command line: what it prints and writes, and one plain line for everything a person can get wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedapm.algorithms import METHODS, PRESETS
from fedapm.data import DATA_SETS
from fedapm.models import MODELS, DigitsNet
from fedapm.runs.records import load_run
from tests.helpers.cli import QUICK, Outcome, assert_refused, fedapm


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty working folder."""
    folder = tmp_path_factory.mktemp("here")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, only to be read, made by a process of its own."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    finished = subprocess.run(
        [sys.executable, "-m", "fedapm", "run", "--rounds", "2", "--out", str(folder), *QUICK],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert f"Report: {folder / 'report.html'}" in finished.stdout
    assert "FedAPM" in finished.stdout
    assert "\nFedAPM, seed 0: round 2/2" in finished.stderr
    assert finished.stderr.splitlines()[-1].startswith("FedAPM, seed 0: closing phase")
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_run_leaves_its_folder(made: Path) -> None:
    expected = {"config.toml", "run.json", "rounds.jsonl", "timings.jsonl", "engine.json", "report.html"}
    expected |= {"checkpoints", "models", "classes.json", "card.json", "card.md", "sessions.jsonl"}
    assert {p.name for p in made.iterdir()} == expected
    assert load_run(made).complete
    assert [row["round"] for row in load_run(made).rounds] == [0, 1, 2]
    assert len(list((made / "models").iterdir())) == 4


def test_a_runs_own_configuration_repeats_it(made: Path, tmp_path: Path) -> None:
    assert fedapm("run", made / "config.toml", "--out", tmp_path / "again").code == 0
    for name in ("config.toml", "run.json", "rounds.jsonl"):
        assert (tmp_path / "again" / name).read_bytes() == (made / name).read_bytes(), name


def test_json_is_all_there_is_on_stdout(tmp_path: Path) -> None:
    outcome = fedapm("run", "--rounds", 2, "--algorithm", "local", "--out", tmp_path / "run", "--json", *QUICK)
    found = json.loads(outcome.out)
    assert outcome.code == 0
    assert found["report"] == str(tmp_path / "run" / "report.html")
    assert Path(found["report"]).is_file()
    assert [row["label"] for row in found["rows"]] == ["Local only"]


def test_options_go_over_the_file_and_assignments_over_both(tmp_path: Path) -> None:
    config = tmp_path / "e.toml"
    config.write_text("[engine]\nrounds = 9\nseed = 9\n[data]\nclients = 4\n[solver]\nlr = 0.5\nepochs = 1\n")
    arguments = ["--rounds", 8, "--seed", 3, "--set", "engine.rounds=1", "--set", "solver.lr=0.25"]
    assert fedapm("run", config, *arguments, "--out", tmp_path / "run").code == 0
    run = load_run(tmp_path / "run")
    assert (run.seed, run.info["rounds"]) == (3, 1)
    assert "lr = 0.25" in run.config
    assert "epochs = 1" in run.config


@pytest.mark.parametrize(("what", "known"), [("methods", METHODS), ("data", DATA_SETS), ("models", MODELS)])
def test_list_names_everything_on_a_line_of_its_own(what: str, known: dict[str, Any]) -> None:
    outcome = fedapm("list", what)
    assert outcome.code == 0
    assert [line.split()[0] for line in outcome.out.splitlines() if line.split()[0] in known] == list(known)


def test_the_version() -> None:
    outcome = fedapm("--version")
    assert outcome.code == 0
    assert outcome.out.startswith("fedapm 0.")


@pytest.mark.parametrize("command", [[], ["run"], ["compare"], ["report"], ["export"], ["list"]])
def test_help_is_help(command: list[str]) -> None:
    outcome = fedapm(*command, "--help")
    assert outcome.code == 0
    assert "Usage: " in outcome.out
    assert outcome.err == ""


def test_help_has_no_stray_backslashes() -> None:
    assert "\\" not in fedapm("export", "--help").out


def test_no_command_at_all_shows_the_help() -> None:
    outcome = fedapm()
    assert "Usage: " in outcome.out + outcome.err
    assert not outcome.err.startswith("fedapm: "), "asking for nothing is no mistake"


def test_the_shell_completes_commands() -> None:
    script = "import sys; sys.argv = ['fedapm']; from fedapm.cli.app import main; main()"
    words = {"_FEDAPM_COMPLETE": "complete_bash", "COMP_WORDS": "fedapm ex", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=os.environ | words
    )
    assert done.stdout.split() == ["export"]


@pytest.mark.usefixtures("real_figures")  # the run was a process of its own and has drawn them
def test_report_writes_again_what_the_run_wrote(made: Path, tmp_path: Path) -> None:
    outcome = fedapm("report", made, "--out", tmp_path / "r.html")
    assert outcome.code == 0
    assert (tmp_path / "r.html").read_bytes() == (made / "report.html").read_bytes()
    assert f"Report: {tmp_path / 'r.html'}" in outcome.out


def test_a_path_with_brackets_is_printed_as_it_is(made: Path, tmp_path: Path) -> None:
    target = tmp_path / "[bold]x" / "r.html"
    assert f"Report: {target}" in fedapm("report", made, "--out", target).out


def test_an_exported_model_is_a_plain_state_dict(made: Path, tmp_path: Path) -> None:
    outcome = fedapm("export", made, "--client", 2, "--out", tmp_path / "m.safetensors")
    assert outcome.code == 0
    assert "6 tensors of client 2" in " ".join(outcome.out.split())
    network = DigitsNet()
    network.load_state_dict(load_file(tmp_path / "m.safetensors"), strict=True)
    assert torch.isfinite(network(torch.zeros(1, 64))).all()


def test_two_clients_export_their_own_heads(made: Path, tmp_path: Path) -> None:
    trained = sorted({k for row in load_run(made).rounds for k in row["selected"]})[:2]
    for client in trained:
        fedapm("export", made, "--client", client, "--out", tmp_path / f"{client}.safetensors")
    first, second = (load_file(tmp_path / f"{client}.safetensors") for client in trained)
    assert not torch.equal(first["head.weight"], second["head.weight"])


COMPARISON = ["compare", "--methods", "fedavg,local", "--seeds", "0,1", "--rounds", "2", *QUICK]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished comparison, only to be read."""
    folder = tmp_path_factory.mktemp("cli") / "cmp"
    assert fedapm(*COMPARISON, "--out", folder).code == 0
    return folder


@pytest.fixture
def own(compared: Path, tmp_path: Path) -> Path:
    """The comparison as a copy that may be changed."""
    return Path(shutil.copytree(compared, tmp_path / "cmp"))


def runs_as_they_are(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.glob("*/*/**/*") if p.is_file()}


def test_a_comparison_has_a_folder_for_every_run_and_one_report(compared: Path) -> None:
    about = {"compare.json", "card.json", "card.md", "sessions.jsonl"}
    assert {p.name for p in compared.iterdir()} == {"fedavg", "local", "report.html", *about}
    assert all(load_run(compared / m / f"seed-{s}").complete for m in ("fedavg", "local") for s in (0, 1))


def test_compared_methods_have_the_same_clients(compared: Path) -> None:
    runs = [load_run(p) for p in sorted(compared.glob("*/seed-*"))]
    assert all(run.info["clients"] == runs[0].info["clients"] for run in runs)
    selected = {run.seed: [row["selected"] for row in run.rounds] for run in runs}
    assert selected[0] != selected[1]
    assert all([row["selected"] for row in run.rounds] == selected[run.seed] for run in runs)


def test_comparing_again_leaves_finished_runs_alone_and_adds_new_ones(own: Path) -> None:
    before = runs_as_they_are(own)
    outcome = fedapm(*COMPARISON, "--methods", "fedavg,local,fedalt", "--out", own, "--json")
    assert {row["label"] for row in json.loads(outcome.out)["rows"]} == {"FedAvg", "Local only", "FedAlt"}
    assert before.items() <= runs_as_they_are(own).items()
    assert load_run(own / "fedalt" / "seed-1").complete


def test_a_run_of_a_comparison_that_was_cut_off_is_finished(own: Path, compared: Path) -> None:
    cut = own / "fedavg" / "seed-1"
    shutil.rmtree(cut)
    assert fedapm("run", cut.parent / "seed-0" / "config.toml", "--seed", 1, "--rounds", 1, "--out", cut).code == 0
    (cut / "run.json").write_text((cut / "run.json").read_text().replace("complete", "interrupted"))
    assert fedapm(*COMPARISON, "--out", own).code == 0
    assert load_run(cut).complete
    assert (cut / "rounds.jsonl").read_bytes() == (compared / "fedavg/seed-1/rounds.jsonl").read_bytes()


def test_comparing_into_a_folder_of_other_settings_is_refused(own: Path) -> None:
    before = content(own)
    assert_refused(fedapm(*COMPARISON, "--set", "solver.lr=0.3", "--out", own), "solver.lr", "fedavg")
    assert content(own) == before


def test_other_settings_are_noticed_before_a_new_method_is_trained(own: Path) -> None:
    arguments = ["--methods", "fedalt,fedavg", "--set", "solver.lr=0.3", "--out", own]
    assert_refused(fedapm(*COMPARISON, *arguments), "solver.lr", "fedavg")
    assert not (own / "fedalt").exists()


def test_a_table_of_a_methods_own_is_for_that_method_alone(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[data]\nclients = 4\n[algorithm]\nmu = 0.5\n[fedprox]\nmu = 0.25\n")
    arguments = ["--methods", "fedprox,fedapm", "--seeds", "0", "--rounds", 1, "--out", tmp_path / "cmp"]
    assert fedapm("compare", tmp_path / "c.toml", *arguments).code == 0
    assert "mu = 0.25" in load_run(tmp_path / "cmp" / "fedprox" / "seed-0").config
    assert "mu = 0.5" in load_run(tmp_path / "cmp" / "fedapm" / "seed-0").config


@pytest.mark.parametrize(
    ("arguments", "mentions"),
    [
        (["run", "--ruonds", "3"], ["--ruonds", "--rounds"]),
        (["run", "--rounds", "many"], ["--rounds", "'many'"]),
        (["run", "--rounds"], ["--rounds"]),
        (["train"], ["'train'"]),
        (["run", "--algorithm", "fedamp"], ["'fedamp'", "'fedapm'"]),
        (["run", "--data", "digit"], ["'digit'", "'digits'"]),
        (["run", "--set", "model.name=digts"], ["'digts'", "'digits'"]),
        (["run", "--set", "model.options.widht=3"], ["'model.options.widht'", "'width'"]),
        (["run", "--set", "algorithm.rh=1"], ["'algorithm.rh'", "'rho'"]),
        (["run", "--set", "algorithm.rho=big"], ["algorithm.rho", "'big'"]),
        (["run", "--set", "algorithm.rho"], ["--set", "table.key=value", "'algorithm.rho'"]),
        (["run", "--set", "rho=1"], ["--set", "'rho=1'"]),
        (["run", "--set", "algoritm.rho=1"], ["[algoritm]", "'algorithm'"]),
        (["run", "none.toml"], ["none.toml", "does not exist"]),
        (["run", "."], ["folder"]),
        (["run", "--rounds", "0"], ["engine.rounds", "0"]),
        (["run", "--set", "engine.fraction=0"], ["fraction", "0"]),
        (["run", "--set", "engine.fraction=1.5"], ["fraction", "1.5"]),
        (["run", "--set", "engine.count=21"], ["21", "20"]),
        (["run", "--set", "engine.count=0"], ["0"]),
        (["run", "--set", "data.clients=0"], ["client", "0"]),
        (["run", "--set", "data.clients=5000"], ["5000"]),
        (["run", "--set", "data.concentration=0"], ["concentration", "0"]),
        (["run", "--set", "data.test_fraction=1"], ["test fraction", "1"]),
        (["run", "--set", "model.personal=['haed']"], ["'haed'", "'head'"]),
        (["run", "--set", "model.frozen=['head.bias']"], ["'head.bias'", "overlap"]),
        (["run", "--set", "model.preset=split_input"], ["DigitsNet", "'split_input'"]),
        (["run", "--device", "nonsense"], ["'nonsense'"]),
        (["run", "--data", "cifar10"], ["cifar10", "--data-root"]),
        (["run", "--data", "cifar10", "--data-root", "none"], ["cifar-10-batches-bin/data_batch_1.bin", "missing"]),
        (["compare", "--methods", "fedavg,fedamp"], ["'fedamp'", "'fedapm'"]),
        (["compare", "--methods", "fedavg,fedavg"], ["twice"]),
        (["compare", "--methods", ","], ["at least one method"]),
        (["compare", "--seeds", "one"], ["--seeds", "'one'"]),
        (["compare", "--seeds", ""], ["at least one seed"]),
        (["compare", "--methods", "fedavg,local", "--set", "algorithm.rho=1"], ["'algorithm.rho'"]),
        (["compare", "--set", "engine.fraction=0"], ["fraction", "0"]),
        (["list", "method"], ["'method'", "'methods'"]),
        (["list"], ["WHAT"]),
        (["report", "."], ["holds no run"]),
        (["report", "none"], ["none", "not a folder"]),
        (["export", ".", "--client", "0", "--out", "m"], ["not a run folder"]),
        (["export", "."], ["--client"]),
    ],
    ids=lambda words: " ".join(words)[:60],
)
def test_mistakes_are_one_line_and_write_nothing(here: Path, arguments: list[str], mentions: list[str]) -> None:
    assert_refused(fedapm(*arguments), *mentions)
    assert list(here.iterdir()) == [], "a refused command must leave the folder as it was"


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ("[engine\nrounds = 3", ["e.toml", "not valid TOML"]),
        ("[engine]\nround = 3", ["'engine.round'", "'rounds'"]),
        ("algorithm = 3", ["'algorithm'", "[algorithm]"]),
        ("[model]\npersonal = ['haed']", ["'haed'", "'head'"]),
    ],
)
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_bad_experiment_file_is_one_line_too(
    here: Path, tmp_path: Path, command: str, text: str, mentions: list[str]
) -> None:
    (tmp_path / "e.toml").write_text(text)
    assert_refused(fedapm(command, tmp_path / "e.toml"), *mentions)
    assert list(here.iterdir()) == []


def test_a_damaged_cifar10_file_is_named(here: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    (folder / "data_batch_1.bin").write_bytes(bytes(3073))
    arguments = ["run", "--data", "cifar10", "--data-root", tmp_path / "data"]
    assert_refused(fedapm(*arguments), "data_batch_1.bin", "3073", "30730000")
    assert_refused(fedapm("run", "--data", "cifar10", "--data-root", folder), str(folder / "data_batch_1.bin"), "3073")
    (folder / "data_batch_1.bin").write_bytes(b"\x0a" + bytes(10_000 * 3073 - 1))
    assert_refused(fedapm(*arguments), "data_batch_1.bin", "class above 9")
    assert list(here.iterdir()) == []


def test_a_folder_that_holds_a_run_is_left_alone(made: Path) -> None:
    before = content(made)
    assert_refused(fedapm("run", "--rounds", 2, "--out", made, *QUICK), str(made), "--resume")
    assert content(made) == before


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    for more in ([], ["--resume"]):
        assert_refused(fedapm("run", "--rounds", 1, "--out", tmp_path / "mine", *QUICK, *more), "not empty")
    assert_refused(fedapm("run", "--rounds", 1, "--out", tmp_path / "mine" / "thesis.txt", *QUICK), "is a file")
    assert content(tmp_path / "mine") == {"thesis.txt": b"precious"}


def test_a_place_below_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert_refused(fedapm("run", "--rounds", 1, "--out", tmp_path / "file" / "run", *QUICK), "file")


def test_resuming_with_other_settings_names_the_key(made: Path) -> None:
    before = content(made)
    arguments = ["run", "--rounds", 2, "--out", made, "--resume", *QUICK]
    assert_refused(fedapm(*arguments, "--set", "solver.lr=0.3"), "solver.lr", str(made))
    assert_refused(fedapm(*arguments, "--rounds", 1), "engine.rounds")
    assert content(made) == before


def test_a_run_can_be_made_longer(made: Path, tmp_path: Path) -> None:
    for rounds in (1, 2):
        outcome = fedapm("run", "--rounds", rounds, "--out", tmp_path / "run", "--resume", *QUICK)
        assert outcome.code == 0
    assert (tmp_path / "run" / "rounds.jsonl").read_bytes() == (made / "rounds.jsonl").read_bytes()


def test_old_names_of_values_go_on_working_and_say_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedapm.experiments.settings._renamed_once", set())
    arguments = ["run", "--rounds", 1, "--set", "engine.store=mapped", "--out", tmp_path / "run", *QUICK]
    outcome = fedapm(*arguments, "--engine", "vectorised")
    assert outcome.code == 0
    warnings = [line for line in outcome.err.splitlines() if line.startswith("fedapm: ")]
    assert len(warnings) == 2
    assert "engine.engine = 'vectorised' is called 'vectorized' now" in warnings[0]
    config = tmp_path / "run" / "config.toml"
    assert 'engine = "vectorized"' in config.read_text()
    assert 'store = "disk"' in config.read_text()
    assert json.loads((tmp_path / "run" / "engine.json").read_text())["engine"] == "vectorized"
    config.write_text(config.read_text().replace('"vectorized"', '"vectorised"').replace('"disk"', '"mapped"'))
    outcome = fedapm("run", "--rounds", 2, "--engine", "vectorized", "--out", tmp_path / "run", "--resume", *QUICK)
    assert outcome.code == 0, outcome.err


def test_exports_that_cannot_be(made: Path, tmp_path: Path) -> None:
    target = tmp_path / "m.safetensors"
    assert_refused(fedapm("export", made, "--client", "nobody", "--out", target), "'nobody'")
    assert_refused(fedapm("export", made, "--client", 0, "--view", "other", "--out", target), "'other'")
    assert not target.exists()
    target.write_text("precious")
    assert_refused(fedapm("export", made, "--client", 0, "--out", target), str(target), "exists already")
    assert target.read_text() == "precious"


def test_a_damaged_model_is_not_exported(made: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(made, tmp_path / "run")
    model = folder / "models" / "client-0001.safetensors"
    damaged = bytearray(model.read_bytes())
    damaged[-3] ^= 1
    model.write_bytes(damaged)
    outcome = fedapm("export", folder, "--client", 1, "--out", tmp_path / "m.safetensors")
    assert_refused(outcome, "client-0001.safetensors", "damaged")
    assert not (tmp_path / "m.safetensors").exists()


def test_a_run_without_saved_models_says_so(made: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(made, tmp_path / "run")
    shutil.rmtree(folder / "models")
    outcome = fedapm("export", folder, "--client", 1, "--out", tmp_path / "m.safetensors")
    assert_refused(outcome, "client 1", "not saved")


def test_a_diverging_run_stops_with_advice_and_keeps_its_records(tmp_path: Path) -> None:
    outcome = fedapm("run", "--rounds", 3, "--out", tmp_path / "run", "--set", "solver.lr=1e9", *QUICK)
    assert outcome.code == 2
    assert outcome.out == ""
    last = outcome.err.splitlines()[-1]
    assert last.startswith("fedapm: FedAPM, round 1: ")
    assert "solver.lr, now 1e+09" in last
    assert sum(line.startswith("fedapm: ") for line in outcome.err.splitlines()) == 1
    assert "Traceback" not in outcome.err
    run = load_run(tmp_path / "run")
    assert run.info["status"] == "diverged"
    assert [row["round"] for row in run.rounds] == [0]


def test_a_comparison_goes_on_without_a_run_that_diverges(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[data]\nclients = 4\n[fedalt]\nlr_v = 1e30\n")
    arguments = ["--methods", "fedalt,local", "--seeds", "0", "--rounds", 1, "--out", tmp_path / "cmp", "--json"]
    outcome = fedapm("compare", tmp_path / "c.toml", *arguments)
    assert outcome.code == 0
    assert "fedapm: FedAlt, round 1" in outcome.err
    assert load_run(tmp_path / "cmp" / "fedalt" / "seed-0").info["status"] == "diverged"
    assert load_run(tmp_path / "cmp" / "local" / "seed-0").complete
    assert "Local only" in [row["label"] for row in json.loads(outcome.out)["rows"]]


def test_a_real_process_says_one_line_and_exits_with_2(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("fedapm")
    finished = subprocess.run(
        [program, "run", "--set", "algorithm.rh=1"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert_refused(Outcome(finished.returncode, finished.stdout, finished.stderr), "'rho'")
    assert list(tmp_path.iterdir()) == []


def test_every_method_says_when_to_use_it() -> None:
    outcome = fedapm("list", "methods")
    assert outcome.out.startswith("name")
    assert "use it when" in outcome.out
    for kind in (METHODS | PRESETS).values():
        assert kind.suits, kind.name
        assert len(kind.suits) <= 95, "one short phrase"
        assert kind.suits in outcome.out
