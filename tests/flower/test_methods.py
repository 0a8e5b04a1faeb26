"""Over a grid every method gives the results of one process, to the bit, and sends nothing it should not."""

import json
import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import safetensors.torch
import torch
from flwr.app import ArrayRecord, ConfigRecord
from torch import nn

from fedapm.algorithms import METHODS, PRESETS
from fedapm.data import Federation
from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.experiments.settings import DataSettings
from fedapm.flower import client_app
from fedapm.flower.client.data import load_client_data
from fedapm.flower.problem import NodeProblem
from fedapm.flower.server.run import serve
from fedapm.flower.settings import deployment
from fedapm.flower.transport import codec
from fedapm.models import DigitsNet
from fedapm.runs.records import JsonLines, load_run
from tests.flower.cases import CLIENTS, Case, same

KINDS = METHODS | PRESETS
WITHOUT_A_SHARED_MODEL = {"lp-proj", "local"}
"""Their drift is a spread of whole models that never leave their nodes, so on Flower it is not known."""


def but(records, *fields):
    return [{k: v for k, v in record.items() if k not in fields} for record in records]


class Busy(nn.Module):
    """Running statistics, dropout and a frozen layer."""

    stages: ClassVar = {"head": ("head",), "output": ("head",), "input": ("norm",)}

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(64, 24)
        self.norm = nn.BatchNorm1d(24)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(24, 10)
        self.base.requires_grad_(False)
        self.double()

    def forward(self, x):
        return self.head(self.drop(self.norm(self.base(x)).relu()))


@pytest.fixture(scope="module", params=list(KINDS))
def played(request, tmp_path_factory) -> Case:
    """A whole run of every method, on a network with everything that makes trouble."""
    case = Case.of(tmp_path_factory.mktemp(request.param), request.param, Busy, engine={"rounds": 3})
    case.serve()
    return case


def test_every_method_equals_the_sequential_engine(played):
    case, found = played, played.records()
    progress, expected = case.sequential()
    unknown = ["drift"] if case.plan.experiment.algorithm.name in WITHOUT_A_SHARED_MODEL else []
    assert but(found, *unknown) == but(expected, *unknown)
    assert [r["selected"] for r in found[1:]] != [list(range(len(CLIENTS)))] * 3
    assert same(case.saved().state.server, progress.server)
    for k, (client, state) in enumerate(case.acknowledged().items()):
        assert same(state, progress.store.get(k).state), client
    assert case.complete


@pytest.mark.parametrize("name", ["fedapm", "fedsim", "local"])
def test_regularized_personal_parts_equal_the_sequential_engine(tmp_path, name):
    case = Case.of(tmp_path, name, solver={"epochs": 2, "prior_v": 0.5, "dropout_v": 0.3, "validation_v": 0.3})
    found = case.serve()
    progress, expected = case.sequential()
    unknown = ["drift"] if name in WITHOUT_A_SHARED_MODEL else []
    assert but(found, *unknown) == but(expected, *unknown)
    for k, (client, state) in enumerate(case.acknowledged().items()):
        assert same(state, progress.store.get(k).state), client


@pytest.mark.parametrize("name", ["fedapm", "fedrod"])
def test_a_bias_that_starts_at_the_classes_of_its_client_equals_the_sequential_engine(tmp_path, name):
    case = Case.of(tmp_path, name, solver={"epochs": 2, "bias_v": "frequencies"})
    found = case.serve()
    progress, expected = case.sequential()
    assert found == expected
    for k, (client, state) in enumerate(case.acknowledged().items()):
        assert same(state, progress.store.get(k).state), client


def test_a_round_is_one_exchange(tmp_path):
    case = Case.of(tmp_path)
    case.serve()
    hellos, rounds = len(CLIENTS), 5
    assert len(case.grid.carried) == hellos + (rounds + 1) * len(CLIENTS)
    logged = list(JsonLines(case.out / "messages.jsonl"))
    assert [row["round"] for row in logged] == list(range(rounds + 1))
    assert [row["sent"] for row in logged] == [row["received"] for row in logged]
    assert sum(row["sent"] for row in logged) == len(case.grid.carried)
    for name, contents in {
        "bytes_sent": [carried.message.content for carried in case.grid.carried],
        "bytes_received": [carried.reply.content for carried in case.grid.carried],
    }.items():
        notes = sum(len(content["note"]["json"]) for content in contents)
        vectors = sum(len(content["vectors"]["safetensors"].data) for content in contents if "vectors" in content)
        assert sum(row[name] for row in logged) == notes + vectors
    case = Case.of(tmp_path / "seldom", engine={"evaluate_every": 5})
    records = case.serve()
    trained = sum(len(r["selected"]) for r in records)
    # the first evaluation also begins round 1, and the last one follows round 5
    assert len(case.grid.carried) == hellos + 2 * len(CLIENTS) + trained - len(records[1]["selected"])


def test_seldom_evaluated_runs_differ_only_in_what_was_not_measured(tmp_path):
    case = Case.of(tmp_path, engine={"evaluate_every": 2})
    found, (_, expected) = case.serve(), case.sequential()
    assert but(found, "drift") == but(expected, "drift")
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["drift"] == (theirs["drift"] if ours["evaluations"] else None)


@pytest.mark.parametrize("units", ["client", "paper"])
def test_weights_by_samples_need_no_data_on_the_server(tmp_path, units):
    case = Case.of(tmp_path, "fedapm", engine={"weights": "samples", "units": units})
    found, (progress, expected) = case.serve(), case.sequential()
    assert found == expected
    assert same(case.saved().state.server, progress.server)


def test_nothing_but_sums_scores_and_sizes_leaves_a_node(played):
    case = played
    split = case.problem().network(0).split
    private = {*split.personal, *split.frozen, "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    secrets = [t for c in case.data.clients for part in (c.train, c.test) for t in (part.inputs[0], part.targets)]
    notes = {"protocol", "run", "token", "client", "data", "scores", "closing_scores", "drift", "trained", "remarks"}
    for carried in case.grid.carried:
        for content in (carried.message.content, carried.reply.content):
            assert set(content) <= {codec.FIELDS, codec.TENSORS}
            assert isinstance(content[codec.FIELDS], ConfigRecord)
            assert set(content[codec.FIELDS]) == {"json"}
            if codec.TENSORS not in content:
                continue
            assert isinstance(content[codec.TENSORS], ArrayRecord)
            assert set(content[codec.TENSORS]) == {codec.FORMAT}
            for label, tensor in safetensors.torch.load(content[codec.TENSORS][codec.FORMAT].data).items():
                assert label.split("/")[2] not in private
                assert not any(tensor.shape == s.shape and torch.equal(tensor, s) for s in secrets)
        note = json.loads(carried.reply.content[codec.FIELDS]["json"])
        assert set(note) <= notes
        assert set(note.get("trained") or ()) <= {"round", "finite", "weight", "sums", "log"}
        # a note is short: no vector hides in it
        assert len(json.dumps(note)) < 6000


def test_a_client_that_comes_out_infinite_is_left_out_of_the_round(tmp_path, monkeypatch):
    case = Case.of(tmp_path)
    east, original = CLIENTS.index("east"), NodeProblem.task

    def poisoned(self, client, round):
        task = original(self, client, round)
        return replace(task, lr_factor=math.inf) if self.position == east else task

    monkeypatch.setattr(NodeProblem, "task", poisoned)
    records = case.serve()
    assert all(r["dropped"] == [k for k in r["selected"] if k == east] for r in records)
    assert any(r["dropped"] for r in records)
    assert same(case.saved().state.server, case.sequential({r["round"]: r["dropped"] for r in records})[0].server)
    assert case.saved().ledger.entry(east).accepted == ""
    assert not list((tmp_path / "nodes" / str(100 + east)).rglob("0*.safetensors"))


def test_a_named_data_set_is_dealt_out_on_every_node_as_in_one_process(tmp_path):
    tables = {
        "data": {"name": "digits", "clients": 3, "validation": 0.25},
        "solver": {"epochs": 1},
        "engine": {"rounds": 2, "fraction": 0.7, "engine": "sequential"},
    }
    case = Case.of(tmp_path)
    case.grid.app = client_app()
    case.grid.clients = {k: {"partition-id": k} for k in range(3)}
    serve(case.grid.link(), deployment(tables, {"flower": {"wait": 5.0}}), case.out)
    execute(build.plan(build.resolve(tables)), tmp_path / "one", progress=False)
    found, expected = load_run(case.out), load_run(tmp_path / "one")
    assert found.rounds == expected.rounds
    assert found.config == expected.config
    same_info = {"clients", "parameters", "split", "rounds", "method", "seed", "model", "data", "status", "finished"}
    assert {k: found.info[k] for k in same_info} == {k: expected.info[k] for k in same_info}
    for k in range(3):
        (model,) = (tmp_path / "nodes" / str(k)).rglob("model.safetensors")
        mine = safetensors.torch.load_file(model)
        theirs = safetensors.torch.load_file(tmp_path / "one" / "models" / f"client-{k:04d}.safetensors")
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[n], theirs[n]) for n in mine)


def test_a_nodes_own_file_is_split_as_in_a_federation(tmp_path):
    stream = np.random.default_rng(0)
    arrays = {name: (stream.normal(size=(30, 4)).astype(np.float32), np.arange(30) % 3) for name in CLIENTS}
    whole = Federation.from_clients(arrays, test_fraction=0.2, seed=7).for_validation(0.25, 7)
    settings = DataSettings(name="own", test_fraction=0.2, seed=7, validation=0.25)
    for k, name in enumerate(CLIENTS):
        np.savez(tmp_path / f"{name}.npz", x=arrays[name][0], y=arrays[name][1])
        data, _ = load_client_data(settings, name, k, None, tmp_path / f"{name}.npz")
        for mine, theirs in ((data.train, whole[k].train), (data.test, whole[k].test)):
            assert torch.equal(mine.inputs[0], theirs.inputs[0])
            assert torch.equal(mine.targets, theirs.targets)


def test_single_precision_is_equal_too(tmp_path):
    case = Case.of(tmp_path, "fedapm", lambda: DigitsNet(width=16, features=8))
    half = Federation.from_clients(
        {c.id: (c.train.inputs[0].float(), c.train.targets) for c in case.data.clients},
        test={c.id: (c.test.inputs[0].float(), c.test.targets) for c in case.data.clients},
    )
    case.data = half
    case.grid.app = client_app(data=lambda n: half[half.position(n)], model=case.make)
    found, (progress, expected) = case.serve(), case.sequential()
    assert found == expected
    assert same(case.saved().state.server, progress.server)
