"""Rounds of FedAvg and FedAPM against a bare PyTorch loop and against other frameworks, taking turns in one run.

    python benchmarks/speed.py [--quick] [--no-peers] [--peers ENVIRONMENT] [--device cuda] [--json FILE]

Processor and wall seconds of a round, memory, and ratios to the bare loop. The ratios that are aimed at are judged by
best rounds and by median ones.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import machine
import same
import torch
from contenders import PEERS, Contender, Entry, Failed, peers
from workloads import QUICK, WORKLOADS, Workload

from fedapm.runs.files import write_json

RESULTS = Path(__file__).parent / "results"
BARE, OURS, MANY, TOGETHER = "bare PyTorch loop", "fedapm, sequential", "fedapm, {} workers", "fedapm, vectorized"
EVALUATE_EVERY = 5
TURN = 0.25
"""Seconds; a turn has so many rounds that it takes as long. In a simulation rounds follow each other, too."""
EVALUATION = 0.15
"""Of a round; what evaluating all clients may take at most."""
LABELS = {"fedavg": "FedAvg", "fedapm": "FedAPM", "cpu": "CPU", "wall": "wall", "peak": "memory"}

Group = dict[str, Any]


def entries(
    work: Workload, method: str, others: list[Entry], cores: int, quick: bool, device: str = "cpu"
) -> list[Entry]:
    """The contenders for a workload and a method; in a quick run only those that a ratio needs."""
    asked = {"method": method, "device": device}
    bare = Entry(BARE, "bare.py", asked)
    one = Entry(OURS, "ours.py", asked | {"engine": "sequential"})
    many = Entry(MANY.format(cores), "ours.py", asked | {"engine": "processes", "workers": cores})
    together = Entry(TOGETHER, "ours.py", asked | {"engine": "vectorized"})
    if device != "cpu":
        # forked processes cannot share a GPU; a round's clients stacked on it are what it is good at
        return [bare, one, together]
    if work.name == "tiny":
        found = [bare, together] if quick else [bare, one, many, together]
    else:
        found = [bare, one] if quick and method == "fedavg" else [bare, one, many]
    return found + (others if method == "fedavg" else [])


def judged(work: Workload) -> str:
    """The contender whose evaluation is measured: the engine that suits the workload."""
    return TOGETHER if work.name == "tiny" else OURS


def measure(work: Workload, method: str, wanted: list[Entry], remarks: list[str]) -> Group:
    """Everyone prepares, then everyone has a turn after the other, so many times."""
    running = [Contender(entry, work) for entry in wanted]
    turns: dict[str, list[dict[str, Any]]] = {entry.name: [] for entry in wanted}
    evaluations: list[dict[str, Any]] = []

    def give_up(one: Contender, why: Failed) -> None:
        remarks.append(f"{one.entry.name}, {work.name}, {method}: {why}.")
        print(remarks[-1])
        running.remove(one)
        turns.pop(one.entry.name)
        one.stop()

    try:
        for one in list(running):
            try:
                one.prepared()
                one.hold()
            except Failed as why:
                give_up(one, why)
        for number in range(work.rounds):
            first = number % len(running)
            # nobody is always the one after the noisy one
            for one in running[first:] + running[:first]:
                if number >= (one.entry.turns or work.rounds):
                    continue
                try:
                    turns[one.entry.name].append(one.turn(TURN))
                    if method == "fedapm" and one.entry.name == judged(work):
                        evaluations += one.ask("evaluate")["rounds"]
                except Failed as why:
                    give_up(one, why)
        before = {one.entry.name: one.before["loss"] for one in running}
    finally:
        for one in running:
            one.stop()
    rows = [row(name, found, before[name]) for name, found in turns.items()]
    floor = next((r for r in rows if r["name"] == BARE), None)
    for one in rows:
        for kind in ("cpu", "wall"):
            one[kind]["ratio"] = one[kind]["best"] / floor[kind]["best"] if floor else None
    evaluation = share(rows, judged(work), evaluations)
    about = {"workload": asdict(work), "method": method, "label": LABELS[method]}
    return about | {"contenders": rows, "evaluation": evaluation}


def row(name: str, found: list[dict[str, Any]], before: float) -> dict[str, Any]:
    """A contender's results: those of all rounds, and those of the first round of every turn by themselves."""
    rounds = [one for turn in found for one in turn["rounds"]]

    def seconds(kind: str, counted: list[dict[str, Any]]) -> dict[str, Any]:
        values = [one[kind] for one in counted]
        return {"best": min(values), "median": statistics.median(values), "all": [float(f"{v:.4g}") for v in values]}

    return {
        "name": name,
        "turns": len(found),
        "rounds": len(rounds),
        "cpu": seconds("cpu", rounds),
        "wall": seconds("wall", rounds),
        "first": seconds("cpu", [turn["rounds"][0] for turn in found]),
        "peak_mib": found[-1]["peak_mib"],
        "held_mib": found[-1]["now_mib"],
        "steps": rounds[-1]["steps"],
        "loss": [before, found[-1]["loss"]],
    }


def share(rows: list[dict[str, Any]], name: str, evaluations: list[dict[str, Any]]) -> dict[str, float] | None:
    """What evaluating all clients costs beside a round of training."""
    if not evaluations:
        return None
    taken = [answer["cpu"] for answer in evaluations]
    best, rounds = min(taken), next(r for r in rows if r["name"] == name)["cpu"]
    return {
        "contender": name,
        "cpu": best,
        "of_round": best / rounds["best"],
        "of_median": statistics.median(taken) / rounds["median"],
        "every": EVALUATE_EVERY,
        "of_round_amortised": best / rounds["best"] / EVALUATE_EVERY,
    }


def targets(groups: list[Group], cores: int) -> list[dict[str, Any]]:
    """The ratios that are to be kept, and what they are, of best rounds and of median ones."""
    seconds = {
        (g["workload"]["name"], g["method"], r["name"], kind): (r[kind]["best"], r[kind]["median"])
        for g in groups
        for r in g["contenders"]
        for kind in ("cpu", "wall")
    }
    # memory has one peak and no median
    peaks = {
        (g["workload"]["name"], g["method"], r["name"], "peak"): (r["peak_mib"],)
        for g in groups
        for r in g["contenders"]
    }
    known: dict[tuple[str, str, str, str], tuple[float, ...]] = {**seconds, **peaks}
    pfl = next((name for _, _, name, _ in known if name.startswith("pfl")), "pfl")
    many = MANY.format(cores)
    wanted = [
        ("cnn", "fedapm", OURS, BARE, "cpu", "at most", 0.40),
        ("cnn", "fedavg", OURS, BARE, "cpu", "at most", 0.58),
        ("cnn", "fedapm", many, OURS, "wall", "at most", 0.60),
        ("tiny", "fedavg", TOGETHER, BARE, "cpu", "at most", 0.025),
        ("tiny", "fedapm", TOGETHER, BARE, "cpu", "at most", 0.05),
        ("tiny", "fedavg", pfl, TOGETHER, "cpu", "at least", 50.0),
        ("cnn", "fedavg", OURS, BARE, "peak", "at most", 1.2),
        ("cnn", "fedapm", OURS, BARE, "peak", "at most", 1.2),
        ("tiny", "fedavg", TOGETHER, BARE, "peak", "at most", 1.2),
        ("tiny", "fedapm", TOGETHER, BARE, "peak", "at most", 1.2),
    ]
    found = []
    for workload, method, above, below, kind, sense, limit in wanted:
        pair = [known.get((workload, method, name, kind), ()) for name in (above, below)]
        what = f"{workload}, {LABELS[method]}, {LABELS[kind]}: {above} / {below}"
        found.append(_target(what, [a / b for a, b in zip(*pair, strict=False)], sense, limit))
    shares = [g["evaluation"] for g in groups if g["evaluation"] and g["workload"]["name"] == "cnn"]
    values = [shares[0][key] for key in ("of_round", "of_median") if key in shares[0]] if shares else []
    what = "cnn, FedAPM, CPU: evaluating all clients / a round"
    return [*found, _target(what, values, "at most", EVALUATION)]


def _target(what: str, values: list[float], sense: str, limit: float) -> dict[str, Any]:
    """A ratio of best rounds, then perhaps of medians, and whether each is as it should be."""
    met = [value <= limit if sense == "at most" else value >= limit for value in values]
    names = [("value", "met"), ("median", "met_by_median")]
    judged = [
        {name: value, verdict: good} for (name, verdict), value, good in zip(names, values, met, strict=False)
    ] or [{"value": None, "met": None}]
    return {"what": what, "sense": sense, "limit": limit} | {k: v for one in judged for k, v in one.items()}


def said(value: float | None, met: bool | None) -> str:
    """A ratio, and whether it is as it should be; nothing where it was not measured."""
    return "" if value is None else f"{value:.3f} {'met' if met else 'MISSED'}"


def show(group: Group) -> None:
    """A table of one group."""
    work = group["workload"]
    amount = f"{work['selected']} of {work['clients']} clients, {work['samples']} samples each"
    print(f"\n{work['name']}, {group['label']}: {amount}")
    head = f"{'contender':36}{'CPU s':>9}{'median':>9}{'ratio':>8}{'wall s':>9}{'median':>9}{'ratio':>8}"
    print(f"{head}{'peak MiB':>10}{'held MiB':>10}{'steps':>7}{'loss':>14}")
    for r in group["contenders"]:
        times = "".join(
            f"{r[k]['best']:9.4f}{r[k]['median']:9.4f}" + (f"{r[k]['ratio']:8.3f}" if r[k]["ratio"] else f"{'-':>8}")
            for k in ("cpu", "wall")
        )
        loss = f"{r['loss'][0]:.2f} → {r['loss'][1]:.2f}"
        print(f"{r['name']:36}{times}{r['peak_mib']:10.0f}{r['held_mib']:10.0f}{r['steps']:7}{loss:>14}")
    if found := group["evaluation"]:
        print(
            f"evaluating all {work['clients']} clients: {found['cpu']:.3f} CPU s, {found['of_round']:.0%} of a round; "
            f"every {found['every']} rounds {found['of_round_amortised']:.1%}"
        )


def check_same() -> list[dict[str, Any]]:
    """Show that fedapm and the bare loop compute the same, or end here."""
    found = same.gaps()
    for one in found:
        what = f"{one['workload']}, {LABELS[one['method']]}, {one['engine']}"
        print(f"{what:32} differs from the bare loop by {one['gap']:.0e} in double precision")
        if not one["gap"] <= same.ALLOWED:
            raise SystemExit("That is not the same computation, so comparing its speed would mean nothing.")
    return found


def check_device(name: str) -> None:
    """Refuse a device that is not here."""
    try:
        torch.empty(1, device=name) + 1
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise SystemExit(f"--device {name} cannot be used here ({reason}); nothing was measured.") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less work, fewer rounds: shows that it works, not more")
    parser.add_argument("--rounds", type=int, help="turns of each contender, instead of the workload's own number")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), help="this one only")
    parser.add_argument("--no-peers", action="store_true", help="without the other frameworks")
    parser.add_argument("--peers", type=Path, default=PEERS, help="the environment they are installed in")
    parser.add_argument("--device", default="cpu", help="where to compute, such as cuda; others than cpu have no peers")
    parser.add_argument("--json", type=Path, help="results/speed.json if not given; with another device its name, too")
    given = parser.parse_args()
    check_device(given.device)
    suffix = "" if given.device == "cpu" else f"-{given.device.replace(':', '-')}"
    given.json = given.json or RESULTS / f"speed{suffix}.json"
    torch.set_num_threads(1)
    # whoever is told to end ends its contenders too, even those that are held still
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    machine.warn_if_busy()
    cores = machine.cores()
    about = machine.about()
    if given.quick or given.no_peers or given.device != "cpu":
        others, remarks = [], ["The other frameworks take no part in this run."]
    else:
        others, remarks = peers(given.peers, cores)
    for line in remarks:
        print(line)
    alike = check_same()
    groups = []
    for name, work in (QUICK if given.quick else WORKLOADS).items():
        if given.workload in (None, name):
            work = Workload(**asdict(work) | ({"rounds": given.rounds} if given.rounds else {}))
            for method in ("fedavg", "fedapm"):
                wanted = entries(work, method, others, cores, given.quick, given.device)
                groups.append(measure(work, method, wanted, remarks))
                show(groups[-1])
    found = targets(groups, cores)
    print("\nA quick run says nothing of these:" if given.quick else "")
    print(f"{'ratio':72}{'of best rounds':>22}{'of medians':>22}   aim")
    for one in found:
        cells = [said(one.get(value), one.get(met)) for value, met in (("value", "met"), ("median", "met_by_median"))]
        cells[0] = cells[0] or "not measured"
        print(f"{one['what']:72}{cells[0]:>22}{cells[1]:>22}   {one['sense']} {one['limit']:g}")
    results = {
        "machine": about,
        "device": given.device,
        "quick": given.quick,
        "same": alike,
        "groups": groups,
        "targets": found,
    }
    results["remarks"] = remarks
    write_json(given.json, results)
    print(f"\nwritten: {given.json}")


if __name__ == "__main__":
    main()
