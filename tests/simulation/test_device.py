"""On a device everything is on the device: rounds there give what they give on the CPU, whose kernels both use.

The device is not a real one (see ``tests/helpers/fake_device.py``). What real ones compute with kernels of their own
is not tested: recurrent cells in one piece, bfloat16 and draws of dropout. Nor are several processes, which only CPUs
have, and clients on Flower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedapm.algorithms import FedAvg
from fedapm.core.algorithm import Algorithm, ClientUpdate, State
from fedapm.core.record import RoundRecord
from fedapm.core.solver import SGDConfig
from fedapm.core.split import SplitRule
from fedapm.core.task import Task
from fedapm.core.vec import Vec
from fedapm.data import Federation
from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.models import MLP
from fedapm.runs.files import read_tensors
from fedapm.simulation.engines.base import LocalEngine
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.engines.vectorized import VectorizedEngine
from fedapm.simulation.loop import Schedule
from fedapm.simulation.problem import Problem, Weighting
from fedapm.simulation.sampling import Sampling
from fedapm.simulation.stores.disk import checkpoint_files
from tests.contract.test_engines import KINDS, gap, quick
from tests.helpers.fake_device import NAME, FakeTensor, on_fake_device
from tests.helpers.running import play
from tests.helpers.unit import blobs, refused

ENGINES = [SequentialEngine, VectorizedEngine]
SIZES = (14, 31, 9, 22)


class Pictures(nn.Module):
    """A network that is mapped over clients."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(1, 3, 2)
        self.norm = nn.GroupNorm(1, 3)
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        values: Tensor = self.head(self.norm(self.body(x.view(-1, 1, 2, 2))).relu().flatten(1))
        return values


class Normed(nn.Module):
    """A network with buffers, which belong to one client each."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        values: Tensor = self.head(self.norm(self.body(x)).relu())
        return values


@dataclass(frozen=True)
class Slower(FedAvg):
    """A client moves less each time, so it keeps a number."""

    def client_init(self, u0: Vec, v0: Vec) -> State:
        return State(times=0.0)

    def client_update(self, broadcast: State, state: State, task: Task) -> ClientUpdate:
        moved = task.minimize(broadcast.u) - broadcast.u
        u = broadcast.u + 1 / (1 + state.times) * moved
        return ClientUpdate(self.upload(u, broadcast.u, task), State(times=state.times + 1), u)


def chain() -> nn.Module:
    """A network of fully connected layers, which are computed for several clients in one product."""
    return MLP(classes=3, features=4, hidden=(6,))


def clients() -> Federation:
    return Federation.from_clients(
        {f"c{k}": blobs(size, seed=k) for k, size in enumerate(SIZES)},
        test={f"c{k}": blobs(8, seed=9 + k) for k in range(len(SIZES))},
    )


def run(
    device: str,
    engine: type[LocalEngine],
    method: Algorithm,
    model: Callable[[], nn.Module],
    weights: Any,
    solver: dict[str, Any],
    schedule: dict[str, Any],
) -> tuple[State, list[State], list[RoundRecord], LocalEngine]:
    problem = Problem(
        clients(),
        model,
        SplitRule(personal=("head",)),
        adapt=method.adapt,
        solver=SGDConfig(**{"lr": 0.05, "epochs": 1, "batch_size": 16, "weight_decay": 0.001} | solver),
        weighting=Weighting(weights),
        rounds=2,
        device=device,
    )
    runs = engine(problem, method)
    ended, records = play(problem, method, Schedule(2, Sampling(0.5), closing_epochs=1, **schedule), engine=runs)
    return ended.server, [runs.client_state(k).state for k in range(len(SIZES))], records, runs


def assert_same_as_on_cpu(
    engine: type[LocalEngine],
    method: Algorithm,
    model: Callable[[], nn.Module] = chain,
    weights: str = "uniform",
    schedule: dict[str, Any] | None = None,
    **solver: Any,
) -> None:
    """Run two rounds here and there."""
    server, states, expected, near_runs = run("cpu", engine, method, model, weights, solver, schedule or {})
    far_server, far_states, found, runs = run(NAME, engine, method, model, weights, solver, schedule or {})
    if isinstance(runs, VectorizedEngine) and isinstance(near_runs, VectorizedEngine):
        assert runs.fallback_reasons == near_runs.fallback_reasons
        assert runs._evaluates_batched == near_runs._evaluates_batched
    for state, far in zip([server, *states], [far_server, *far_states], strict=True):
        assert all(isinstance(tensor, FakeTensor) for vector in far.vectors.values() for tensor in vector.values())
        near = {field: value.to("cpu") if isinstance(value, Vec) else value for field, value in far.items()}
        assert gap(State(**near), state) == 0
    assert found == expected
    assert all(record["evaluations"] for record in found)


@on_fake_device
def test_a_tensor_that_is_elsewhere_is_an_error(tmp_path: Path) -> None:
    here, there = torch.ones(3), torch.ones(3, device=NAME)
    assert there.device.type == (there + 1).device.type == torch.zeros_like(there).device.type == NAME
    layer = nn.Linear(3, 2)
    mixed: list[Callable[[], object]] = [
        lambda: there + here,
        lambda: here.add_(there),
        lambda: there.add_(here),
        lambda: torch.stack([there, here]),
        lambda: torch.where(here > 0, there, there),
        lambda: here[there.long()],
        lambda: there.index_select(0, here.long()),
        lambda: there.index_put_((here.long(),), here),
        lambda: layer(there),
        lambda: nn.functional.cross_entropy(there, here),
        lambda: torch.vmap(torch.add)(there, here),
        lambda: torch.randperm(3, generator=torch.Generator(), device=NAME),
    ]
    for attempt in mixed:
        with pytest.raises(RuntimeError, match=r"expected a(ll tensors on one device| generator on fake)"):
            attempt()
    with pytest.raises(RuntimeError, match="numpy"):
        there.numpy()


@on_fake_device
def test_values_are_carried_only_where_that_is_said(tmp_path: Path) -> None:
    values = torch.arange(6.0).view(2, 3)
    there = values.to(NAME)
    there[0] *= 2
    there.t()[1].neg_()
    assert values.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert there.tolist() == there.cpu().tolist() == [[0, -2, 4], [3, -4, 5]]
    assert values.copy_(there).tolist() == there.tolist()
    assert (there[torch.tensor([1])] * torch.tensor(2.0)).tolist() == [[6, -8, 10]]
    layer = nn.Linear(3, 2)
    (expected,) = torch.autograd.grad(layer(values).square().sum(), [layer.weight])
    layer.to(NAME)(there).square().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.device.type == NAME
    assert layer.weight.grad.cpu().equal(expected)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", list(KINDS))
@on_fake_device
def test_rounds_are_those_on_the_cpu(tmp_path: Path, name: str, engine: type[LocalEngine]) -> None:
    assert_same_as_on_cpu(engine, quick(name))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "settings",
    [
        {"weights": "samples", "momentum": 0.5, "clip_norm": 0.3, "batch_size": 0},
        {"validation_v": 0.3, "epochs": 4, "prior_v": 0.1},
        {"optimizer": "adamw", "accumulate": 2},
        {"schedule": {"theory": True, "stationarity": True}},
    ],
)
@on_fake_device
def test_settings_of_the_solver_are_those_on_the_cpu(
    tmp_path: Path, engine: type[LocalEngine], settings: dict[str, Any]
) -> None:
    assert_same_as_on_cpu(engine, quick("fedapm"), **settings)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", [Pictures, Normed])
@on_fake_device
def test_networks_of_other_layers_are_on_the_device(
    tmp_path: Path, engine: type[LocalEngine], model: Callable[[], nn.Module]
) -> None:
    assert_same_as_on_cpu(engine, quick("fedapm"), model)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("engine", ENGINES)
@on_fake_device
def test_numbers_that_clients_keep_are_on_the_device(tmp_path: Path, engine: type[LocalEngine], weights: str) -> None:
    assert_same_as_on_cpu(engine, Slower(), weights=weights)


@on_fake_device
def test_a_device_without_bfloat16_is_refused(tmp_path: Path) -> None:
    with refused("the device fake has no bfloat16"):
        assert_same_as_on_cpu(SequentialEngine, quick("fedapm"), precision="bfloat16")


SMALL = {
    "data": {"name": "digits", "clients": 4, "samples": 160},
    "solver": {"epochs": 1},
    "engine": {"rounds": 2, "fraction": 1.0, "checkpoint_every": 1, "final_personal_epochs": 1},
}


def assert_same_files(folder: Path, *tables: dict[str, Any], stop_after: int | None = None) -> None:
    """Make a run here and one there, which may be resumed; all numbers in their files agree."""
    for device in ("cpu", NAME):
        for rounds in [stop_after, 2] if stop_after is not None and device == NAME else [2]:
            plan = build.plan(build.resolve(SMALL, *tables, {"engine": {"device": device, "rounds": rounds}}))
            execute(plan, folder / device, resume=(folder / device).exists(), progress=False)
    here, there = folder / "cpu", folder / NAME
    assert (there / "rounds.jsonl").read_text() == (here / "rounds.jsonl").read_text()
    for path in [*(here / "models").glob("*.safetensors"), checkpoint_files(here / "checkpoints")[0]]:
        expected, found = read_tensors(path)[0], read_tensors(there / path.relative_to(here))[0]
        assert found.keys() == expected.keys()
        assert all(found[name].equal(expected[name]) for name in found), path.name


@pytest.mark.parametrize(("engine", "store"), [("sequential", "disk"), ("vectorized", "memory")])
@on_fake_device
def test_a_run_is_saved_resumed_and_evaluated(tmp_path: Path, engine: str, store: str) -> None:
    assert_same_files(tmp_path, {"engine": {"engine": engine, "store": store}, "data": {"unseen": 0.25}}, stop_after=1)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize(
    "settings",
    [
        {"upload": {"compress": "top-k", "keep": 0.1, "round_to": "int8", "broadcast": "int8"}},
        {"upload": {"compress": "low-rank", "rank": 2, "clip": 0.5}},
        {"upload": {"aggregate": "geometric-median", "norm_limit": 3.0}},
        {"upload": {"mask": True}},
        {"privacy": {"epsilon": 8.0, "delta": 1e-3, "clip": "adaptive", "noise": "keyed"}},
    ],
)
@on_fake_device
def test_what_is_done_to_messages_is_done_on_the_device(
    tmp_path: Path, engine: str, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fedapm")
    assert_same_files(tmp_path, {"engine": {"engine": engine}, **settings})
    told = [record.getMessage() for record in caplog.records if "one by one" in record.getMessage()]
    assert told[: len(told) // 2] == told[len(told) // 2 :], "what is computed together here is so there"
