"""Other packages add methods, data sets, networks, metrics and loggers through entry points."""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedapm.core import registry
from fedapm.data import DATA_SETS, DataSet, Pool, Source, data_set
from fedapm.models import MODELS, factory
from fedapm.runs.records import load_run
from tests.helpers import plugin
from tests.helpers.cli import fedapm
from tests.helpers.unit import refused


class Blobs(DataSet):
    name = "blobs"
    about = "random points of two classes"

    def read(self, source: Source) -> Pool:
        del source
        targets = torch.arange(80) % 2
        points = torch.randn(80, 4, generator=torch.Generator().manual_seed(0)) + targets.unsqueeze(1)
        return Pool(targets, ("low", "high"), ("points",), inputs=(points,))


class Perceptron(nn.Module):
    def __init__(self, classes: int, width: int = 4) -> None:
        super().__init__()
        self.layer = nn.Linear(width, classes)

    @classmethod
    def arguments_for(cls, shapes: Any) -> dict[str, int]:
        ((width,),) = shapes
        return {"width": width}

    def forward(self, points: Tensor) -> Tensor:
        return self.layer(points)


def install(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    """Let the registries find these entry points when they are asked next."""
    monkeypatch.setattr(registry, "entry_points", lambda group: [point for point in points if point.group == group])
    for items in (DATA_SETS, MODELS):
        monkeypatch.setattr(items, "_items", dict(items._items))
        monkeypatch.setattr(items, "_discovered", False)


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        monkeypatch,
        EntryPoint("blobs", f"{__name__}:Blobs", "fedapm.data_sets"),
        EntryPoint("perceptron", f"{__name__}:Perceptron", "fedapm.models"),
    )


@pytest.mark.usefixtures("plugins")
def test_a_data_set_and_a_network_of_another_package_are_found_by_name() -> None:
    assert isinstance(data_set("blobs"), Blobs)
    network = factory("perceptron", 3, {}, [(7,)])()
    assert isinstance(network, Perceptron)
    assert network.layer.weight.shape == (3, 7)
    with refused("unknown data set 'blob'", "blobs"):
        data_set("blob")


@pytest.mark.usefixtures("plugins")
def test_they_are_listed_and_run_from_the_command_line(tmp_path: Path) -> None:
    assert "random points of two classes" in fedapm("list", "data").out
    assert "perceptron" in fedapm("list", "models").out
    options = ["--set", "data.partition=iid", "--set", "data.clients=4", "--set", "model.name=perceptron"]
    personal = ["--set", 'model.personal=["layer.bias"]']
    outcome = fedapm("run", "--data", "blobs", "--rounds", 1, "--out", tmp_path / "run", *options, *personal)
    assert outcome.code == 0, outcome.err
    run = load_run(tmp_path / "run")
    assert (run.info["data"], run.info["model"]) == ("blobs", "Perceptron")


@pytest.mark.parametrize("value", ["no_such_module:Blobs", f"{__name__}:NoSuchName"])
def test_a_broken_plug_in_is_left_out_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    group = "fedapm.data_sets"
    install(monkeypatch, EntryPoint("broken", value, group), EntryPoint("digits", f"{__name__}:Blobs", group))
    with caplog.at_level(logging.WARNING, "fedapm"):
        assert "broken" not in DATA_SETS
    messages = [record.getMessage() for record in caplog.records]
    assert any("'broken'" in message and "cannot be loaded" in message for message in messages)
    assert any("'digits'" in message and "already there" in message for message in messages)
    assert data_set("digits").name == "digits"


def test_broken_plug_ins_do_not_break_the_command_line(tmp_path: Path) -> None:
    source = "from fedapm import FedAvg\n\n\ndef helper():\n    pass\n"
    methods = {"gone": "no_such_module:Method", "helper": "broken:helper", "other-name": "broken:FedAvg"}
    plugin.install(tmp_path, "broken", source, {"fedapm.methods": methods, "fedapm.metrics": {"number": "sys:maxsize"}})
    done = plugin.python(tmp_path, "-m", "fedapm", "list", "methods")
    assert done.returncode == 0, done.stderr
    assert "fedapm" in done.stdout
    lines = sorted(done.stderr.splitlines())
    assert len(lines) == 3, done.stderr
    reasons = (["'gone'", "no_such_module"], ["'helper'", "no subclass"], ["'other-name'", "'fedavg'"])
    for line, mentions in zip(lines, reasons, strict=True):
        assert line.startswith("fedapm: the method ")
        assert all(word in line for word in mentions), line
    code = "import fedapm; print(list(fedapm.METRICS))"
    done = plugin.python(tmp_path, "-c", code)
    assert "number" not in done.stdout
    assert "the metric 'number' (sys:maxsize) cannot be loaded" in done.stderr
