"""MiniLM's adapters on tweets: methods at equal rounds, and what a round costs with few and many clients.

    python benchmarks/foundation.py table --data-root DATA --out runs/foundation     # resumable; prints a table
    python benchmarks/foundation.py memory --data-root DATA                          # 1, 2 and 20 clients

Both run in one process on one core. ``table`` skips runs that are complete and resumes one that is not.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.experiments.settings import read_toml
from fedapm.runs.records import JsonLines
from fedapm.simulation.engines.sequential import SequentialEngine, train_client

EXAMPLE = Path(__file__).parent.parent / "examples" / "tweets-lora.toml"
ROWS = {
    "FedAPM": ("fedapm", "lora"),
    "FedAlt": ("fedalt", "lora"),
    "FedAvg, adapters and head": ("fedavg", "lora"),
    "linear probe (FedAvg, head)": ("fedavg", "head"),
    "local": ("local", "lora"),
}


def table(options: argparse.Namespace) -> None:
    """Run every method with every seed, and print client means on test data."""
    common = [
        read_toml(EXAMPLE),
        {"data": {"root": options.data_root, "train_limit": options.train, "test_limit": options.test}},
        {"engine": {"rounds": options.rounds, "evaluate_every": options.rounds, "engine": "sequential"}},
    ]
    data = build.resolve(*common).data
    clients = build.federation(data)
    scores: dict[str, list[float]] = {}
    sent: dict[str, float] = {}
    whole = 0
    for seed in range(options.seeds):
        for label, (name, preset) in ROWS.items():
            more = {"algorithm": {"name": name}, "model": {"preset": preset}, "engine": {"seed": seed}}
            folder = Path(options.out) / f"{name}-{preset}-{seed}"
            if not (folder / "done.json").is_file():
                began = time.perf_counter()
                experiment = build.resolve(*common, more)
                execute(build.plan(experiment, clients), folder, resume=True)
                (folder / "done.json").write_text(json.dumps({"seconds": time.perf_counter() - began}))
            record = list(JsonLines(folder / "rounds.jsonl"))[-1]
            accuracy = next(iter(record["evaluations"].values()))["accuracy"]["mean"]
            scores.setdefault(label, []).append(accuracy)
            sent[label] = record["total_bytes_up"] / len(clients) / record["round"]
            counts = json.loads((folder / "run.json").read_text())["parameters"]
            whole = max(whole, 4 * (counts["shared"] + max(counts["personal"]) + counts["frozen"]))
            print(f"{label}, seed {seed}: accuracy {accuracy:.4f}", flush=True)
    print(
        f"\n{len(clients)} clients, {options.train} tweets each at most, {options.rounds} rounds, test accuracy in %\n"
    )
    print("| method | accuracy | bytes a client sends in a round | of full fine-tuning |\n|---|---|---|---|")
    for label, values in scores.items():
        spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
        share = f"1/{whole / sent[label]:,.0f}" if sent[label] else "nothing"
        print(f"| {label} | {100 * statistics.fmean(values):.1f}{spread} | {sent[label]:,.0f} | {share} |")
    print(f"| full fine-tuning | not run | {whole:,} | 1 |", flush=True)


def memory(options: argparse.Namespace) -> None:
    """Peak memory and the time of a round, each number of clients in a process of its own."""
    print("| clients | peak memory, MiB | before the rounds, MiB | a round, s | a client in it, s |")
    print("|---|---|---|---|---|")
    for count in (1, 2, 20):
        command = [sys.executable, __file__, "round", "--data-root", options.data_root, "--clients", str(count)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        seconds = found["seconds"]
        print(f"| {count} | {found['peak']} | {found['before']} | {seconds:.1f} | {seconds / count:.2f} |", flush=True)


def one_round(options: argparse.Namespace) -> None:
    """A round of some clients with 32 tweets each, after one that computes the features."""
    torch.set_num_threads(1)
    count = options.clients
    split = {"partition": "iid", "clients": count, "samples": 40 * count, "root": options.data_root}
    experiment = build.resolve(read_toml(EXAMPLE), {"data": split})
    clients = build.federation(experiment.data)
    spec = build.plan(experiment, clients)
    problem, method = spec.problem, spec.algorithm
    engine = SequentialEngine(problem, method)
    broadcast = method.broadcast(method.server_init(problem.u0))
    before = _peak()
    for number in (1, 2):
        began = time.process_time()
        for client in range(count):
            train_client(problem, method, client, engine.store.get(client), broadcast, number)
        seconds = time.process_time() - began
    print(json.dumps({"peak": _peak(), "before": before, "seconds": seconds}))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["table", "memory", "round"])
    parser.add_argument("--data-root", required=True, help="the folder with CrisisMMD_v2.0")
    parser.add_argument("--out", default="runs/foundation")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--train", type=int, default=100, help="training tweets of a disaster")
    parser.add_argument("--test", type=int, default=100, help="test tweets of a disaster")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    {"table": table, "memory": memory, "round": one_round}[options.what](options)


if __name__ == "__main__":
    main()
