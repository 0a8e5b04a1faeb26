"""Small steps are computed with one thread, whatever the caller computes with; large ones as the caller likes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fedapm
from fedapm import Federation
from fedapm.core.threads import ASKED
from fedapm.simulation.loop import Callback

CALLER = 3


class Threads(Callback):
    """How many there are at the end of every round."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def on_round_end(self, state: Any, record: Any, seconds: float) -> None:
        self.seen.add(torch.get_num_threads())


def clients(width: int) -> Federation:
    stream = torch.Generator().manual_seed(0)
    return Federation.from_clients(
        {
            name: (torch.randn(20, width, generator=stream), torch.randint(2, (20,), generator=stream))
            for name in ("ann", "bob", "cas")
        },
        test_fraction=0.2,
    )


def train(width: int, **more: Any) -> tuple[set[int], fedapm.Result]:
    """What a run on a network of this width computes with."""
    threads = Threads()
    given = {"personal": ["2"], "rounds": 1, "batch_size": 10, "engine": "sequential", "fraction": 1.0} | more
    model = lambda: nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))  # noqa: E731
    result = fedapm.train(clients(width), model, callbacks=[threads], **given)
    return threads.seen, result


@pytest.fixture(autouse=True)
def caller(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Somebody with several threads, who has said nothing about them."""
    before = torch.get_num_threads()
    monkeypatch.delenv(ASKED, raising=False)
    torch.set_num_threads(CALLER)
    yield
    torch.set_num_threads(before)


def test_one_for_small_steps_and_afterwards_as_before() -> None:
    seen, result = train(8)
    assert seen == {1}
    assert torch.get_num_threads() == CALLER
    fedapm.personalize(result, (torch.randn(20, 8), torch.arange(20) % 2))
    assert torch.get_num_threads() == CALLER


def test_as_many_as_before_for_large_steps() -> None:
    seen, _ = train(400)
    assert seen == {CALLER}


def test_as_many_as_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ASKED, str(CALLER))
    seen, _ = train(8)
    assert seen == {CALLER}


def test_a_run_that_fails_leaves_them_as_they_were() -> None:
    class Broken(Callback):
        def on_round_end(self, state: Any, record: Any, seconds: float) -> None:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        fedapm.train(
            clients(8), lambda: nn.Linear(8, 2), personal=["bias"], rounds=1, engine="sequential", callbacks=[Broken()]
        )
    assert torch.get_num_threads() == CALLER


def test_the_caller_s_threads_change_no_digit() -> None:
    _, several = train(8)
    torch.set_num_threads(1)
    _, one = train(8)
    for name, tensor in several.model("ann").state_dict().items():
        assert tensor.equal(one.model("ann").state_dict()[name])
