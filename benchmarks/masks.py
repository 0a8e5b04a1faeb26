"""What a masked round on Flower costs against a plain one: time and bytes, on this machine with TLS and node keys.

    python benchmarks/masks.py [--nodes N] [--rounds N] [--quick]

The same experiment is run twice by the same programs. Then masks alone: the seconds that one client needs for its mask
of a million numbers among so many clients.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
import torch
from deployment import settings

from fedapm.core.vec import Vec
from fedapm.flower.local import federation as local
from fedapm.flower.local.app_folder import write_app
from fedapm.flower.local.follow import follow, submit
from fedapm.flower.local.processes import at_home
from fedapm.runs.files import write_json
from fedapm.runs.records import JsonLines
from fedapm.uploads.masks.keys import MaskKey
from fedapm.uploads.masks.streams import Group

HERE = Path(__file__).parent
NUMBERS = 1_000_000
GROUPS = (10, 100)


def deployed(made: local.LocalFederation, tables: dict[str, Any], out: Path) -> dict[str, Any]:
    """One run on a federation that is up; the first round holds the keys, the last one trains nothing."""
    id = submit(made.flower, write_app(made.folder / out.name, tables, out), out)
    follow(made.flower, id, out, tables["engine"]["rounds"], lambda _: None)
    seconds = [row["seconds"] for row in JsonLines(out / "timings.jsonl")][1:-1]
    messages = list(JsonLines(out / "messages.jsonl"))
    last = list(JsonLines(out / "rounds.jsonl"))[-1]

    def each(way: str, count: str, rows: list[dict[str, Any]]) -> int:
        return round(sum(row[way] for row in rows) / sum(row[count] for row in rows))

    return {
        "round": {"best": min(seconds), "median": statistics.median(seconds), "worst": max(seconds)},
        "messages_a_client_and_round": sum(row["sent"] for row in messages[1:-1])
        / len(messages[1:-1])
        / tables["data"]["clients"],
        "bytes_down": each("bytes_sent", "sent", messages[1:-1]),
        "bytes_up": each("bytes_received", "received", messages[1:-1]),
        "accuracy": statistics.mean(last["evaluations"]["model"]["per_client"]["accuracy"]),
    }


def alone(clients: int) -> float:
    """Seconds of one client for its mask, without those for the secrets, which it keeps."""
    keys = {str(k): MaskKey() for k in range(clients)}
    group = Group("run", 1, "nonce", {client: key.public for client, key in keys.items()})
    wire = Vec({"change/w": torch.zeros(NUMBERS, dtype=torch.int32)})
    began = time.perf_counter()
    group.masked(wire, "0", keys["0"])
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="three nodes, three rounds: shows that it works, not more")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "masks.json")
    given = parser.parse_args()
    nodes, rounds = (3, 3) if given.quick else (given.nodes, given.rounds)
    machine.warn_if_busy()
    tables = settings(nodes, rounds)
    found: dict[str, Any] = {"nodes": nodes, "rounds": rounds}
    with tempfile.TemporaryDirectory() as name:
        made = local.up(Path(name) / "federation", nodes, lambda *_: None)
        try:
            found["plain"] = deployed(made, tables, Path(name) / "plain")
            found["masked"] = deployed(made, tables | {"upload": {"mask": True}}, Path(name) / "masked")
        finally:
            local.down(made.folder)
        if left := at_home(made.folder):
            raise SystemExit(f"{len(left)} processes were left behind.")
    found["mask_of_a_million"] = {str(clients): alone(clients) for clients in GROUPS}
    write_json(given.json, {"machine": machine.about(), "quick": given.quick, "found": found})
    for kind in ("plain", "masked"):
        print(f"\n{kind}")
        for key, value in found[kind].items():
            print(f"  {key:30}{value}")
    for clients, seconds in found["mask_of_a_million"].items():
        print(f"\na mask of a million numbers among {clients} clients: {seconds:.2f} s")
    print(f"\nwritten: {given.json}")


if __name__ == "__main__":
    main()
