"""What a round on Flower costs beside the training: time, messages and bytes, on this machine with TLS and node keys.

    python benchmarks/deployment.py [--nodes N] [--rounds N] [--quick]

The same experiment is run on Flower's own programs and in one process. It is small, so that a round on Flower is all
overhead.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

import machine
import tomli_w
import torch

from fedapm.experiments import build
from fedapm.experiments.run import execute
from fedapm.flower.local import federation as local
from fedapm.flower.local.app_folder import write_app
from fedapm.flower.local.follow import follow, submit
from fedapm.flower.local.processes import at_home
from fedapm.flower.settings import deployment
from fedapm.runs.files import read_json, write_json
from fedapm.runs.records import JsonLines

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "examples" / "digits-flower.toml"
SearchResult = dict[str, Any]


def settings(nodes: int, rounds: int) -> dict[str, Any]:
    """The example, with everybody in every round."""
    tables = tomllib.loads(EXAMPLE.read_text("utf-8"))
    tables["data"]["clients"] = nodes
    tables["engine"] |= {"rounds": rounds, "fraction": 1.0, "engine": "sequential"}
    return tables


def deployed(tables: dict[str, Any], folder: Path, nodes: int) -> SearchResult:
    """The experiment on Flower's programs."""
    plan, out = deployment(tables), folder / "run"
    began = time.perf_counter()
    made = local.up(folder / "federation", nodes, lambda *_: None)
    up = time.perf_counter() - began
    try:
        began = time.perf_counter()
        id = submit(made.flower, write_app(made.folder / "fedapm-app", tables, out), out)
        follow(made.flower, id, out, plan.experiment.engine.rounds, lambda _: None)
        whole = time.perf_counter() - began
    finally:
        began = time.perf_counter()
        local.down(made.folder)
        down = time.perf_counter() - began
    if left := at_home(made.folder):
        raise SystemExit(f"{len(left)} processes were left behind.")
    seconds = [row["seconds"] for row in JsonLines(out / "timings.jsonl")]
    messages = list(JsonLines(out / "messages.jsonl"))
    record = list(JsonLines(out / "rounds.jsonl"))[1]
    return {"up": up, "run": whole, "down": down, "seconds": seconds, "messages": messages, "vectors": record}


def summary(found: SearchResult, alone: list[float], nodes: int) -> SearchResult:
    """What a reader wants to know. The first line holds the roll call, the last one trains nothing."""
    rounds = found["seconds"][1:-1]
    ordinary = found["messages"][1:-1]

    def each(way: str) -> int:
        count = sum(row["sent" if way == "bytes_sent" else "received"] for row in ordinary)
        return round(sum(row[way] for row in ordinary) / count)

    return {
        "nodes": nodes,
        "up": found["up"],
        "down": found["down"],
        "run": found["run"],
        "round": {"best": min(rounds), "median": statistics.median(rounds), "worst": max(rounds)},
        "alone": {"best": min(alone), "median": statistics.median(alone)},
        "messages_a_client_and_round": sum(row["sent"] for row in ordinary) / len(ordinary) / nodes,
        "bytes_down": each("bytes_sent"),
        "bytes_up": each("bytes_received"),
        "vectors_down": found["vectors"]["bytes_down"] // nodes,
        "vectors_up": found["vectors"]["bytes_up"] // nodes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="two nodes, three rounds: shows that it works, not more")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "deployment.json")
    given = parser.parse_args()
    nodes, rounds = (2, 3) if given.quick else (given.nodes, given.rounds)
    machine.warn_if_busy()
    about = machine.about()
    tables = settings(nodes, rounds)
    torch.set_num_threads(1)  # as the nodes and the command line do
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        execute(build.plan(build.resolve(tables)), folder / "alone", progress=False)
        alone = [row["seconds"] for row in JsonLines(folder / "alone" / "timings.jsonl")][1:]
        found = deployed(tables, folder, nodes)
        here, there = (list(JsonLines(folder / name / "rounds.jsonl")) for name in ("alone", "run"))
    for one, other in zip(here, there, strict=True):
        if odd := [key for key in one if one[key] != other[key]]:
            raise SystemExit(f"round {one['round']} on Flower differs from that in one process: {', '.join(odd)}.")
    results = summary(found, alone, nodes) | {"rounds": rounds, "experiment": tomli_w.dumps(tables)}
    write_json(given.json, {"machine": about, "quick": given.quick, "found": results, "raw": found})
    for key, value in read_json(given.json)["found"].items():
        if key != "experiment":
            print(f"{key:30}{value}")
    print(f"\nwritten: {given.json}")


if __name__ == "__main__":
    main()
