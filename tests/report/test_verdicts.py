"""What the report says in plain words: train locally, which layers are personal, why two rows are equal."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fedapm.cli.tables import summary
from fedapm.report import SummaryRow, summary_table
from fedapm.report.comparison.headline import headline_sentences
from fedapm.report.comparison.sections import layers
from fedapm.report.comparison.twins import twin_sentences
from fedapm.report.results import Results
from fedapm.runs.records import find_runs
from tests.report.fake_runs import COMPARISON, Fake, tiny_run, write_comparison, write_fake


def verdict(folder: Path) -> str:
    return headline_sentences(Results.of(find_runs(folder)))[0]


def write(folder: Path, local: list[float], shared: list[float]) -> Path:
    for method, scores in (("local", local), ("fedavg", shared)):
        for seed, score in enumerate(scores):
            tiny_run(folder / method / str(seed), method, seed, [[0.1, 0.1], [score, score]])
    return folder


def test_where_local_training_clearly_wins_that_comes_first(tmp_path: Path) -> None:
    said = verdict(write(tmp_path, [0.90, 0.91, 0.92], [0.50, 0.52, 0.51]))
    assert said.startswith("Train locally: on these data every method that shares something is worse")


@pytest.mark.parametrize("shared", [[0.5], [0.2, 0.95, 0.6]])
def test_where_it_may_be_chance_that_is_said_too(tmp_path: Path, shared: list[float]) -> None:
    said = verdict(write(tmp_path, [0.90, 0.91, 0.92][: len(shared)], shared))
    assert said.startswith("Train locally, as far as these runs show")
    assert "More seeds" in said


def test_where_something_else_is_ahead_nobody_is_told_to_train_locally(tmp_path: Path) -> None:
    sentences = headline_sentences(Results.of(find_runs(write_comparison(tmp_path, COMPARISON))))
    assert sentences[0].startswith("FedAPM ends with")
    assert not any("Train locally" in sentence for sentence in sentences)


def twins(folder: Path, same: float) -> list[str]:
    for seed in (1, 2):
        ditto = Fake("ditto", "Ditto", seed=seed, views={"P": 0.9, "G": 0.8})
        write_fake(folder / f"ditto-{seed}", ditto)
        row = json.loads((folder / f"ditto-{seed}" / "rounds.jsonl").read_text().splitlines()[-1])
        common = row["evaluations"]["G"]["accuracy"]["mean"]
        tiny_run(folder / f"fedavg-{seed}", "fedavg", seed, [[common * same] * 6])
    rows = summary_table(find_runs(folder))
    sentences = twin_sentences(rows)
    assert bool(sentences) == ("equals" in _caption(rows)), "the terminal says the same"
    return sentences


def _caption(rows: list[SummaryRow]) -> str:
    screen = Console(width=200, file=io.StringIO())
    screen.print(summary(rows))
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_ditto_s_global_model_is_explained_where_it_equals_fedavg(tmp_path: Path) -> None:
    (said,) = twins(tmp_path, 1.0)
    assert said.startswith("Ditto-G equals Fedavg, as it should")
    assert said.endswith("Ditto-P.")


def test_and_not_where_it_does_not(tmp_path: Path) -> None:
    assert twins(tmp_path, 0.9) == []


def test_personal_layers_have_names_and_a_share(tmp_path: Path) -> None:
    write_comparison(tmp_path, COMPARISON)
    section = layers.section(Results.of(find_runs(tmp_path)))
    assert section is not None
    first = section.context["rows"][0]
    assert (first.label, first.names["personal"], first.names["shared"]) == ("FedAPM", "head", "body")
    assert first.share == "13.7%"
    assert ">head</td>" in section.body


def test_what_is_sent_of_a_frozen_network_stands_against_all_of_it(tmp_path: Path) -> None:
    path = write_fake(tmp_path / "fedapm", Fake("fedapm", "FedAPM"))
    info = json.loads((path / "run.json").read_text())
    assert layers.section(Results.of(find_runs(tmp_path))).context["rows"][0].sent == ""
    parameters = {"shared": 6144, "personal": [9224], "frozen": 22565376}
    split = {"shared": ["lora_A.weight"], "personal": ["head.weight"], "frozen": ["base.weight"]}
    (path / "run.json").write_text(json.dumps(info | {"split": split, "parameters": parameters}))
    section = layers.section(Results.of(find_runs(tmp_path)))
    assert section is not None
    assert "6,144 parameters; 24,576 of 90,322,976 bytes, 1/3,675" in section.body
    assert "neither sent nor saved" in section.body


def test_a_model_beside_the_network_is_not_called_nothing(tmp_path: Path) -> None:
    path = write_fake(tmp_path / "ditto", Fake("ditto", "Ditto", views={"P": 0.9, "G": 0.8}))
    info = json.loads((path / "run.json").read_text())
    split = {"shared": ["body.weight", "head.weight"], "personal": [], "frozen": []}
    (path / "run.json").write_text(json.dumps(info | {"split": split}))
    section = layers.section(Results.of(find_runs(tmp_path)))
    assert section is not None
    assert "a whole model v_i" in section.body


def test_layers_are_named_once() -> None:
    assert layers.layer_names(["a.b.weight", "a.b.bias", "scale", "a.c.weight"]) == ["a.b", "scale", "a.c"]
