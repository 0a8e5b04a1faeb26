"""Which engine is chosen where nothing is said, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedapm import Federation
from fedapm.algorithms import METHODS
from fedapm.core.solver import SGDConfig
from fedapm.core.split import SplitRule
from fedapm.simulation.engines import vectorized
from fedapm.simulation.engines.auto import EngineChoice, choose_engine
from fedapm.simulation.problem import Problem

CLIENTS, SAMPLES = 12, 20


class Recurrent(nn.Module):
    """Rows of a picture, one after the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rows, self.head = nn.GRU(8, width, batch_first=True), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rows(x[:, 0])[0][:, -1])


def convolutions(channels: int = 4) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * channels, 3)
    )


def chosen(module: nn.Module, method: str = "fedavg", clients: int = CLIENTS) -> EngineChoice:
    stream = torch.Generator().manual_seed(0)

    def data(client: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(SAMPLES, 1, 8, 8, generator=stream)
        return x, torch.randint(3, (SAMPLES,), generator=stream)

    federation = Federation.from_clients({str(k): data(k) for k in range(clients)}, test_fraction=0.2)
    torch.manual_seed(0)
    algorithm = METHODS[method]()
    problem = Problem(
        federation, module, SplitRule(personal=("4",)), adapt=algorithm.adapt, solver=SGDConfig(batch_size=10, epochs=1)
    )
    return choose_engine("auto", problem, algorithm, list(range(clients)))


@pytest.mark.parametrize("method", ["fedavg", "fedapm"])
def test_small_convolutions_are_trained_side_by_side(method):
    choice = chosen(convolutions(), method)
    assert choice.engine.name == "vectorized"
    # 8·8·9·4 products of the convolution and 64·3 of the last layer, of 10 samples, there and twice back
    assert f"{6 * 10 * (64 * 36 + 192) / 1e6:.2f} million operations" in choice.why


def test_large_convolutions_are_not():
    choice = chosen(convolutions(channels=200))
    assert choice.engine.name != "vectorized"
    assert "million operations" in choice.why or "workers" in choice.why


def test_few_clients_are_not():
    assert "a round has 3 clients" in chosen(convolutions(), clients=3).why


def recurrent(width: int) -> nn.Sequential:
    return nn.Sequential(Recurrent(width), *(nn.Identity() for _ in range(3)), nn.Linear(3, 3))


@pytest.mark.parametrize("method", ["fedavg", "fedapm"])
def test_recurrent_layers_are_where_a_step_of_their_sequence_is_small(method):
    choice = chosen(recurrent(4), method)
    assert choice.engine.name == "vectorized"
    # one of eight steps: 3 gates of 4 for 8 features and 4 states; then 4·3 and 3·3; 10 samples, there and twice back
    assert f"{6 * 10 * (12 * 12 + 21) / 1e6:.2f} million operations" in choice.why
    assert chosen(recurrent(200), method).engine.name != "vectorized"


def test_a_network_that_cannot_be_mapped_is_not():
    class Told(nn.Module):
        """Says something that depends on its values."""

        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum().item() > 0 else -x

    choice = chosen(nn.Sequential(nn.Flatten(), Told(), nn.Linear(64, 3), nn.Identity(), nn.Linear(3, 3)))
    assert choice.engine.name == "sequential"


def test_what_comes_out_differently_together_is_not(monkeypatch):
    alone = vectorized.train_client

    def shifted(*given):
        found = alone(*given)
        return replace(found, update=replace(found.update, u=found.update.u * 1.5))

    monkeypatch.setattr(vectorized, "train_client", shifted)
    choice = chosen(convolutions())
    assert choice.engine.name != "vectorized"
    assert "differently" in choice.why
