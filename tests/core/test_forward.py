"""Features computed once equal features computed in every pass; otherwise they are not cached."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedapm.core import forward, network
from fedapm.core.forward import Step
from fedapm.core.network import Network
from fedapm.core.samples import Samples
from fedapm.core.solver import Epochs, SGDConfig, UntilStationary
from fedapm.core.split import SplitRule
from fedapm.core.task import LocalTask
from fedapm.core.vec import Vec
from fedapm.models import CNN, DigitsNet


def pictures(count: int = 70) -> Samples:
    stream = torch.Generator().manual_seed(0)
    return Samples((torch.randn(count, 3, 32, 32, generator=stream),), torch.arange(count) % 10)


def rows(count: int = 70, width: int = 64) -> Samples:
    stream = torch.Generator().manual_seed(0)
    return Samples((torch.randn(count, width, generator=stream),), torch.arange(count) % 10)


def network_of(module: nn.Module, rule: SplitRule) -> Network:
    return Network(module, rule.apply(module), functional.cross_entropy)


def trained(made: Network, samples: Samples, block: str, stop: Epochs | UntilStationary = Epochs(3)) -> Vec:  # noqa: B008
    task = LocalTask(made, samples, SGDConfig(lr=0.05, batch_size=16, weight_decay=0.01), 0, 0, 1)
    start = made.read(getattr(made.split, block))
    return task.minimize(start, stop=stop)


def gap(a: Vec, b: Vec) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in a)


@pytest.mark.parametrize(
    ("make", "preset", "block", "data"),
    [
        (CNN, "output", "personal", pictures),
        (CNN, "input", "shared", pictures),
        (DigitsNet, "output", "personal", rows),
        (DigitsNet, "input", "shared", rows),
    ],
)
@pytest.mark.parametrize("stop", [Epochs(3), UntilStationary(1e-9, 3)])
def test_training_on_kept_features_is_training(monkeypatch, make, preset, block, data, stop, caplog) -> None:
    caplog.set_level("INFO", "fedapm")

    def run(cached: bool) -> tuple[Vec, int]:
        torch.manual_seed(3)
        made = network_of(make(), SplitRule(preset=preset))
        splits = []
        original = Network.cut

        def cut(self, names, samples):
            parts = original(self, names, samples)
            splits.append(parts)
            return parts if cached else None

        with monkeypatch.context() as patch:
            patch.setattr(Network, "cut", cut)
            result = trained(made, data(), block, stop)
        assert splits
        assert splits[0] is not None
        assert not caplog.records
        return result, len(splits)

    assert gap(run(True)[0], run(False)[0]) < 1e-6


def test_the_constant_part_is_computed_once(monkeypatch) -> None:
    made = network_of(CNN(), SplitRule(preset="output"))
    seen: list[int] = []
    original = nn.Conv2d.forward

    def counted(layer: nn.Conv2d, x: Tensor) -> Tensor:
        if layer is made.module.conv1:
            seen.append(x.shape[0])
        return original(layer, x)

    monkeypatch.setattr(nn.Conv2d, "forward", counted)
    samples = pictures()
    made.cut(made.split.personal, samples)
    seen.clear()
    trained(made, samples, "personal", Epochs(5))
    assert sum(seen) == len(samples)
    seen.clear()
    trained(made, samples, "shared", Epochs(5))
    assert sum(seen) == 5 * len(samples)


def test_a_sequence_of_layers_needs_no_declaration() -> None:
    module = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    parts = forward.split_forward(module, ["2.weight", "2.bias"], 1)
    assert parts is not None
    x = rows().inputs[0]
    assert torch.equal(parts.forward_features(*parts.compute_features((x,))), module(x))
    assert [step.modules for step in parts.constant] == [("0",), ("1",)]


@pytest.mark.parametrize("trainable", [["0.weight"], ["0.weight", "2.bias"], []])
def test_nothing_is_kept_where_nothing_comes_before_or_nothing_is_trained(trainable) -> None:
    module = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    assert forward.split_forward(module, trainable, 1) is None


class Branches(nn.Module):
    """Two inputs that meet: while one branch is trained the other is a constant."""

    forward_steps: ClassVar = (
        Step(output="left", inputs=("a",), modules=("one",)),
        Step(output="right", inputs=("b",), modules=("two",)),
        Step(output="both", inputs=("left", "right", "scale"), modules=("head",)),
    )

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 3), nn.Linear(5, 3), nn.Linear(3, 2)

    def forward(self, a: Tensor, b: Tensor, scale: Tensor | None = None) -> Tensor:
        return self.both(self.left(a), self.right(b), scale)

    def left(self, a: Tensor) -> Tensor:
        return self.one(a).relu()

    def right(self, b: Tensor) -> Tensor:
        return self.two(b).relu()

    def both(self, left: Tensor, right: Tensor, scale: Tensor | None) -> Tensor:
        hidden = left + right
        return self.head(hidden if scale is None else hidden * scale.unsqueeze(1))


@pytest.mark.parametrize("optional", [False, True])
def test_a_branch_that_is_not_trained_is_kept(optional) -> None:
    module = Branches()
    inputs = (torch.randn(6, 4), torch.randn(6, 5), *([torch.rand(6)] if optional else []))
    parts = forward.split_forward(module, ["one.weight"], len(inputs))
    assert parts is not None
    assert [step.output for step in parts.constant] == ["right"]
    assert parts.features == (("a", "right", "scale") if optional else ("a", "right"))
    assert torch.equal(parts.forward_features(*parts.compute_features(inputs)), module(*inputs))


def test_dropout_behind_the_cut_does_not_matter_and_before_it_does(caplog) -> None:
    caplog.set_level("INFO", "fedapm")
    behind = network_of(CNN(dropout=0.5), SplitRule(preset="output"))
    assert behind.cut(behind.split.personal, pictures()) is not None
    module = nn.Sequential(nn.Linear(64, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 10))
    before = network_of(module, SplitRule(personal=("3",)))
    assert before.cut(before.split.personal, rows()) is None
    assert "1 (Dropout)" in caplog.text


def test_batch_statistics_are_left_to_every_pass(caplog) -> None:
    caplog.set_level("INFO", "fedapm")
    module = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    made = network_of(module, SplitRule(personal=("3",)))
    before = made.buffers()
    assert made.cut(made.split.personal, rows()) is None
    assert made.buffers().equal(before)
    assert "1 (BatchNorm1d)" in caplog.text


class Sly(nn.Sequential):
    """Drops out without a module that says so."""

    class Part(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.dropout(x, 0.5, self.training)


def test_randomness_that_no_module_names_is_noticed(caplog) -> None:
    caplog.set_level("INFO", "fedapm")
    made = network_of(nn.Sequential(nn.Linear(64, 8), Sly.Part(), nn.Linear(8, 10)), SplitRule(personal=("2",)))
    state = torch.random.get_rng_state()
    assert made.cut(made.split.personal, rows()) is None
    assert torch.equal(torch.random.get_rng_state(), state), "looking must not draw from the user's stream"
    assert "changes them in training" in caplog.text


def test_features_that_are_too_large_are_not_kept(monkeypatch, caplog) -> None:
    caplog.set_level("INFO", "fedapm")
    monkeypatch.setattr(network, "FEATURE_BYTES", 1)
    made = network_of(CNN(), SplitRule(preset="output"))
    trained(made, pictures(), "personal")
    assert "are not kept" in caplog.text


@pytest.mark.parametrize("count", [1, 31, 32, 1000])
def test_predictions_do_not_depend_on_how_many_are_looked_at_together(monkeypatch, count) -> None:
    made = network_of(DigitsNet().double(), SplitRule(preset="output"))
    samples = Samples((rows(100).inputs[0].double(),), rows(100).targets)
    expected = made.predict(samples)
    monkeypatch.setattr(network, "batch_size", lambda _: count)
    assert torch.allclose(made.predict(samples), expected, atol=1e-12)
