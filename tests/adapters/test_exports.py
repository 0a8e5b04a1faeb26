"""A client's adapter and head leave for peft and come back; merged they compute the same."""

import json

import pytest
import torch
from safetensors.torch import load_file

import fedapm
from fedapm.errors import FedapmError
from tests.adapters.tiny import network, texts


def trained(preset: str) -> fedapm.Result:
    lora = {"rank": 2, "alpha": 6.0, "personal_rank": 3 if preset == "dual" else None}
    options = {"optimizer": "adamw", "lr": 0.05, "epochs": 1, "engine": "sequential"}
    return fedapm.train(texts(), network, lora=lora, preset=preset, rounds=2, **options)


@pytest.mark.parametrize("preset", ["lora", "ffa-lora", "dual"])
def test_peft_opens_the_folder_and_computes_the_same(preset, tmp_path):
    from peft import PeftModel

    result, inputs = trained(preset), texts()[2].test.inputs
    folder = result.export("client-2", tmp_path / "adapter", "peft")
    assert sorted(f.name for f in folder.iterdir()) == [
        "README.md", "adapter_config.json", "adapter_model.safetensors",
    ]  # fmt: skip
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == (5 if preset == "dual" else 2)
    names = list(load_file(folder / "adapter_model.safetensors"))
    assert all("lora_" in name or ".head." in name for name in names), "nothing of the base"
    card = (folder / "README.md").read_text()
    assert all(word in card for word in ("FedAPM", "accuracy", "license", "client-2"))
    model = PeftModel.from_pretrained(network(), folder).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(*inputs), result.predict("client-2", inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("preset", ["lora", "dual", "head"])
def test_merged_weights_go_into_the_network_itself(preset, tmp_path):
    result, inputs = trained(preset), texts()[1].test.inputs
    path = result.export("client-1", tmp_path / "merged.safetensors", "merged")
    plain = network().eval()
    plain.load_state_dict(load_file(path))
    with torch.no_grad():
        torch.testing.assert_close(plain(*inputs), result.predict("client-1", inputs), rtol=1e-4, atol=1e-5)


def test_what_has_no_adapters_is_refused(tmp_path):
    with pytest.raises(FedapmError, match="export it as merged"):
        trained("head").export("client-1", tmp_path / "adapter", "peft")
    plain = fedapm.train("digits", rounds=1, count=1)
    with pytest.raises(FedapmError, match="without adapters"):
        plain.export("0", tmp_path / "adapter", "peft")
    with pytest.raises(FedapmError, match="should be a folder"):
        plain.export("0", tmp_path / "adapter.zip", "peft")
