"""Where the time of a round goes: one round of FedAPM on the CIFAR10 network under torch's profiler.

    python benchmarks/profile_round.py [--quick] [--json FILE]

The same round without the profiler, its arithmetic operations and the speed of a matrix product on the same core say
how far it is from what the core can do.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import machine
import torch
from ours import loop, one_round
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from workloads import QUICK, WORKLOADS, Workload

from fedapm import FedAPM
from fedapm.runs.files import write_json

HERE = Path(__file__).parent
TOP = 12
SIDE = 1024
KINDS = {
    "convolution": "conv",
    "matrix products": "addmm aten::mm bmm aten::linear aten::matmul",
    "pooling": "pool",
    "taking batches": "aten::index aten::randperm aten::slice aten::cat aten::copy_ aten::select",
    "loss": "softmax nll_loss cross_entropy",
    "elementwise": "relu clamp_min threshold foreach ::add ::mul ::sub ::div aten::sum aten::fill_ zero_",
}
"""Parts of operators' names, by what sort of work they do; the first that fits counts."""


def kind(operator: str) -> str:
    """What sort of work an operator does."""
    name = operator.lower()
    fitting = (sort for sort, parts in KINDS.items() if any(part in name for part in parts.split()))
    return next(fitting, "other operators")


def seconds(function: Callable[[], Any]) -> float:
    """Processor seconds of a call."""
    began = time.process_time()
    function()
    return time.process_time() - began


def sgemm() -> float:
    """Operations a second in a product of two large matrices, on one thread."""
    a, b = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    best = min(seconds(lambda: torch.mm(a, b)) for _ in range(20))
    return 2 * SIDE**3 / best


def operations(work: Workload) -> float:
    """Multiplications and additions in a round, counted on one client: all have equally many samples."""
    runs = loop(replace(work, clients=2, selected=1), FedAPM(), "sequential")
    with FlopCounterMode(display=False) as counter:
        one_round(runs, runs.state)
    return float(counter.get_total_flops()) * work.selected


def profiled(work: Workload) -> dict[str, Any]:
    """A round without the profiler and one with it."""
    runs = loop(work, FedAPM(), "sequential")
    progress = one_round(runs, runs.state)
    plain = seconds(lambda: one_round(runs, progress))
    with profile(activities=[ProfilerActivity.CPU]) as found:
        # the profiler reads the wall clock, so shares are of wall time too
        began = time.perf_counter()
        one_round(runs, progress)
        total = time.perf_counter() - began
    rows = [
        {"operator": e.key, "kind": kind(e.key), "calls": e.count, "seconds": e.self_cpu_time_total / 1e6}
        for e in found.key_averages()
    ]
    rows.sort(key=lambda row: -row["seconds"])
    kinds = {sort: sum(r["seconds"] for r in rows if r["kind"] == sort) for sort in (*KINDS, "other operators")}
    # what is left is the interpreter between two operators, with what the profiler adds to it
    kinds["Python"] = max(total - sum(kinds.values()), 0.0)
    return {"cpu_seconds": plain, "profiled_seconds": total, "operators": rows[:TOP], "kinds": kinds}


def table(found: dict[str, Any]) -> str:
    """The operators that take longest, as a Markdown table."""
    total = found["profiled_seconds"]
    lines = ["| operator | kind | calls | seconds | share |", "|---|---|---:|---:|---:|"]
    for row in found["operators"]:
        share = f"{row['seconds'] / total:.1%}"
        lines.append(f"| `{row['operator']}` | {row['kind']} | {row['calls']:,} | {row['seconds']:.3f} | {share} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small round: shows that it works, not more")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "profile.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    machine.warn_if_busy()
    about = machine.about()
    work = (QUICK if given.quick else WORKLOADS)["cnn"]
    before = sgemm()
    found = profiled(work)
    peak = max(before, sgemm())
    done = operations(work)
    found |= {
        "operations": done,
        "sgemm": peak,
        "reached": done / found["cpu_seconds"],
        "share_of_sgemm": done / found["cpu_seconds"] / peak,
        "floor_seconds": done / peak,
    }
    print(table(found))
    print()
    for sort, taken in found["kinds"].items():
        print(f"{sort:18}{taken:9.3f} s{taken / found['profiled_seconds']:8.1%}")
    print(
        f"\na round: {found['cpu_seconds']:.2f} CPU s ({found['profiled_seconds']:.2f} s under the profiler), "
        f"{done / 1e9:.1f} GFLOP, {found['reached'] / 1e9:.1f} GFLOP/s: {found['share_of_sgemm']:.0%} of the "
        f"{peak / 1e9:.1f} GFLOP/s of sgemm"
    )
    write_json(given.json, {"machine": about, "quick": given.quick, **found})
    print(f"written: {given.json}")


if __name__ == "__main__":
    main()
