"""Adapters over a grid: the run of one process, nothing frozen on the wire or on disk, and one base for all."""

import torch

from fedapm.core.pretrained import quiet_libraries
from fedapm.data import Federation
from fedapm.experiments import build
from fedapm.experiments.own import with_adapters
from fedapm.flower import client_app
from fedapm.flower.client.handler import MessageHandler
from fedapm.flower.client.node import Node
from fedapm.flower.transport import codec
from fedapm.models.text import TextClassifier
from tests.adapters.tiny import CLASSES, LORA, network, texts, tiny_folder
from tests.flower.cases import CLIENTS, Case
from tests.helpers.running import play


def case_of(folder) -> Case:
    some = texts(len(CLIENTS))
    named = {name: (c.train.inputs, c.train.targets) for name, c in zip(CLIENTS, some.clients, strict=True)}
    data = Federation.from_clients(named, test=named)
    case = Case.of(
        folder,
        make=network,
        model={"preset": "lora", "lora": LORA},
        solver={"optimizer": "adamw", "lr": 0.02, "batch_size": 5},
        engine={"rounds": 2},
    )
    case.data = data
    case.grid.app = client_app(data=lambda name: data[data.position(name)], model=network)
    return case


def test_a_run_over_a_grid_is_that_of_one_process(tmp_path):
    case = case_of(tmp_path)
    records = case.serve()
    experiment = case.plan.experiment
    case.make = with_adapters(network, experiment.model)
    problem = case.problem()
    alone, expected = play(problem, experiment.method, build.schedule(experiment.engine))
    assert case.saved().state.server["u"].equal(alone.server["u"])
    assert records[-1]["bytes_up"] == expected[-1]["bytes_up"]
    frozen = set(problem.network(0).split.frozen)
    for carried in case.grid.carried:
        _, tensors = codec.decode(carried.message.content)
        assert not any(name in key for key in tensors for name in frozen)
    base = sum(f.stat().st_size for f in tiny_folder().glob("*.safetensors"))
    assert all(f.stat().st_size < base for f in tmp_path.rglob("*.safetensors"))


def test_a_node_with_another_base_is_refused(tmp_path):
    case = case_of(tmp_path)
    case.serve()
    carried = next(c for c in case.grid.carried if c.trains)
    note, tensors = codec.decode(carried.message.content)
    node = Node.from_config({"client-id": carried.client, "state-dir": str(tmp_path / "x")})
    with quiet_libraries():
        other = str(tiny_folder(1))
    handler = MessageHandler(
        node, lambda name: case.data[case.data.position(name)], lambda: TextClassifier(CLASSES, weights=other)
    )
    reply, vectors = handler.answer(note, tensors)
    assert "other frozen weights" in reply["refused"]
    assert carried.client in reply["refused"]
    assert vectors == {}
    assert torch.is_tensor(next(iter(tensors.values())))
