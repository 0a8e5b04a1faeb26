"""The page on foundation models works: real MiniLM and EfficientNet, few tweets and images, one step after another."""

import json
import re
import shutil

import pytest
import torch

from fedapm.data.sets.cifar10 import CIFAR10
from fedapm.data.sets.crisismmd import CLASSES, FILES, FOLDER, SPLIT
from tests.data.sets.test_cifar_layouts import write_binary
from tests.data.sets.test_crisismmd import HEADER, write
from tests.helpers.cli import fedapm
from tests.test_docs import ROOT, commands

PAGE = ROOT / "docs" / "how-to" / "foundation-models.md"


@pytest.fixture
def data(tmp_path, monkeypatch):
    (tmp_path / "data" / FOLDER / SPLIT).mkdir(parents=True)
    rows = []
    for k, event in enumerate(["mexico_earthquake", "srilanka_floods"] * 8):
        image = f"data_image/{event}/1_9_2017/{k}_0.jpg"
        label = CLASSES[k % len(CLASSES)]
        fields = (event, str(k), f"{k}_0", f"help number {k}", image, "x", label, "vehicle_damage", "Negative")
        rows.append(dict(zip(HEADER, fields, strict=True)))
    for name, some in zip(FILES, (rows[:12], rows[12:14], rows[14:]), strict=True):
        write(tmp_path / "data" / FOLDER, name, some)
    monkeypatch.setattr(CIFAR10, "files", dict.fromkeys(CIFAR10.files, 12))
    write_binary(CIFAR10(), tmp_path / "data")
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("runs", "flower-app"))
    return tmp_path


def test_the_page_works(data, monkeypatch, capsys):
    monkeypatch.chdir(data)
    for command in commands(PAGE):
        small = ["--set", "engine.rounds=1", "--set", "engine.engine=sequential"] if command[0] == "run" else []
        if "examples/cifar10-lora.toml" in command:
            small += ["--set", "data.clients=2", "--set", "data.partition=iid"]
        done = fedapm(*command, *small)
        assert done.code == 0, done.err
    info = json.loads((data / "runs" / "tweets" / "run.json").read_text())
    assert info["parameters"] == {"shared": 6144, "personal": [9224], "frozen": 22565376}
    assert "one part in" in (data / "runs" / "tweets" / "card.md").read_text()
    models = list((data / "runs" / "tweets").rglob("*.safetensors"))
    assert models
    assert all(file.stat().st_size < 10**6 for file in models), "the base is 90 MB"
    blocks = re.findall(r"^```python.*?\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    assert len(blocks) == 2
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), scope)
    ids, length = scope["ids"], scope["length"]
    with torch.no_grad():
        torch.testing.assert_close(scope["model"](ids, length), scope["merged"](ids, length), rtol=1e-4, atol=1e-5)
    assert capsys.readouterr().out
