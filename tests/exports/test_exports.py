"""Models are exported in every format, loaded by what loads that format, and compared with torch."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fedapm
from fedapm import FedapmError, Federation, models
from fedapm.core.torchscript import from_bytes
from fedapm.exports import Description, find_format, write_model
from tests.helpers.cli import assert_refused
from tests.helpers.cli import fedapm as command
from tests.helpers.own import arrays, project

ort = pytest.importorskip("onnxruntime")
GIVEN = arrays()
QUICK = {"personal": ["head"], "rounds": 2, "fraction": 0.5, "final_personal_epochs": 1}


class Scale(nn.Module):
    """Standardizes with numbers that were computed once."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((5,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / 2


def doubled(x):
    """A transform that is not torch's: it can only be found by its name."""
    return np.asarray(x) * 2 + 1


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).tanh())


def described(shapes: list[list[int]], types: list[str]) -> Description:
    return Description("7", "model", 3, {"method": "fedapm", "input_shapes": shapes, "input_types": types})


def export(module: nn.Module, path: Path, about: Description) -> str:
    return write_model(path, find_format(path), about, module.state_dict, module.eval)


def outputs(path: Path, inputs: tuple[Tensor, ...]) -> Tensor:
    """What a file computes, by its own runtime."""
    if path.suffix == ".onnx":
        session = ort.InferenceSession(path)
        names = [one.name for one in session.get_inputs()]
        found = session.run(None, {name: t.numpy() for name, t in zip(names, inputs, strict=True)})
        return torch.from_numpy(found[0])
    return from_bytes(path.read_bytes())(*inputs)


@pytest.mark.parametrize("ending", [".onnx", ".pt"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "har", "image-text"])
def test_a_network_computes_the_same_in_every_format(name, ending, tmp_path):
    shapes = {"mlp": [[12]], "cnn": [[1, 12, 12]], "har": [[3, 20], [3, 20]], "image-text": [[6], [4, 5], [], []]}[name]
    types = ["float32"] * len(shapes) if name != "image-text" else ["float32", "float32", "int64", "int64"]
    torch.manual_seed(0)
    module = models.factory(name, 3, {}, shapes)().eval()
    export(module, tmp_path / f"m{ending}", described(shapes, types))
    for count in (1, 5):
        inputs = [torch.randn(count, *shape) for shape in shapes]
        if name == "image-text":
            inputs[2:] = torch.arange(count) % 2, torch.arange(count) % 5
        found, expected = outputs(tmp_path / f"m{ending}", tuple(inputs)), module(*inputs).detach()
        assert found.shape == (count, 3)
        assert torch.allclose(found, expected, atol=1e-5)


class Branch(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else -super().forward(x)


class Random(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.rand(3)


class Bessel(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.special.bessel_j0(x))


@pytest.mark.parametrize(
    ("network", "file", "mentions"),
    [
        (Branch, "m.pt", "depends on the values"),
        (Branch, "m.onnx", "branches on the values"),
        (Random, "m.pt", "random"),
        (Bessel, "m.onnx", "no operation for bessel_j0; TorchScript has"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence(network, file, mentions, tmp_path, capfd):
    with pytest.raises(FedapmError, match=mentions) as caught:
        export(network(), tmp_path / file, described([[5]], ["float32"]))
    assert "safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / file).exists()
    assert capfd.readouterr() == ("", ""), "what torch prints on the way is nobody's business"


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose transform is a module."""
    folder = tmp_path_factory.mktemp("scaled") / "run"
    federation = Federation.from_arrays(GIVEN["x"], GIVEN["y"], GIVEN["client"], name="people").transformed(Scale())
    fedapm.train(federation, Net, out=folder, unseen=["dan"], **QUICK)
    return folder


def test_everything_that_is_needed_goes_with_every_format(scaled, tmp_path):
    run = fedapm.load(scaled, model=Net)
    fields = {}
    for ending in (".safetensors", ".onnx", ".pt"):
        about = fedapm.read_about(run.export("bob", tmp_path / f"m{ending}"))
        assert about["transform"]["included"] == (ending != ".safetensors")
        fields[ending] = {k: v for k, v in about.items() if k not in ("transform", "opset")}
    assert fields[".safetensors"] == fields[".onnx"] == fields[".pt"]
    found = fields[".pt"]
    assert found["client"] == "bob"
    assert found["inputs"] == [{"name": "x", "shape": ["batch", 5], "dtype": "float32"}]
    assert (found["output"], found["class_names"]) == ("logits", ["run", "sit", "walk"])
    assert found["labels"] == ["run", "sit", "walk"]
    assert (found["method"], found["round"], found["view"], found["data"]) == ("fedapm", 2, "model", "people")
    assert found["scores"]["accuracy"] == run.per_client["accuracy"]["bob"]
    assert found["scored_on"] == "test"
    assert found["split"]["personal"] == ["head.weight", "head.bias"]
    # without this package
    meta = ort.InferenceSession(tmp_path / "m.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(meta["fedapm"])["opset"] == 18


def test_a_module_is_a_part_of_what_is_exported(scaled, tmp_path):
    run, raw = fedapm.load(scaled, model=Net), torch.as_tensor(GIVEN["x"][:7]).float()
    expected = run.model("bob")((raw - 0.5) / 2).detach()
    assert torch.allclose(run.predict("bob", GIVEN["x"][:7]), expected, atol=1e-6), "predict takes raw inputs"
    for ending in (".onnx", ".pt"):
        path = run.export("bob", tmp_path / f"m{ending}")
        assert torch.allclose(outputs(path, (raw,)), expected, atol=1e-5)
        assert fedapm.read_transform(path) is None
    path = run.export("bob", tmp_path / "m.safetensors")
    network, transform = Net(), fedapm.read_transform(path)
    network.load_state_dict(load_file(path))
    assert torch.allclose(network(transform(raw)), expected, atol=1e-6)


def test_a_new_client_gets_raw_inputs_transformed_too(scaled, tmp_path):
    who = GIVEN["client"] == "dan"
    x, y = GIVEN["x"][who], GIVEN["y"][who]
    new = fedapm.personalize(scaled, (x, y), model=Net)
    path = new.export(tmp_path / "new.onnx")
    raw = torch.as_tensor(x).float()
    assert torch.allclose(outputs(path, (raw,)), new.model((raw - 0.5) / 2).detach(), atol=1e-5)
    about = fedapm.read_about(path)
    assert about["client"] == "new"
    assert about["scores"] == new.after
    assert about["scored_on"] == "validation"
    assert about["class_names"] == ["run", "sit", "walk"]


def test_a_function_goes_by_its_name(tmp_path, monkeypatch):
    config = project(tmp_path)
    (tmp_path / "people_scaling.py").write_text("import numpy as np\ndef half(x):\n    return np.asarray(x) / 2\n")
    config.write_text(config.read_text().replace("[data]", '[data]\ntransform = "people_scaling:half"'))
    assert command("run", config, "--out", tmp_path / "run").code == 0
    outcome = command("export", tmp_path / "run", "--client", "ann", tmp_path / "m.pt")
    assert outcome.code == 0, outcome.err
    assert "the network of client ann in TorchScript" in " ".join(outcome.out.split())
    about = fedapm.read_about(tmp_path / "m.pt")["transform"]
    assert (about["name"], about["included"]) == ("people_scaling:half", False)
    transform = fedapm.read_transform(tmp_path / "m.pt", tmp_path)
    raw = torch.as_tensor(GIVEN["x"][:7]).float()
    expected = fedapm.load(tmp_path / "run").predict("ann", raw)
    found = outputs(tmp_path / "m.pt", (torch.as_tensor(transform(raw)),))
    assert torch.allclose(found, expected, atol=1e-5)
    outcome = command("personalize", tmp_path / "run", "--data", tmp_path / "people.npz", "--client", "ann")
    assert outcome.code == 0, outcome.err


def test_transforms_that_cannot_be(tmp_path):
    federation = Federation.from_arrays(GIVEN["x"], GIVEN["y"], GIVEN["client"])
    assert federation.transformed(doubled).transform.name == f"{__name__}:doubled"
    for wrong, mentions in (
        (lambda x: x, "by its name"),
        (3, "not int"),
        (per_batch, "when it is alone"),
        (fewer, "one row a sample"),
        (failing, "ZeroDivisionError"),
        (Unscriptable(), "cannot be stored as TorchScript"),
    ):
        with pytest.raises(FedapmError, match=mentions) as caught:
            federation.transformed(wrong)
        assert "\n" not in str(caught.value)
    with pytest.raises(FedapmError, match="already"):
        federation.transformed(doubled).transformed(doubled)


def per_batch(x):
    return x - x.mean()


def fewer(x):
    return x[1:]


def failing(x):
    return x / (1 // 0)


class Unscriptable(nn.Module):
    def forward(self, x):
        return sys.modules["numpy"].asarray(x)


@pytest.mark.parametrize(
    ("arguments", "mentions"),
    [
        (["--out", "m.zip"], [".zip", ".safetensors", ".onnx", ".pt or .ts", "torchscript"]),
        (["--out", "m"], ["ends in nothing"]),
        (["--format", "onnx", "--out", "m.pt"], ["m.pt", "does not end in .onnx", "m.onnx"]),
        (["--format", "safetensor", "--out", "m.safetensors"], ["'safetensor'", "safetensors"]),
        (["m.onnx"], ["network of your own", "fedapm.load"]),
        (["m.pt", "--client", "dan"], ["dan took no part", "personalize"]),
        ([], ["which file"]),
        (["m.pt", "--out", "m.pt"], ["which file"]),
    ],
)
def test_files_that_cannot_be(arguments, mentions, scaled, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_refused(command("export", scaled, "--client", "bob", *arguments), *mentions)
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(FedapmError, match=r"pip install 'fedapm\[onnx\]'"):
        export(Net(), tmp_path / "m.onnx", described([[5]], ["float32"]))


def test_a_file_that_is_not_from_here(tmp_path):
    for file in ("m.onnx", "m.pt", "m.safetensors"):
        with pytest.raises(FedapmError, match="is missing"):
            fedapm.read_about(tmp_path / file)
        (tmp_path / file).write_bytes(b"nothing of the kind")
        with pytest.raises(FedapmError, match="cannot be read"):
            fedapm.read_about(tmp_path / file)


def test_a_folder_of_runs_names_them(scaled, tmp_path):
    outcome = command("export", scaled.parent, "--client", "bob", tmp_path / "m.pt")
    assert_refused(outcome, "not a run folder", f"name one of the runs in it: {scaled}")
    assert_refused(command("export", tmp_path / "none", "--client", "bob", tmp_path / "m.pt"), "does not exist")


def test_a_run_without_its_transform_is_not_used_without_it(scaled, tmp_path):
    folder = shutil.copytree(scaled, tmp_path / "run")
    (folder / "transform.pt").write_bytes(b"damaged")
    with pytest.raises(FedapmError, match=r"transform\.pt is damaged"):
        fedapm.load(folder, model=Net).predict("bob", GIVEN["x"][:2])
    (folder / "transform.pt").unlink()
    with pytest.raises(FedapmError, match=r"transform\.pt is missing"):
        fedapm.load(folder, model=Net).predict("bob", GIVEN["x"][:2])


def test_a_saved_run_keeps_its_transform(tmp_path):
    federation = Federation.from_arrays(GIVEN["x"], GIVEN["y"], GIVEN["client"]).transformed(Scale())
    result = fedapm.train(federation, Net, **QUICK)
    loaded = fedapm.load(result.save(tmp_path / "run"), model=Net)
    assert torch.equal(loaded.predict("ann", GIVEN["x"][:5]), result.predict("ann", GIVEN["x"][:5]))
    assert loaded.transform.raw == (((5,), "float32"),)


def test_a_transform_is_refused_on_flower():
    from fedapm.flower.settings import deployment

    with pytest.raises(FedapmError, match=r"data\.transform is for simulations"):
        deployment({"data": {"name": "digits", "transform": "my_data:scale"}})
