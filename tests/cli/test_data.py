"""The command line for data sets: from their files to a run, and one plain line for what is not there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedapm.data import DATA_SETS, Federation
from fedapm.data.partition import Overlapping
from fedapm.data.sets import digits
from fedapm.experiments.inspect import trained_elsewhere
from fedapm.runs.records import load_run
from tests.data.sets.test_crisismmd import archive
from tests.data.test_missing import windows
from tests.helpers.cli import Outcome, assert_refused, fedapm
from tests.helpers.realdata import unpacked

FEW = ["--set", "data.clients=2", "--set", "data.minimum=4"]


def process(*arguments: object, cwd: Path, **variables: str) -> Outcome:
    """The installed program in a process of its own."""
    program = Path(sys.executable).with_name("fedapm")
    environment = {key: value for key, value in os.environ.items() if key != "FEDAPM_DATA_ROOT"} | variables
    finished = subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, check=False, cwd=cwd, env=environment
    )
    return Outcome(finished.returncode, finished.stdout, finished.stderr)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty working folder, and no data root named elsewhere."""
    folder = tmp_path_factory.mktemp("here")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("FEDAPM_DATA_ROOT", raising=False)
    return folder


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_list_says_of_every_data_set_how_it_is_had(here: Path) -> None:
    outcome = fedapm("data", "list")
    assert (outcome.code, outcome.err) == (0, "")
    found = {line.split()[0]: line for line in outcome.out.splitlines()[1:]}
    assert list(found) == list(DATA_SETS)
    assert "bundled" in found["digits"]
    assert "by hand" in found["crema-d"]
    assert found["crema-d"].rstrip().endswith("image, audio")
    assert "fedapm data get" in found["crisismmd"]
    assert found["crisismmd"].rstrip().endswith("image, text (or pooled)")
    assert found["cifar100"].rstrip().endswith("none needed")
    assert found["cifar10"].rstrip().endswith("none needed (or efficientnet-lite0)")


def test_inspect_shows_who_has_what(here: Path) -> None:
    outcome = fedapm("data", "inspect", "digits")
    assert (outcome.code, outcome.err) == (0, "")
    header, *rows = lines(outcome.out)
    assert header == ["client", "train", "test", *map(str, range(10))]
    clients = [[0 if cell == "·" else int(cell) for cell in row] for row in rows[:20]]
    assert [client[0] for client in clients] == list(range(20))
    assert all(client[1] + client[2] == sum(client[3:]) for client in clients)
    assert sum(client[1] + client[2] for client in clients) == 1797
    assert outcome.out.splitlines()[20 + 1].startswith("1,797 samples, 20 clients, 10 classes")
    assert outcome.out.splitlines()[-1] == "Picture: digits-clients.png"
    with Image.open(here / "digits-clients.png") as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 300
        picture.load()
        assert len(picture.convert("RGB").getcolors(1 << 24) or []) > 50, "an empty picture has hardly any colours"


def test_inspect_as_json_is_all_there_is_on_stdout(tmp_path: Path) -> None:
    arguments = ["--json", "--out", tmp_path / "p.svg", "--set", "data.clients=5", "--set", "data.partition=iid"]
    outcome = fedapm("data", "inspect", "digits", *arguments)
    found = json.loads(outcome.out)
    assert outcome.code == 0
    assert (found["name"], found["partition"], found["samples"]) == ("digits", "iid", 1797)
    assert found["classes"] == list("0123456789")
    assert found["picture"] == str(tmp_path / "p.svg")
    assert [client["id"] for client in found["clients"]] == list("01234")
    assert all(sum(client["counts"]) == client["train"] + client["test"] for client in found["clients"])
    assert {client["train"] + client["test"] for client in found["clients"]} <= {359, 360}


def test_a_feature_version_is_inspected_run_and_compared_by_its_example(tmp_path: Path) -> None:
    root, example = windows(tmp_path), Path(__file__).parents[2] / "examples" / "motionsense-features.toml"
    limits = ["--set", "data.train_limit=4", "--set", "data.test_limit=5"]
    options = ["--set", "data.features=statistics", "--set", "data.test_fraction=0.5", *limits]
    outcome = fedapm("data", "inspect", "motionsense", "--root", root, "--out", tmp_path / "p.png", "--json", *options)
    found = json.loads(outcome.out)
    assert found["name"] == "motionsense (statistics)"
    assert {(client["train"], client["test"]) for client in found["clients"]} == {(4, 5)}
    out = tmp_path / "compared"
    arguments = ["--methods", "fedapm,fedavg", "--seeds", "0", "--rounds", 1, "--out", out, *limits]
    assert fedapm("compare", example, "--data-root", root, *arguments).code == 0
    info = json.loads(next(out.rglob("run.json")).read_text())
    assert info["data"] == "motionsense (statistics)"
    assert info["input_shapes"] == [[54]]
    assert [client["train"] for client in info["clients"]] == [4] * len(found["clients"])


def test_preparing_features_of_pictures_that_are_not_there_says_so(tmp_path: Path) -> None:
    outcome = fedapm("data", "prepare", "cifar10", "--root", tmp_path, "--set", "data.features=efficientnet-lite0")
    assert outcome.code == 2
    assert "data_batch_1.bin is missing" in outcome.err


@pytest.mark.parametrize(("name", "start"), [("p.svg", b"<?xml"), ("p.pdf", b"%PDF"), ("p.PNG", b"\x89PNG")])
def test_a_picture_is_what_its_name_says(tmp_path: Path, name: str, start: bytes) -> None:
    assert fedapm("data", "inspect", "digits", "--out", tmp_path / "new" / name).code == 0
    assert (tmp_path / "new" / name).read_bytes().startswith(start)


def test_inspect_and_run_have_the_same_clients(tmp_path: Path) -> None:
    root = windows(tmp_path)
    options = ["--set", "data.missing.gyro=0.34", "--set", "data.seed=3"]
    outcome = fedapm("data", "inspect", "motionsense", "--root", root, "--out", tmp_path / "p.png", "--json", *options)
    found = json.loads(outcome.out)
    assert found["modalities"] == ["acc", "gyro"]
    assert len(found["lacking"]["gyro"]) == 2
    arguments = ["--data", "motionsense", "--data-root", root, "--rounds", 1, "--out", tmp_path / "run"]
    assert fedapm("run", *arguments, *options, "--set", "solver.epochs=1").code == 0
    run = load_run(tmp_path / "run")
    assert [(c["id"], c["train"], c["test"]) for c in run.info["clients"]] == [
        (c["id"], c["train"], c["test"]) for c in found["clients"]
    ]
    assert "gyro = 0.34" in run.config


def test_inspect_says_how_many_test_samples_another_client_trains_on(tmp_path: Path) -> None:
    arguments = ["data", "inspect", "digits", "--out", tmp_path / "p.png", "--set", "data.clients=4"]
    overlapping = fedapm(*arguments, "--set", "data.partition=overlapping")
    found = json.loads(fedapm(*arguments, "--set", "data.partition=overlapping", "--json").out)["clients"]
    known, tests = (sum(client[key] for client in found) for key in ("elsewhere", "test"))
    assert 0 < known < tests
    assert f"{known} of {tests} test samples are training samples of another client" in overlapping.out
    assert "another client" not in fedapm(*arguments, "--set", "data.partition=dirichlet").out


def test_what_another_client_trains_on_is_counted_as_its_pictures_say() -> None:
    def clients(positions: bool) -> Federation:
        return digits.federation(Overlapping(4), test_fraction=0.2, seed=0, shift=False, positions=positions)

    train, test = (
        [[picture.numpy().tobytes() for picture in samples.inputs[0]] for samples in part]
        for part in zip(*((c.train, c.test) for c in clients(positions=False).clients), strict=True)
    )
    naive = [
        sum(any(picture in other for j, other in enumerate(train) if j != k) for picture in own)
        for k, own in enumerate(test)
    ]
    assert list(trained_elsewhere(clients(positions=True))) == naive


def test_inspect_names_who_lacks_what(tmp_path: Path) -> None:
    arguments = ["--root", windows(tmp_path), "--out", tmp_path / "p.png", "--set", 'data.missing.gyro=["02", "05"]']
    outcome = fedapm("data", "inspect", "motionsense", *arguments)
    assert outcome.out.splitlines()[-3:] == [
        "72 samples, 6 clients, 6 classes, modalities: acc, gyro",
        "without gyro: 02, 05",
        f"Picture: {tmp_path / 'p.png'}",
    ]


def test_the_root_is_the_one_given_or_the_one_of_the_environment_or_data_here(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def samples(*arguments: object) -> int:
        outcome = fedapm("data", "inspect", "motionsense", "--json", *arguments)
        assert outcome.code == 0, outcome.err
        found: int = json.loads(outcome.out)["samples"]
        return found

    roots = {}
    for each, name in ((12, "here"), (15, "environment"), (20, "given")):
        roots[name] = here / "data" if name == "here" else tmp_path / name
        roots[name].mkdir()
        windows(roots[name], each=each)
    assert samples() == 6 * 12
    monkeypatch.setenv("FEDAPM_DATA_ROOT", str(roots["environment"]))
    assert samples() == 6 * 15
    assert samples("--root", roots["given"]) == samples("--data-root", roots["given"]) == 6 * 20


def test_many_classes_are_counted_rather_than_shown(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-imagenet-200"
    names = [f"n{k:08d}" for k in range(13)]
    picture = Image.fromarray(np.zeros((64, 64, 3), np.uint8))
    for name in names:
        (folder / "train" / name / "images").mkdir(parents=True)
        for k in range(4):
            picture.save(folder / "train" / name / "images" / f"{name}_{k}.JPEG")
    (folder / "val" / "images").mkdir(parents=True)
    picture.save(folder / "val" / "images" / "val_0.JPEG")
    (folder / "val" / "val_annotations.txt").write_text(f"val_0.JPEG\t{names[0]}\t0\t0\t9\t9\n")
    (folder / "wnids.txt").write_text("\n".join(names) + "\n")
    options = ["--set", "data.partition=iid", "--set", "data.clients=2"]
    outcome = fedapm("data", "inspect", "tinyimagenet", "--root", tmp_path, *options)
    assert outcome.code == 0, outcome.err
    header, *rows = lines(outcome.out)
    assert header == ["client", "train", "test", "classes"]
    assert sum(int(row[1]) + int(row[2]) for row in rows[:2]) == 53


def test_getting_what_is_bundled_is_no_mistake(here: Path) -> None:
    outcome = fedapm("data", "get", "digits")
    assert (outcome.code, outcome.err) == (0, "")
    assert "digits is bundled" in outcome.out
    assert list(here.iterdir()) == []


def test_getting_what_is_had_by_hand_says_how(tmp_path: Path) -> None:
    outcome = fedapm("data", "get", "crema-d", "--root", tmp_path)
    assert_refused(outcome, "git-lfs", "git clone", "AudioWAV", str(tmp_path), "Open Database Licence")
    assert list(tmp_path.iterdir()) == []


def test_getting_what_is_there_downloads_nothing(tmp_path: Path) -> None:
    archive(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    outcome = fedapm("data", "get", "crisismmd", "--root", tmp_path)
    assert outcome.code == 0
    assert outcome.out.splitlines() == [
        f"crisismmd is in {tmp_path} (CrisisMMD_v2.0 with data_image and crisismmd_datasplit_all). "
        "License: CC BY-NC-SA 4.0; cite Alam, Ofli and Imran 2018.",
        f"Next: fedapm data prepare crisismmd --root {tmp_path}",
    ]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["digits", "motionsense", "cifar10"])
def test_there_is_nothing_to_prepare_where_no_features_are_needed(here: Path, name: str) -> None:
    outcome = fedapm("data", "prepare", name)
    assert (outcome.code, outcome.err) == (0, "")
    assert f"{name} is used as it is" in outcome.out
    assert list(here.iterdir()) == []


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eighteen tweets and their features, made by the encoders that are installed and nothing from the network."""
    folder = tmp_path_factory.mktemp("crisismmd")
    root = archive(folder / "data")
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    assert_prepared(process("data", "prepare", "crisismmd", "--root", root, cwd=folder, **offline), root)
    return root


def assert_prepared(outcome: Outcome, root: Path) -> None:
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith(f"crisismmd is prepared in {root / 'fedapm-features' / 'crisismmd'} (")
    assert outcome.err.splitlines()[-2:] == ["texts of crisismmd: 0 of 18", "texts of crisismmd: 18 of 18"]


def test_without_features_it_is_said_how_to_make_them(tmp_path: Path) -> None:
    root = archive(tmp_path / "data")
    unprepared = fedapm(*small_run(root, tmp_path / "run"))
    assert_refused(unprepared, "no features", f"fedapm data prepare crisismmd --data-root {root}")
    inspected = fedapm("data", "inspect", "crisismmd", "--root", root, *FEW)
    assert "18 samples, 2 clients, 8 classes, modalities: image, text" in inspected.out


def small_run(root: Path, out: Path) -> list[object]:
    return ["run", "--data", "crisismmd", "--data-root", root, "--rounds", 1, "--out", out, *FEW]


def test_from_the_files_of_crisismmd_to_a_run(prepared: Path, tmp_path: Path) -> None:
    assert_prepared(fedapm("data", "prepare", "crisismmd", "--root", prepared), prepared)
    trained = fedapm(*small_run(prepared, tmp_path / "run"))
    assert trained.code == 0, trained.err
    found = load_run(tmp_path / "run")
    assert found.complete
    assert found.info["model"] == "ImageTextClassifier"
    assert sum(client["train"] + client["test"] for client in found.info["clients"]) == 18
    assert found.info["split"]["personal"][:2] == ["image_fc.weight", "image_fc.bias"]
    assert (tmp_path / "run" / "report.html").is_file()


def test_features_may_be_kept_elsewhere(prepared: Path, tmp_path: Path) -> None:
    root, cache = archive(tmp_path / "data"), tmp_path / "features"
    # what is there already is not made again
    shutil.copytree(prepared / "fedapm-features", cache)
    outcome = fedapm("data", "prepare", "crisismmd", "--root", root, "--cache", cache)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith(f"crisismmd is prepared in {cache / 'crisismmd'} (")
    assert not (root / "fedapm-features").exists()
    assert fedapm(*small_run(root, tmp_path / "run"), "--set", f"data.cache={cache}").code == 0


@pytest.mark.parametrize(
    ("arguments", "mentions"),
    [
        (["inspect", "diggits"], ["'diggits'", "'digits'"]),
        (["get", "kuhar"], ["'kuhar'", "'ku-har'"]),
        (["prepare", "crisis"], ["'crisis'", "'crisismmd'"]),
        (["inspect"], ["NAME"]),
        (["show"], ["'show'"]),
        (["inspect", "cifar10"], ["cifar10", "--data-root", "fedapm data get cifar10"]),
        (["inspect", "cifar10", "--root", "none"], ["cifar-10-batches-bin/data_batch_1.bin", "missing"]),
        (["inspect", "ku-har", "--root", "."], ["Trimmed_interpolated_data", "fedapm data get ku-har"]),
        (["inspect", "ravdess", "--root", "."], ["Actor_01", "fedapm data get ravdess"]),
        (["prepare", "crema-d", "--root", "."], ["AudioWAV", "fedapm data get crema-d"]),
        (["prepare", "crisismmd", "--root", "."], ["task_humanitarian_text_img_train.tsv", "missing"]),
        (["inspect", "digits", "--out", "p.txt"], ["png, svg, pdf", "p.txt"]),
        (["inspect", "digits", "--out", "p"], ["png, svg, pdf", "p ends"]),
        (["inspect", "digits", "--set", "engine.rounds=3"], ["[data]", "[engine]"]),
        (["inspect", "digits", "--set", "data.client=3"], ["'data.client'", "'clients'"]),
        (["inspect", "digits", "--set", "data.partition=natural"], ["digits", "have no owner"]),
        (["inspect", "digits", "--set", "data.clients=0"], ["client", "0"]),
    ],
    ids=lambda words: " ".join(words)[:60],
)
def test_mistakes_are_one_line_and_write_nothing(here: Path, arguments: list[str], mentions: list[str]) -> None:
    assert_refused(fedapm("data", *arguments), *mentions)
    assert list(here.iterdir()) == [], "a refused command must leave the folder as it was"


def test_an_unknown_encoder_is_named(tmp_path: Path) -> None:
    root = archive(tmp_path)
    outcome = fedapm("data", "prepare", "crisismmd", "--root", root, "--text-encoder", "minilmm")
    assert_refused(outcome, "'minilmm'", "'minilm'")
    outcome = fedapm("data", "prepare", "crisismmd", "--root", root, "--image-encoder", "mobilenet")
    assert_refused(outcome, "'mobilenet'", "'mobilenet-v2'")
    assert not (root / "fedapm-features").exists()


@pytest.mark.parametrize("command", ["list", "get", "prepare", "inspect"])
def test_help_is_help(command: str) -> None:
    outcome = fedapm("data", command, "--help")
    assert outcome.code == 0
    assert f"Usage: fedapm data {command}" in outcome.out
    assert outcome.err == ""


@pytest.mark.real_data
def test_inspect_real_people(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = unpacked("motionsense", tmp_path_factory)
    outcome = fedapm("data", "inspect", "motionsense", "--root", root, "--out", tmp_path / "p.png")
    assert outcome.code == 0, outcome.err
    assert [row[0] for row in lines(outcome.out)[1:25]] == [f"{person:02d}" for person in range(1, 25)]
    assert "10,854 samples, 24 clients, 6 classes, modalities: acc, gyro" in outcome.out
