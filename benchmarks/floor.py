"""The round of many small clients written by hand, with torch's operations and nothing else, beside fedapm's.

    python benchmarks/floor.py [--rounds N] [--quick]

FedAvg on the small network, all selected clients side by side. The round by hand knows this one network, this one
method and that all clients have the same number of samples; it keeps no states, checks nothing and records nothing. It
draws the same batches, and the benchmark ends with an error where the two models come apart. Both take turns in one
process, some rounds at a time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import machine
import torch
from ours import METHODS, loop, one_round
from torch import Tensor
from workloads import QUICK, TINY, Workload

from fedapm.core import random
from fedapm.data import Federation
from fedapm.runs.files import write_json

HERE = Path(__file__).parent
ROUNDS, WARM = 400, 20
TURN = 20
"""Rounds of one before the other has as many."""
APART = 1e-3
"""How far the two models may come apart."""


class ByHand:
    """FedAvg on a perceptron of one hidden layer."""

    def __init__(self, work: Workload, clients: Federation, start: Sequence[Tensor]) -> None:
        self.work = work
        self.x = torch.cat([client.train.inputs[0] for client in clients])
        self.y = torch.cat([client.train.targets for client in clients])
        self.shared = [p.detach().clone() for p in start]
        self.minus_one = torch.full((), -1.0)

    @torch.no_grad()
    def round(self, number: int, selected: Sequence[int]) -> None:
        """One epoch of every selected client, and the mean of what they come to."""
        count, batch, samples = len(selected), self.work.batch, self.work.samples
        stream, orders = torch.Generator(), []
        for client, seed in zip(selected, random.keys(0, "batches", selected, number), strict=True):
            orders.append(torch.randperm(samples, generator=stream.manual_seed(seed)) + client * samples)
        places = torch.stack(orders).view(count, -1, batch).transpose(0, 1).reshape(-1)
        xs = self.x.index_select(0, places).view(-1, count, batch, self.x.shape[1])
        ys = self.y.index_select(0, places).view(-1, count * batch)
        w1, b1, w2, b2 = own = [p.expand(count, *p.shape).contiguous() for p in self.shared]
        step = -self.work.lr / batch
        for x, y in zip(xs, ys, strict=True):
            hidden = torch.baddbmm(b1.unsqueeze(1), x, w1.transpose(1, 2)).relu_()
            scores = torch.baddbmm(b2.unsqueeze(1), hidden, w2.transpose(1, 2))
            classes = scores.shape[-1]
            slope = torch.log_softmax(scores.view(-1, classes).t().contiguous(), 0).exp_()
            slope.scatter_add_(0, y.unsqueeze(0), self.minus_one.expand(1, len(y)))
            slope = slope.view(classes, count, batch).transpose(0, 1)
            back = torch.bmm(slope.transpose(1, 2), w2)
            back = torch.ops.aten.threshold_backward(back, hidden, 0)
            w2.baddbmm_(slope, hidden, alpha=step)
            b2.add_(slope.sum(2), alpha=step)
            w1.baddbmm_(back.transpose(1, 2), x, alpha=step)
            b1.add_(back.sum(1), alpha=step)
        self.shared = [p.mean(0) for p in own]


def measure(work: Workload, rounds: int) -> dict[str, list[float]]:
    """Seconds of both, some rounds of each in turn; the first rounds of each prepare and do not count."""
    runs = loop(work, METHODS["fedavg"](), "vectorized")
    state = runs.state
    hand = ByHand(work, runs.problem.federation, list(state.server.u.values()))
    seconds: dict[str, list[float]] = {"hand": [], "fedapm": []}
    for first in range(1, WARM + rounds + 1, TURN):
        numbers = range(first, min(first + TURN, WARM + rounds + 1))
        selected = {number: runs.select(number) for number in numbers}
        for number in numbers:
            began = time.process_time()
            state = one_round(runs, state)
            if number > WARM:
                seconds["fedapm"].append(time.process_time() - began)
        for number in numbers:
            began = time.process_time()
            hand.round(number, selected[number])
            if number > WARM:
                seconds["hand"].append(time.process_time() - began)
    gap = max((a - b).abs().max().item() for a, b in zip(hand.shared, state.server.u.values(), strict=True))
    if not gap < APART:
        raise SystemExit(f"the two models are {gap:.1e} apart after {state.round} rounds; nothing is written.")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each")
    parser.add_argument("--quick", action="store_true", help="five rounds: shows that it works, says nothing of speed")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "floor.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    machine.warn_if_busy()
    about = machine.about()
    work = replace(QUICK["tiny"], selected=20, clients=40) if given.quick else TINY
    seconds = measure(work, 5 if given.quick else given.rounds)
    taken = {name: {"best": min(t), "median": statistics.median(t), "all": t} for name, t in seconds.items()}
    for name, times in taken.items():
        print(f"{name:8}{times['best'] * 1e3:8.2f} ms, median {times['median'] * 1e3:.2f} ms")
    write_json(given.json, {"machine": about, "quick": given.quick, **taken})
    print(f"\nwritten: {given.json}")


if __name__ == "__main__":
    main()
