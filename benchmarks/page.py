"""Fill the performance page from the results, so that no figure in it is typed by hand.

    python benchmarks/page.py [--results FOLDER] [--page FILE]

What stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` is replaced; figures go into images/ beside the
page.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plots
from profile_round import table as operators
from speed import LABELS
from speed import targets as aims

from fedapm.runs.files import read_json, write_atomic

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
BLOCK = re.compile(r"(<!-- begin ([\w-]+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)

Results = dict[str, Any]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A Markdown table; all but the first columns are numbers."""
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


def short(value: float) -> str:
    """Three digits that mean something."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def part(share: float) -> str:
    """A share of a round, or how many rounds it is."""
    return f"{share:.1%}" if share < 2 else f"{share:.1f} rounds"


def machine(results: Results) -> str:
    """Where it was run."""
    about = results["machine"]
    return (
        f"{about['processor']}, {about['cores']} cores, {about['memory_gib']:g} GiB, {about['system']}; "
        f"Python {about['python']}, torch {about['torch']}."
    )


def workloads(results: Results) -> str:
    """What a round is."""
    seen = {group["workload"]["name"]: group["workload"] for group in results["groups"]}
    rows = [
        [
            w["name"],
            f"{w['clients']:,}",
            f"{w['selected']:,}",
            f"{w['samples']:,} × {'×'.join(map(str, w['shape']))}",
            str(w["batch"]),
            str(w["epochs"]),
            ", ".join(f"`{layer}`" for layer in w["personal"]),
        ]
        for w in seen.values()
    ]
    head = ["workload", "clients", "in a round", "samples of a client", "batch", "epochs (a phase)", "personal layers"]
    return table(head, rows)


def targets(found: Sequence[Results]) -> str:
    """The ratios that are to be kept."""
    by_median = any("median" in one for one in found)
    head = ["ratio", "of best rounds", "", "of medians", "", "aim"] if by_median else ["ratio", "measured", "", "aim"]
    kinds = [("value", "met"), ("median", "met_by_median")] if by_median else [("value", "met")]
    rows = []
    for one in found:
        cells = [cell for value, met in kinds for cell in judged(one.get(value), one.get(met))]
        rows.append([one["what"], cells[0] or "not measured", *cells[1:], f"{one['sense']} {one['limit']:g}"])
    return table(head, rows)


def aims_of(speeds: Results) -> list[Results]:
    """The ratios of a run of speed.py."""
    return aims(speeds["groups"], speeds["machine"]["cores"])


def judged(value: float | None, met: bool | None) -> tuple[str, str]:
    """A ratio, and whether it is as it should be; nothing where it was not measured."""
    return ("", "") if value is None else (short(value), "met" if met else "missed")


def speed(results: Results, name: str) -> str:
    """All contenders of a workload."""
    parts = []
    for group in results["groups"]:
        if group["workload"]["name"] != name:
            continue
        rows = [
            [
                r["name"],
                f"{r['rounds']:,}",
                short(r["cpu"]["best"]),
                short(r["cpu"]["median"]),
                short(r["cpu"]["ratio"]),
                short(r["first"]["best"]),
                short(r["wall"]["best"]),
                short(r["wall"]["median"]),
                short(r["wall"]["ratio"]),
                short(r["peak_mib"]),
                short(r["held_mib"]),
                f"{r['loss'][0]:.2f} → {r['loss'][1]:.2f}",
            ]
            for r in group["contenders"]
        ]
        times = ["CPU s", "median", "ratio", "first of a turn", "wall s", "median", "ratio"]
        head = ["contender", "rounds", *times, "peak MiB", "held MiB", "loss"]
        turns = " or ".join(str(count) for count in sorted({r["turns"] for r in group["contenders"]}))
        steps = group["contenders"][0]["steps"]
        note = f"{group['label']}: {steps:,} optimiser steps a round, {turns} turns each."
        parts.append(f"{note}\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def equal(results: Results) -> str:
    """That fedapm and the bare loop compute the same."""
    rows = [[g["workload"], LABELS[g["method"]], g["engine"], f"{g['gap']:.0e}"] for g in results["same"]]
    return table(["workload", "method", "engine", "gap"], rows, left=3)


def evaluation(results: Results) -> str:
    """What looking at all clients costs."""
    rows = [
        [
            g["workload"]["name"],
            found["contender"],
            short(found["cpu"]),
            part(found["of_round"]),
            part(found["of_round_amortised"]),
        ]
        for g in results["groups"]
        if (found := g["evaluation"])
    ]
    every = next((g["evaluation"]["every"] for g in results["groups"] if g["evaluation"]), 1)
    head = ["workload", "engine", "CPU s for all clients", "of a round", f"with evaluate_every = {every}"]
    return table(head, rows, left=2)


def methods(results: Results) -> str:
    """Every method with clients side by side and one by one."""
    rows = [
        [
            row["label"],
            str(len(row["sequential"]["all"])),
            *(short(1e3 * row[engine][kind]) for engine in ("sequential", "vectorized") for kind in ("best", "median")),
            *(short(row["ratio"][kind]) for kind in ("best", "median")),
            "met" if row["met"] else "missed",
        ]
        for row in results["methods"]
    ]
    head = ["method", "rounds", "one by one, ms", "median", "together, ms", "median", "ratio", "of medians"]
    return table([*head, f"at least {results['aim']:g}"], rows)


def networks(results: Results, sort: str, first: str) -> str:
    """Networks of one sort and several sizes, clients side by side and one by one."""
    rows = [
        [
            row["label"],
            f"{row['operations'] / 1e6:,.1f}",
            *(short(1e3 * row[engine]["best"]) for engine in ("sequential", "vectorized")),
            *(short(row["ratio"][kind]) for kind in ("best", "median")),
            "together" if row["together"] else "one by one",
        ]
        for row in results["networks"]
        if row["sort"] == sort
    ]
    head = [first, "million operations a step", "one by one, ms", "together, ms", "ratio", "of medians", "`auto` takes"]
    return table(head, rows)


def floor(results: Results) -> str:
    """The round by hand beside fedapm's."""
    names = {"hand": "by hand, with torch's operations and nothing else", "fedapm": "fedapm, vectorized"}
    base = results["hand"]["best"]
    rows = [
        [title, *(short(1e3 * results[name][kind]) for kind in ("best", "median")), short(results[name]["best"] / base)]
        for name, title in names.items()
    ]
    return table(["a round of FedAvg on tiny", "CPU ms", "median", "ratio"], rows)


def remarks(results: Results) -> str:
    """What there was to say during the run."""
    return "\n".join(f"- {line}" for line in results["remarks"]) or "Every contender took part in every comparison."


def arithmetic(results: Results) -> str:
    """How far a round is from what the core can do."""
    return (
        f"A round takes {short(results['cpu_seconds'])} CPU seconds and {results['operations'] / 1e9:,.0f} GFLOP, "
        f"that is {short(results['reached'] / 1e9)} GFLOP/s: {results['share_of_sgemm']:.0%} of the "
        f"{short(results['sgemm'] / 1e9)} GFLOP/s that a product of two large matrices reaches on the same core. "
        f"At that rate the round would take {short(results['floor_seconds'])} s."
    )


KERNELS = {
    "convolution": "forward and backward, in oneDNN",
    "matrix products": "the fully connected layers",
    "pooling": "maxima of windows, and where they were",
}
AROUND = {
    "elementwise": "rectifiers, the step with dual and proximal term, zeroing",
    "taking batches": "samples by index, parameters in and out of the network",
    "loss": "softmax and cross-entropy",
    "other operators": "shapes, views, what autograd adds up",
    "Python": "the interpreter between two operators, and the profiler",
}


def kinds(results: Results) -> str:
    """The sum of a round's kernels, and line by line what the round takes beside them."""
    found, total = results["kinds"], results["profiled_seconds"]
    kernels = sum(found[name] for name in KERNELS)

    def line(name: str, what: str, seconds: float) -> list[str]:
        return [name, what, short(seconds), f"{seconds / total:.1%}"]

    rows = [line(name, what, found[name]) for name, what in KERNELS.items()]
    rows.append(line("**the kernels**", "", kernels))
    rows += [line(name, what, found[name]) for name, what in AROUND.items()]
    rows.append(line("**the round**", "", total))
    return table(["part", "what it is", "seconds", "share"], rows, left=2)


def populations(cases: list[Results]) -> str:
    """Rounds and memory against the number of clients."""
    rows = [
        [
            f"{case['population']:,}",
            {"table": "memory", "disk": "files"}[case["store"]],
            short(1e3 * case["rounds"][0]["wall"]["best"]),
            short(1e3 * case["rounds"][0]["wall"]["median"]),
            short(case["prepared_mib"]),
            short(case["peak_mib"]),
            short(case["disk_mib"]) if case["disk_mib"] else "",
            *(f"{case['setting_up'][stage]:.1f}" for stage in ("federation", "problem")),
        ]
        for case in cases
    ]
    head = [
        "clients", "states in", "ms a round", "median", "data, MiB", "peak MiB", "on disk, MiB", "`Federation`, s",
        "`Problem`, s",
    ]  # fmt: skip
    return table(head, rows, left=2)


def cohorts(case: Results) -> str:
    """Rounds against the number of clients in them."""
    rows = [
        [
            f"{one['cohort']:,}",
            short(1e3 * one["wall"]["best"]),
            short(1e3 * one["wall"]["median"]),
            short(1e6 * one["wall"]["median"] / one["cohort"]),
        ]
        for one in case["rounds"]
    ]
    return table(["clients in a round", "ms a round", "median", "µs a client"], rows)


def large(cases: list[Results]) -> str:
    """Clients with a state of a megabyte."""
    rows = [
        [
            {"memory": "memory", "disk": "files"}[case["store"]],
            f"{case['population']:,}",
            short(case["state_bytes"] / 2**20),
            short(1e3 * case["rounds"][0]["wall"]["median"]),
            short(case["prepared_mib"]),
            short(case["peak_mib"]),
            short(case["disk_mib"]) if case["disk_mib"] else "",
        ]
        for case in cases
    ]
    head = ["states in", "clients", "MiB a client", "ms a round", "data, MiB", "peak MiB", "on disk, MiB"]
    return table(head, rows)


def deployed(results: Results) -> str:
    """What a round costs on Flower."""
    found = results["found"]
    spread, alone = found["round"], found["alone"]
    rows = [
        ["start the federation", f"{found['up']:.1f} s"],
        ["a round, best", f"{spread['best']:.1f} s"],
        ["a round, median", f"{spread['median']:.1f} s"],
        ["a round, worst", f"{spread['worst']:.1f} s"],
        ["the same round in one process, median", f"{alone['median']:.2f} s"],
        [f"the whole run of {found['rounds']} rounds, with submission and roll call", f"{found['run']:.0f} s"],
        ["stop the federation", f"{found['down']:.1f} s"],
    ]
    return table([f"{found['nodes']} nodes on one machine", "wall"], rows)


def messages(results: Results) -> str:
    """What a message weighs."""
    found = results["found"]
    rows = [
        [way, f"{found[f'bytes_{key}']:,}", f"{found[f'vectors_{key}']:,}"]
        for way, key in (("to a client", "down"), ("from a client", "up"))
    ]
    said = f"Messages to a client in a round: {found['messages_a_client_and_round']:g}, and one reply to each."
    return f"{table(['message', 'bytes', 'of these numbers in vectors'], rows)}\n\n{said}"


def tiny_cases(scales: Results) -> tuple[list[Results], Results]:
    """The populations with one size of cohort, and the one with several."""
    tiny = [case for case in scales["cases"] if case["kind"] == "tiny"]
    return [c for c in tiny if len(c["rounds"]) == 1], next(c for c in tiny if len(c["rounds"]) > 1)


def startup(results: Results) -> str:
    """What it takes to begin."""
    rows = [[f"`{name}`", f"{min(taken):.2f} s"] for name, taken in results["seconds"].items()]
    return table(["in a fresh process", "processor time"], rows)


def lazily(results: Results) -> str:
    """Rounds and memory against the number of clients that are loaded when they are needed."""
    rows = [
        [
            f"{case['population']:,}",
            {"function": "a function", "sqlite": "SQLite"}[case["source"]],
            short(case["cache"] / 2**20),
            short(1e3 * case["cpu"]["best"]),
            short(1e3 * case["cpu"]["median"]),
            short(case["peak_mib"]),
            f"{case['import_seconds']:.1f}",
            f"{case['setting_up_seconds']:.1f}",
        ]
        for case in results["cases"]
    ]
    head = [
        "clients", "read from", "cache, MiB", "CPU ms a round", "median", "peak MiB",
        "importing, CPU s", "setting up, CPU s",
    ]  # fmt: skip
    return table(head, rows, left=2)


def side_by_side(results: Results) -> str:
    """A comparison with one worker and with several."""
    rows = [
        [
            "one after the other" if row["workers"] == 1 else f"{row['workers']} at a time",
            *(short(row[kind][which]) for kind in ("wall", "cpu") for which in ("best", "median")),
        ]
        for row in results["rows"]
    ]
    ratios, runs = results["ratios"], len(results["methods"].split(",")) * len(results["seeds"].split(","))
    met = "met" if ratios["best"] <= results["limit"] else "missed"
    said = (
        f"{runs} runs of {results['rounds']} rounds, {results['turns']} times each in turn. Wall time with several is "
        f"{short(ratios['best'])} of that with one (of medians {short(ratios['median'])}); "
        f"at most {results['limit']:g} is aimed at: {met}. "
        f"The load average was {results['machine']['load_before']:g} before it and "
        f"{results['load_after']:g} after it; above the number of cores ({results['machine']['cores']}) other programs "
        "were at work, and the wall times are theirs, too."
    )
    return f"{table(['runs', 'wall s', 'median', 'CPU s', 'median'], rows)}\n\n{said}"


def accuracy(results: Results) -> str:
    """Rounds and processor time until a level is reached."""
    parts = []
    for group in results["groups"]:
        rows = [
            [
                row["name"],
                f"{row['lr']:g}",
                f"{row['reached']} of {group['seeds']}",
                "" if row["rounds"] is None else f"{row['rounds']:.1f}",
                "" if row["cpu"] is None else short(row["cpu"]),
                short(1e3 * row["cpu_round"]),
                f"{row['last']:.3f}",
            ]
            for row in group["contenders"]
        ]
        work = group["workload"]
        note = (
            f"{group['title']}: until clients are right {group['level']:.0%} of the time; {work['selected']} of "
            f"{work['clients']} clients in a round, {work['samples']:,} samples each, {work['epochs']} epochs a phase."
        )
        head = ["contender", "step size", "reached", "rounds", "CPU s", "CPU ms a round", "accuracy at the end"]
        parts.append(f"{note}\n\n{table(head, rows)}")
    parts += ["\n".join(f"- {line}" for line in results["remarks"])] if results["remarks"] else []
    return "\n\n".join(parts)


def blocks(
    speeds: Results,
    scales: Results,
    profile: Results,
    deployment: Results,
    startups: Results,
    by_method: Results,
    lazy: Results,
    comparisons: Results,
    races: Results,
    by_size: Results,
    by_hand: Results,
    elsewhere: Results,
    by_hand_elsewhere: Results,
) -> dict[str, str]:
    """What belongs between the markers."""
    single, several = tiny_cases(scales)

    def figure(name: str, says: str) -> str:
        return f"![{says}](images/performance-{name}.svg)"

    return {
        "machine": machine(speeds),
        "workloads": workloads(speeds),
        "same": equal(speeds),
        "targets": targets(aims_of(speeds)),
        "cnn": speed(speeds, "cnn"),
        "tiny": speed(speeds, "tiny"),
        "figure-speed": figure("speed", "CPU seconds of a round for every contender"),
        "methods": methods(by_method),
        "convolutions": networks(by_size, "convolutions", "pictures and channels"),
        "networks-machine": machine(by_size),
        "recurrent": networks(by_size, "recurrent", "sequences and GRU"),
        "floor": floor(by_hand),
        "elsewhere-machine": machine(elsewhere),
        "elsewhere-targets": targets([one for one in aims_of(elsewhere) if one["value"] is not None]),
        "elsewhere": speed(elsewhere, "tiny"),
        "elsewhere-floor": floor(by_hand_elsewhere),
        "evaluation": evaluation(speeds),
        "remarks": remarks(speeds),
        "arithmetic": arithmetic(profile),
        "operators": operators(profile),
        "kinds": kinds(profile),
        "figure-profile": figure("profile", "Shares of a round by sort of work"),
        "populations": populations(single),
        "figure-population": figure("population", "Time of a round and peak of memory against the number of clients"),
        "cohorts": cohorts(several),
        "lazy": lazily(lazy),
        "lazy-machine": machine(lazy) + f" Load when it began: {lazy['machine']['load_before']:g}.",
        "lazy-targets": targets(lazy["targets"]),
        "figure-lazy": figure("lazy", "Time of a round and peak of memory against the number of clients to load"),
        "figure-cohort": figure("cohort", "Time of a round against the number of clients in it"),
        "deployment": deployed(deployment),
        "messages": messages(deployment),
        "startup": startup(startups),
        "side-by-side": side_by_side(comparisons),
        "time-to-accuracy": accuracy(races),
        "large": large([case for case in scales["cases"] if case["kind"] == "cnn"]),
    }


def fill(text: str, content: dict[str, str]) -> str:
    """The page with its blocks replaced; every block of either side must be on the other."""
    named = [match[1] for match in BLOCK.findall(text)]
    if odd := set(named) ^ set(content) or {name for name in named if named.count(name) > 1}:
        raise SystemExit(f"the page and the results do not have the same blocks: {', '.join(sorted(odd))}.")
    return BLOCK.sub(lambda match: f"{match[1]}{content[match[2]]}\n{match[3]}", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--allow-quick", action="store_true", help="take results of quick runs, to try the page")
    given = parser.parse_args()
    names = (
        "speed",
        "scale",
        "profile",
        "deployment",
        "startup",
        "methods",
        "population",
        "side_by_side",
        "time_to_accuracy",
        "networks",
        "floor",
        "speed-elsewhere",
        "floor-elsewhere",
    )
    found = speeds, scales, profile, _, _, _, lazy, *_ = [read_json(given.results / f"{name}.json") for name in names]
    if not given.allow_quick and any(results["quick"] for results in found):
        raise SystemExit("these are results of a quick run, which say nothing of speed; run make bench first.")
    content = blocks(*found)
    filled = fill(given.page.read_text("utf-8"), content)
    images = given.page.parent / "images"
    single, several = tiny_cases(scales)
    plots.speed(speeds, images / "performance-speed.svg")
    plots.population(single, scales["cohort"], images / "performance-population.svg")
    plots.lazily(lazy, images / "performance-lazy.svg")
    plots.cohort(several, images / "performance-cohort.svg")
    plots.profile(profile, images / "performance-profile.svg")
    write_atomic(given.page, filled)
    print(f"written: {given.page} and its figures in {images}")


if __name__ == "__main__":
    main()
