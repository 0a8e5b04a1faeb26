"""Every method with clients side by side against the same clients one by one, on many small clients.

    python benchmarks/methods.py [--rounds N] [--methods NAMES] [--quick]

All in one process on one thread: a round of the one engine, a round of the other, and so on, so that whatever disturbs
the machine disturbs both. Both draw the same clients and the same batches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import machine
import torch
from ours import NEVER, engine, federation, one_round
from torch import nn
from workloads import CLASSES, QUICK, TINY, Workload

from fedapm.algorithms import METHODS
from fedapm.core.algorithm import Algorithm
from fedapm.core.solver import SGDConfig
from fedapm.core.split import SplitRule
from fedapm.data import Federation
from fedapm.runs.files import read_json, write_json
from fedapm.simulation.engines.vectorized import VectorizedEngine
from fedapm.simulation.loop import Loop, Schedule
from fedapm.simulation.problem import Problem
from fedapm.simulation.sampling import Sampling

HERE = Path(__file__).parent
AIM = 8.0
"""How many times faster every method is to be."""
ROUNDS = 5


class Tiny(nn.Sequential):
    """The small network of the other benchmarks, which names its head for methods that add another."""

    stages: ClassVar[Mapping[str, tuple[str, ...]]] = {"input": ("0",), "output": ("2",), "head": ("2",)}

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES))


@dataclass(frozen=True)
class Case:
    """A method with its settings."""

    label: str
    method: Algorithm
    solver: dict[str, Any] = field(default_factory=dict)
    network: Callable[[], nn.Module] = Tiny


def cases() -> dict[str, Case]:
    """Every method as it comes, and what lets clients stop or draw for themselves."""
    found = {name: Case(kind.label, kind()) for name, kind in METHODS.items()}
    plain = METHODS["fedapm"]
    return found | {
        "xi": Case("FedAPM, ξ-rule, 4 epochs at most", plain(xi=0.05, max_epochs=4)),
        "dropout": Case("FedAPM, `dropout_v` = 0.5", plain(), {"dropout_v": 0.5}),
        "early": Case("FedAPM, `validation_v` = 0.2, 4 epochs at most", plain(epochs_v=4), {"validation_v": 0.2}),
    }


def loop(work: Workload, case: Case, data: Federation, name: str) -> Loop:
    """Rounds of one engine that evaluate nothing by themselves."""
    torch.manual_seed(0)
    solver = SGDConfig(lr=work.lr, epochs=work.epochs, batch_size=work.batch, **case.solver)
    rule = SplitRule(personal=work.personal)
    learnt = Problem(data, case.network(), rule, adapt=case.method.adapt, solver=solver)
    schedule = Schedule(NEVER, Sampling(count=work.selected), NEVER)
    return Loop(learnt, case.method, schedule, engine(name, 1, learnt, case.method))


def measure(work: Workload, case: Case, data: Federation, rounds: int) -> dict[str, Any]:
    """Rounds of both engines in turn; the first one of each prepares and does not count."""
    loops = {name: loop(work, case, data, name) for name in ("sequential", "vectorized")}
    states, seconds = {name: runs.state for name, runs in loops.items()}, {name: [] for name in loops}
    for number in range(rounds + 1):
        for name, runs in loops.items():
            began = time.process_time()
            states[name] = one_round(runs, states[name])
            if number:
                seconds[name].append(time.process_time() - began)
    together = loops["vectorized"].engine
    assert isinstance(together, VectorizedEngine)
    if together.fallback_reasons:
        raise SystemExit(f"{case.label} was run one by one: {together.fallback_reasons[0]}.")
    taken = {n: {"best": min(t), "median": statistics.median(t), "all": t} for n, t in seconds.items()}
    ratios = {kind: taken["sequential"][kind] / taken["vectorized"][kind] for kind in ("best", "median")}
    return {"label": case.label, **taken, "ratio": ratios, "met": min(ratios.values()) >= AIM}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each engine")
    parser.add_argument("--methods", help="these only, separated by commas; the file keeps the others")
    parser.add_argument("--quick", action="store_true", help="two rounds: shows that it works, says nothing of speed")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "methods.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    machine.warn_if_busy()
    about, rounds = machine.about(), 2 if given.quick else given.rounds
    work = replace(QUICK["tiny"], selected=20, clients=40) if given.quick else TINY
    wanted = cases() if given.methods is None else {name: cases()[name] for name in given.methods.split(",")}
    data, found = federation(work), {}
    if given.methods is not None and given.json.is_file() and not given.quick:
        found = {row["name"]: row for row in read_json(given.json)["methods"] if row["name"] in cases()}
    print(f"{'method':48}{'one by one':>12}{'together':>12}{'ratio':>8}{'of medians':>12}   aim: {AIM:g}")
    for name, case in wanted.items():
        row = found[name] = {"name": name, **measure(work, case, data, rounds)}
        times = "".join(f"{row[name]['best'] * 1e3:9.1f} ms" for name in ("sequential", "vectorized"))
        ratios = f"{row['ratio']['best']:8.1f}{row['ratio']['median']:12.1f}"
        print(f"{row['label']:48}{times}{ratios}   {'met' if row['met'] else 'MISSED'}", flush=True)
        ordered = [found[name] for name in cases() if name in found]
        write_json(given.json, {"machine": about, "quick": given.quick, "aim": AIM, "methods": ordered})
    print(f"\nwritten: {given.json}")


if __name__ == "__main__":
    main()
