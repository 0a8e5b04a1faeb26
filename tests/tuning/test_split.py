"""The search of the split: it finds what was planted, shares where nothing differs, and goes on where it stopped."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedapm
from fedapm import Callback, Federation, Interrupted
from fedapm.core.candidates import EVERYTHING, NOTHING
from fedapm.core.metrics import ACCURACY
from fedapm.core.samples import Samples
from fedapm.core.solver import SGDConfig
from fedapm.data.clients import ClientData
from fedapm.experiments.settings import EngineSettings, Experiment, ModelSettings
from fedapm.report.split.search import Gap, SplitRow, SplitSearch, read_search
from fedapm.runs.files import read_json
from fedapm.runs.records import load_run
from fedapm.tuning.split import SplitOptions, find_split
from fedapm.tuning.split.advice import advise
from fedapm.tuning.split.display import FollowRounds
from fedapm.tuning.split.results import Outcome
from tests.helpers.unit import blob_clients, refused, two_layers
from tests.tuning import planted

TINY = Experiment(
    model=ModelSettings(split="auto"),
    solver=SGDConfig(batch_size=10),
    engine=EngineSettings(rounds=4, fraction=1.0, engine="sequential"),
)


def search(folder: Path, differ: str = "", **options: Any) -> SplitSearch:
    clients = planted.federation(differ)
    return find_split(planted.experiment(), clients, folder, model=planted.network, progress=False, **options)


def tiny(folder: Path, experiment: Experiment = TINY, **more: Any) -> SplitSearch:
    given = {"clients": blob_clients(), "model": two_layers, "progress": False} | more
    clients = given.pop("clients")
    return find_split(experiment, clients, folder, **given)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished search, only to be read."""
    folder = tmp_path_factory.mktemp("split") / "search"
    tiny(folder)
    return folder


@pytest.fixture
def copied(done: Path, tmp_path: Path) -> Path:
    """A finished search."""
    return shutil.copytree(done, tmp_path / "search")


@pytest.mark.parametrize(("differ", "layer"), [("output", "4"), ("input", "0")])
def test_a_layer_whose_optimum_differs_between_clients_is_found(differ: str, layer: str, tmp_path: Path) -> None:
    found = search(tmp_path / "search", differ)
    assert found.chosen.patterns == {"personal": [layer]}
    assert found.assignment == f'model.personal=["{layer}"]'
    assert found.advice[0].startswith("Make personal: ")
    assert f"({layer})" in found.advice[0]
    assert "better than one model for all" in found.advice[1]


def test_where_clients_are_alike_nothing_should_be_personal(tmp_path: Path) -> None:
    found = search(tmp_path / "search")
    assert found.chosen.name == NOTHING
    assert found.chosen.patterns == {"personal": []}
    assert found.advice[0].startswith("Do not personalise here")


def test_where_clients_contradict_each_other_much_is_personal(tmp_path: Path) -> None:
    found = search(tmp_path / "search", "rule")
    rows = {row.name: row for row in found.rows}
    assert found.chosen.share > 0.5
    assert rows[EVERYTHING].verdict in ("chosen", "as good")
    assert rows[NOTHING].verdict == "worse"


def test_everything_personal_is_said_plainly() -> None:
    behind = Gap(0.0, 0.0, 0.0)
    rows = [
        SplitRow(NOTHING, (), (), 0.0, "worse", 4, 0.2, Gap(0.7, 0.6, 0.8), 9.0, ((4, 0.2),)),
        SplitRow(EVERYTHING, ("*",), (), 1.0, "chosen", 4, 0.9, behind, 0.0, ((4, 0.9),)),
    ]
    sentences = advise(Outcome(tuple(rows), rows[1], rows[1], Gap(0.7, 0.6, 0.8)), ACCURACY.describe())
    assert sentences[0] == "Share nothing here: every client does best with a model of its own."
    assert sentences[1].endswith("90.0%, 70.0 points (95% interval 60.0 to 80.0) better than one model for all.")


def test_all_candidates_of_a_rung_get_the_same(done: Path) -> None:
    content = read_json(done / "split.json")
    assert content["status"] == "complete"
    for rung in content["rungs"]:
        on = [(s["candidate"], s["seed"]) for s in content["scores"] if s["rounds"] == rung["rounds"]]
        assert len({candidate for candidate, _ in on}) == rung["candidates"]
        assert {seed for _, seed in on} >= {*rung["seeds"]}
    assert content["rungs"][-1]["seeds"] == [0, 1]
    runs = list((done / "candidates").glob("*/seed-*"))
    assert len(runs) == len({(s["candidate"], s["seed"]) for s in content["scores"]})
    for folder in runs:
        assert not (folder / "checkpoints").exists()
        assert load_run(folder).complete


def test_no_test_data_is_looked_at(done: Path, tmp_path: Path) -> None:
    def spoilt(client: ClientData) -> ClientData:
        test = Samples(tuple(x * 0 + 1e9 for x in client.test.inputs), client.test.targets)
        return ClientData(client.id, client.train, test)

    clients = blob_clients()
    bad = Federation([spoilt(client) for client in clients.clients], clients.name)
    assert tiny(tmp_path / "bad", clients=bad) == read_search(done)


@pytest.mark.parametrize("after", [7, 15])
def test_an_interrupted_search_goes_on_and_ends_the_same(
    after: int, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = 0

    def interrupt(self: Callback, *_: object) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == after:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FollowRounds, "on_round_end", interrupt)
        with pytest.raises(Interrupted):
            tiny(tmp_path / "search")
    assert read_json(tmp_path / "search" / "split.json")["status"] == "running"
    with refused("not finished"):
        read_search(tmp_path / "search")
    assert tiny(tmp_path / "search") == read_search(done)
    assert (tmp_path / "search" / "split.json").read_bytes() == (done / "split.json").read_bytes()


def test_the_same_search_again_only_reads(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedapm.tuning.split.trainer.execute", None)
    assert tiny(copied) == read_search(copied)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"options": SplitOptions(budget=60)}, ["budget was 16"]),
        ({"experiment": replace(TINY, solver=SGDConfig(batch_size=5))}, ["solver.batch_size"]),
        ({"model": lambda: nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 3))}, ["the network"]),
    ],
)
def test_another_search_in_the_same_folder_is_refused(changed: dict[str, Any], words: list[str], copied: Path) -> None:
    with refused("other arguments", *words):
        tiny(copied, **changed)


def test_a_schedule_over_all_rounds_starts_again_on_each_rung(tmp_path: Path) -> None:
    cosine = replace(TINY, solver=SGDConfig(batch_size=10, lr_schedule="cosine"))
    tiny(tmp_path / "search", cosine, options=SplitOptions(budget=30))
    runs = [load_run(folder) for folder in (tmp_path / "search" / "candidates").glob("*/seed-0-*")]
    assert len({run.info["rounds"] for run in runs}) > 1


def test_quantities_are_scored_by_their_loss(tmp_path: Path) -> None:
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    clients = Federation.from_clients([(x, x.sum(1) + (5 if k % 2 else -5)) for k in range(6)])
    fedalt = replace(TINY, algorithm=fedapm.FedAlt(), solver=SGDConfig(lr=0.1, batch_size=10))
    found = tiny(tmp_path / "search", fedalt, clients=clients, model=lambda: nn.Linear(4, 1))
    assert found.metric["name"] == "test_loss"
    assert found.chosen.patterns["personal"] == ["*bias*"]
    assert found.advice[1].startswith("Loss on validation data")


def test_a_search_in_which_everything_diverges_says_so(tmp_path: Path) -> None:
    with refused("every candidate diverged", "solver.lr"):
        tiny(tmp_path / "search", loss=lambda outputs, targets: outputs.sum() / 0 * targets.sum())


def test_frozen_parameters_are_in_no_candidate(tmp_path: Path) -> None:
    found = tiny(tmp_path / "search", replace(TINY, model=ModelSettings(split="auto", frozen=("body.weight",))))
    assert all("body.weight" not in row.personal for row in found.rows)
    assert {row.name for row in found.rows} >= {NOTHING, EVERYTHING}


def test_a_method_with_a_split_of_its_own_is_refused(tmp_path: Path) -> None:
    with refused("FedAvg", "split"):
        tiny(tmp_path / "search", replace(TINY, algorithm=fedapm.FedAvg()))
    assert not (tmp_path / "search").exists()


def test_clients_with_too_little_data_are_named(tmp_path: Path) -> None:
    x, y = torch.zeros(1, 4), torch.zeros(1, dtype=torch.long)
    clients = Federation.from_clients({"a": (x, y)}, test={"a": (x, y)})
    with refused("client a", "cannot be searched"):
        tiny(tmp_path / "search", clients=clients)
    assert not (tmp_path / "search").exists()
