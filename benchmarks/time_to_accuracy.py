"""Processor seconds and rounds until clients are right so often, on real data, for methods here and FedAvg elsewhere.

    python benchmarks/time_to_accuracy.py --data-root FOLDER [--case NAME] [--seeds 3] [--peers ENVIRONMENT]

Everyone trains the same clients: a validation part is cut off each client's training data, and all accuracies are means
over clients on that part. Test data is not looked at. Levels are stated below, once for all methods. A method's step
size is the one of a short list with which it gets there first with a seed of its own; FedAvg elsewhere has that of
FedAvg here. Contenders take turns round by round. Evaluations are not in the time.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import machine
import numpy as np
import torch
from contenders import PEERS, Contender, Entry, Failed, peers
from ours import METHODS, loop, one_round
from workloads import Workload

from fedapm.core.metrics import summarize
from fedapm.core.random import numpy_generator
from fedapm.core.samples import Samples
from fedapm.errors import FedapmError
from fedapm.experiments import build, compare
from fedapm.runs.files import write_json

RESULTS = Path(__file__).parent / "results" / "time_to_accuracy.json"
VALIDATION = 0.2
STEPS = (0.05, 0.1, 0.2, 0.4)
"""Step sizes that are tried."""
TRIED_WITH = 1000
"""The seed they are tried with."""
HERE = {"fedapm-default": "FedAPM", "fedavg": "FedAvg", "fedalt": "FedAlt"}


@dataclass(frozen=True)
class Case:
    """A data set, a round, and the level to reach."""

    title: str
    data: dict[str, Any]
    level: float
    work: Workload
    engine: str
    long: bool = False
    """Whether it is run only when it is asked for."""


def _work(name: str, selected: int, epochs: int, batch: int, personal: tuple[str, ...], rounds: int) -> Workload:
    """A workload whose clients and samples are filled in from the data."""
    return Workload(name, 0, 0, 0, selected, epochs, batch, (), personal, 0.0, rounds)


CASES = {
    "motionsense": Case(
        "MotionSense, statistics of windows",
        {"name": "motionsense", "features": "statistics"},
        0.95,
        _work("motionsense", 8, 2, 20, ("2",), 200),
        "vectorized",
    ),
    "cifar10": Case(
        "CIFAR-10, EfficientNet features",
        {
            "name": "cifar10",
            "features": "efficientnet-lite0",
            "feature_dim": 128,
            "samples": 12000,
            "clients": 20,
            "concentration": 0.3,
        },
        0.85,
        _work("cifar10", 6, 1, 50, ("2",), 200),
        "sequential",
    ),
    "cifar10-cnn": Case(
        "CIFAR-10, CNN",
        {"name": "cifar10", "clients": 20, "concentration": 0.3},
        0.6,
        _work("cnn", 6, 1, 50, ("fc1", "fc2"), 100),
        "sequential",
        long=True,
    ),
}


def prepared(case: Case, root: Path, folder: Path) -> Workload:
    """The workload with its data in a file: clients of one size, because frameworks weigh others differently."""
    tables = {"data": {**case.data, "root": str(root), "validation": VALIDATION}}
    clients = build.federation(compare.plans(["fedavg"], [0], tables)[0].data)
    sizes = sorted(len(client.train) for client in clients.clients)
    batch = case.work.batch
    # nine of ten clients are large enough
    size = max(sizes[len(sizes) // 10] // batch * batch, batch)
    large = [client for client in clients.clients if len(client.train) >= size]
    arrays: dict[str, Any] = {}
    for number, client in enumerate(large):
        order = numpy_generator(0, "benchmark", number).permutation(len(client.train))[:size]
        for part, samples in (("train", client.train[torch.from_numpy(order)]), ("test", client.test)):
            arrays[f"{part}-x-{number}"], arrays[f"{part}-y-{number}"] = _arrays(samples)
    path = folder / f"{case.work.name}.npz"
    np.savez(path, **arrays)
    return replace(
        case.work,
        clients=len(large),
        samples=size,
        selected=min(case.work.selected, len(large)),
        shape=tuple(large[0].train.inputs[0].shape[1:]),
        file=str(path),
        classes=clients.classes,
    )


def _arrays(samples: Samples) -> tuple[Any, Any]:
    return samples.inputs[0].float().contiguous().numpy(), samples.targets.long().numpy()


def rounds_needed(work: Workload, method: str, engine: str, level: float, most: int) -> float:
    """Rounds until a level is reached here, with the seed for trying; infinite where it is not."""
    runs = loop(work, METHODS[method](), engine, seed=TRIED_WITH)
    state = runs.state
    for number in range(1, most + 1):
        state = one_round(runs, state)
        broadcast = runs.algorithm.broadcast(state.server)
        if summarize(runs.engine.evaluate(broadcast, runs.algorithm.views[0]))["accuracy"]["mean"] >= level:
            return number
    return float("inf")


def chosen_step(work: Workload, method: str, engine: str, level: float) -> tuple[float, dict[str, float | None]]:
    """The step size with which a method gets there first, and how many rounds each took."""
    found: dict[float, float] = {}
    for step in STEPS:
        most = int(min([work.rounds, *found.values()]))
        found[step] = rounds_needed(replace(work, lr=step), method, engine, level, most)
    best = min(STEPS, key=lambda step: found[step])
    return best, {str(step): None if rounds == float("inf") else rounds for step, rounds in found.items()}


@contextmanager
def started(entries: list[Entry], works: dict[str, Workload], remarks: list[str]) -> Iterator[list[Contender]]:
    """Contenders that are ready; who is not is remarked upon."""
    running: list[Contender] = []
    try:
        for entry in entries:
            one = Contender(entry, works[entry.name])
            running.append(one)
            try:
                one.prepared()
                one.hold()
            except Failed as why:
                remarks.append(f"{entry.name}: {why}.")
                running.remove(one)
                one.stop()
        yield running
    finally:
        for one in running:
            one.stop()


def race(case: Case, entries: list[Entry], works: dict[str, Workload], remarks: list[str]) -> dict[str, Any]:
    """Everyone does a round in turn until it is there, or has had its rounds."""
    found: dict[str, dict[str, Any]] = {}
    with started(entries, works, remarks) as running:
        done = {one.entry.name: {"rounds": 0, "cpu": 0.0, "wall": 0.0, "accuracy": 0.0} for one in running}
        while running:
            for one in list(running):
                row = done[one.entry.name]
                try:
                    answer = one.turn()["rounds"][0]
                    row["accuracy"] = one.ask("evaluate")["accuracy"]
                except Failed as why:
                    remarks.append(f"{one.entry.name}: {why}.")
                    answer = None
                if answer is not None:
                    row["rounds"] += 1
                    row["cpu"] += answer["cpu"]
                    row["wall"] += answer["wall"]
                there = answer is not None and row["accuracy"] >= case.level
                if there or answer is None or row["rounds"] >= works[one.entry.name].rounds:
                    found[one.entry.name] = row | {"reached": there}
                    running.remove(one)
                    one.stop()
    return found


def measure(case: Case, work: Workload, seeds: int, others: list[Entry], remarks: list[str]) -> dict[str, Any]:
    """One case: steps are chosen, then everyone races with every seed."""
    steps, tried = {}, {}
    for method in HERE:
        steps[method], tried[method] = chosen_step(work, method, case.engine, case.level)
        print(f"{case.title}: {HERE[method]} has the step size {steps[method]:g}; rounds with each: {tried[method]}")
    names = {f"{label} here": method for method, label in HERE.items()}
    works = {name: replace(work, lr=steps[method]) for name, method in names.items()}
    works |= {entry.name: replace(work, lr=steps["fedavg"]) for entry in others}
    rows: dict[str, list[dict[str, Any]]] = {}
    for seed in range(seeds):
        here = [Entry(n, "ours.py", {"method": m, "engine": case.engine, "seed": seed}) for n, m in names.items()]
        there = [replace(entry, asked=entry.asked | {"seed": seed}, rounds=None) for entry in others]
        for name, row in race(case, here + there, works, remarks).items():
            rows.setdefault(name, []).append(row)
    contenders = [summary(name, works[name].lr, found) for name, found in rows.items()]
    about = {key: value for key, value in asdict(work).items() if key not in ("file", "lr")}
    return {
        "title": case.title,
        "level": case.level,
        "engine": case.engine,
        "workload": about,
        "tried": tried,
        "seeds": seeds,
        "contenders": contenders,
    }


def summary(name: str, step: float, found: list[dict[str, Any]]) -> dict[str, Any]:
    """A contender's means over seeds; without a time where it did not get there with every seed."""
    reached = [row for row in found if row["reached"]]
    whole = len(reached) == len(found)
    means = {key: statistics.mean(row[key] for row in found) if whole else None for key in ("rounds", "cpu", "wall")}
    per_round = sum(row["cpu"] for row in found) / max(sum(row["rounds"] for row in found), 1)
    last = statistics.mean(row["accuracy"] for row in found)
    return {
        "name": name,
        "lr": step,
        "reached": len(reached),
        **means,
        "cpu_round": per_round,
        "last": last,
        "all": found,
    }


def show(group: dict[str, Any]) -> None:
    """A table of one case."""
    print(f"\n{group['title']}: until {group['level']:.0%}, {group['seeds']} seeds")
    print(f"{'contender':36}{'step':>6}{'reached':>9}{'rounds':>8}{'CPU s':>9}{'ms a round':>12}{'accuracy':>10}")
    for row in group["contenders"]:
        times = "".join(f"{row[key]:{width}}" if row[key] is not None else f"{'-':>{width.split('.')[0]}}"
                        for key, width in (("rounds", "8.1f"), ("cpu", "9.2f")))  # fmt: skip
        share = f"{row['reached']}/{group['seeds']}"
        print(f"{row['name']:36}{row['lr']:6g}{share:>9}{times}{1e3 * row['cpu_round']:12.1f}{row['last']:10.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", type=Path, required=True, help="folder with the data sets' files")
    parser.add_argument(
        "--case", action="append", choices=sorted(CASES), help="may be repeated; the short ones if none"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="the most rounds, instead of the case's own number")
    parser.add_argument("--no-peers", action="store_true", help="without the other frameworks")
    parser.add_argument("--peers", type=Path, default=PEERS, help="the environment they are installed in")
    parser.add_argument("--json", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine.warn_if_busy()
    about = machine.about()
    others, remarks = peers(given.peers, 1) if not given.no_peers else ([], ["The other frameworks took no part."])
    for line in remarks:
        print(line)
    groups = []
    with tempfile.TemporaryDirectory(prefix="fedapm-accuracy-") as folder:
        prepared_cases = []
        # what is missing is said before anything is measured
        for name in given.case or [name for name, case in CASES.items() if not case.long]:
            case = CASES[name]
            try:
                work = prepared(case, given.data_root, Path(folder))
            except FedapmError as error:
                raise SystemExit(f"{case.title}: {error}") from None
            prepared_cases.append((case, replace(work, rounds=given.rounds or work.rounds)))
        for case, work in prepared_cases:
            groups.append(measure(case, work, given.seeds, others, remarks))
            show(groups[-1])
    write_json(given.json, {"machine": about, "quick": False, "groups": groups, "remarks": remarks})
    print(f"\nwritten: {given.json}")


if __name__ == "__main__":
    main()
