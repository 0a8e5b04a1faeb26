"""Samples side by side, and the orders they are taken in: those of each client by itself."""

import pytest
import torch

from fedapm.core.random import key, keys, torch_generator
from fedapm.core.samples import Samples
from fedapm.core.split import SplitRule
from fedapm.data import ClientData, Federation
from fedapm.simulation.batched import table
from fedapm.simulation.batched.stacked import Stacked
from fedapm.simulation.batched.streams import Streams
from fedapm.simulation.problem import Problem
from tests.helpers.unit import two_layers

CLIENTS, SIZES = [4, 0, 7], [11, 9, 9]


def streams(once: bool) -> Streams:
    return Streams(keys(3, "batches", CLIENTS, 2), once)


def some_samples(sizes: list[int]) -> list[Samples]:
    stream = torch.Generator().manual_seed(1)
    return [Samples((torch.randn(n, 4, generator=stream),), torch.arange(n) % 3) for n in sizes]


def problem_of(sizes: list[int]) -> Problem:
    members = [ClientData(str(k), part, part[:2]) for k, part in enumerate(some_samples(sizes))]
    return Problem(Federation(members), two_layers, SplitRule(personal=("head",)))


@pytest.mark.parametrize("once", [False, True])
def test_orders_are_those_of_every_client_by_itself_however_often_one_draws(once: bool) -> None:
    drawn, alone = streams(once), [torch_generator(3, "batches", k, 2) for k in CLIENTS]
    for _ in range(3):
        wanted = [torch.randperm(n, generator=stream) for n, stream in zip(SIZES, alone, strict=True)]
        assert all(map(torch.equal, drawn.orders(SIZES), wanted))
    wanted = [torch.randperm(5, generator=alone[k]) for k in (0, 2)]
    assert all(map(torch.equal, drawn.chosen([0, 2]).orders([5, 5]), wanted))
    assert torch.equal(drawn.chosen([0, 2]).chosen([1]).orders([6])[0], torch.randperm(6, generator=alone[2]))
    assert drawn.draws == 5


@pytest.mark.parametrize("once", [False, True])
def test_some_may_draw_before_the_others(once: bool) -> None:
    drawn, alone = streams(once), [torch_generator(3, "batches", k, 2) for k in CLIENTS]
    first = torch.randperm(8, generator=alone[1])
    assert torch.equal(drawn.chosen([1]).orders([8])[0], first)
    wanted = [torch.randperm(n, generator=stream) for n, stream in zip(SIZES, alone, strict=True)]
    assert all(map(torch.equal, drawn.orders(SIZES), wanted))


def test_keys_of_several_clients_are_those_of_each() -> None:
    assert keys(-5, "é", [10**9, -3], 4, 1) == [key(-5, "é", k, 4, 1) for k in (10**9, -3)]
    assert keys(0, "batches", []) == []


@pytest.mark.parametrize("size", [0, 3, 4, 20])
@pytest.mark.parametrize("read_before", [False, True])
def test_batches_out_of_the_samples_of_all_are_those_of_the_clients_side_by_side(size: int, read_before: bool) -> None:
    parts, places = some_samples([9] * 6), [5, 0, 3]
    chosen = [parts[k] for k in places]
    columns = tuple(torch.stack(column) for column in zip(*((*p.inputs, p.targets) for p in parts), strict=True))
    near = Stacked.of([p.inputs for p in chosen], [p.targets for p in chosen])
    far = Stacked(columns, (9, 9, 9), torch.tensor(places))
    if read_before:
        assert torch.equal(far.inputs[0], near.inputs[0])
        assert torch.equal(far.targets, near.targets)
    batches = [[*data.epoch(size, streams(once=True), ordered=True)] for data in (near, far)]
    for one, other in zip(*batches, strict=True):
        assert torch.equal(one.inputs[0], other.inputs[0])
        assert torch.equal(one.targets, other.targets)
        assert (one.sizes, one.rows) == (other.sizes, other.rows)
    # and those of each client by itself
    for k, part in enumerate(chosen):
        alone = part.shuffled(size or 9, torch_generator(3, "batches", CLIENTS[k], 2))
        for batch, own in zip(batches[1], alone, strict=True):
            assert torch.equal(batch.inputs[0][k], own.inputs[0])
            assert torch.equal(batch.targets[k], own.targets)


def test_the_samples_of_all_are_kept_once_more_where_they_are_few_and_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    alike = problem_of([6, 6, 6])
    found = table.training_table(alike)
    assert found is not None
    for k, client in enumerate(alike.federation.clients):
        assert torch.equal(found[0][k], client.train.inputs[0])
        assert torch.equal(found[1][k], client.train.targets)
    assert table.training_table(problem_of([6, 5, 6])) is None
    monkeypatch.setattr(table, "MOST", 3 * 6 * (4 * 4 + 8) - 1)
    assert table.training_table(alike) is None
