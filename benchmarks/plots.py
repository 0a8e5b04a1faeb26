"""The figures of the performance page, as SVG that is the same whenever the results are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot as plt
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

OURS, BARE, OTHERS = "#0072b2", "#6b7075", "#d55e00"
MEMORY, FILES = "#0072b2", "#d55e00"
LOOK = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#d9d9d9",
    "svg.fonttype": "none",
    "svg.hashsalt": "fedapm",
    # the page has a dark scheme too, in which dark letters on nothing could not be read
    "savefig.facecolor": "white",
}
PLAIN = FuncFormatter(lambda value, _: f"{value:,.10g}")

Results = dict[str, Any]


def write(figure: Figure, path: Path) -> None:
    """Write a figure without a date in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    plt.close(figure)


def colour(name: str) -> str:
    """By whose code it is."""
    if name.startswith("fedapm"):
        return OURS
    return BARE if name.startswith("bare") else OTHERS


def decades(axis: Axis, steps: tuple[int, ...]) -> None:
    """Plain numbers at these steps of a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(PLAIN)
    axis.set_minor_formatter(NullFormatter())


def speed(results: Results, path: Path) -> None:
    """Processor seconds of a round, a panel for each workload and method."""
    groups = results["groups"]
    heights = [len(group["contenders"]) for group in groups]
    with plt.rc_context(LOOK):
        figure, axes = plt.subplots(
            len(groups), 1, figsize=(7.5, 0.34 * sum(heights) + 0.95 * len(groups)), height_ratios=heights
        )
        for axis, group in zip(axes, groups, strict=True):
            rows = group["contenders"]
            values = [row["cpu"]["best"] for row in rows]
            names = [row["name"] for row in rows]
            bars = axis.barh(names, values, color=[colour(name) for name in names], height=0.7)
            axis.bar_label(bars, [f"{value:.3g} s" for value in values], padding=4)
            axis.set_xlim(0, 1.15 * max(values))
            axis.invert_yaxis()
            title = f"{group['workload']['name']}, {group['label']}"
            axis.set_title(title, loc="left", fontsize=10, weight="bold")
            axis.set_xlabel("CPU seconds a round (best)")
            axis.grid(axis="x")
        figure.tight_layout()
        write(figure, path)


def population(cases: list[Results], cohort: int, path: Path) -> None:
    """The time of a round and the peak of memory against the number of clients."""
    with plt.rc_context(LOOK):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
        for store, label, ink, mark in (("table", "in memory", MEMORY, "o"), ("disk", "in files", FILES, "s")):
            some = [case for case in cases if case["store"] == store]
            x = [case["population"] for case in some]
            times = [1e3 * case["rounds"][0]["wall"]["median"] for case in some]
            left.plot(x, times, color=ink, marker=mark, label=f"states {label}")
            right.plot(x, [case["peak_mib"] for case in some], color=ink, marker=mark, label=f"states {label}")
        some = [case for case in cases if case["store"] == "table"]
        x = [case["population"] for case in some]
        right.plot(x, [c["prepared_mib"] for c in some], color=BARE, linestyle=":", label="data and libraries alone")
        left.set(xscale="log", xlabel="clients", ylabel="ms a round (median)", title=f"a round of {cohort} clients")
        left.set_ylim(bottom=0)
        right.set(xscale="log", yscale="log", xlabel="clients", ylabel="MiB", title="peak of memory")
        for axis in (left, right):
            decades(axis.xaxis, (1,))
            axis.grid()
            axis.legend(frameon=False)
        decades(right.yaxis, (1, 2, 5))
        figure.tight_layout()
        write(figure, path)


def lazily(results: Results, path: Path) -> None:
    """The time of a round and the peak of memory against the number of clients that are loaded when needed."""
    smallest = min(case["cache"] for case in results["cases"])
    some = [c for c in results["cases"] if c["source"] == "function" and c["cache"] == smallest]
    x = [case["population"] for case in some]
    with plt.rc_context(LOOK):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
        left.plot(x, [1e3 * c["cpu"]["best"] for c in some], color=OURS, marker="o", label="best")
        left.plot(x, [1e3 * c["cpu"]["median"] for c in some], color=BARE, marker="s", linestyle=":", label="median")
        right.plot(x, [c["peak_mib"] for c in some], color=OURS, marker="o")
        title = f"a round of {results['cohort']} clients"
        left.set(xscale="log", xlabel="clients", ylabel="CPU ms a round", title=title)
        right.set(xscale="log", xlabel="clients", ylabel="MiB", title="peak of memory")
        left.legend(frameon=False, loc="lower right")
        for axis in (left, right):
            decades(axis.xaxis, (1,))
            axis.set_ylim(bottom=0)
            axis.grid()
        figure.tight_layout()
        write(figure, path)


def cohort(case: Results, path: Path) -> None:
    """The time of a round against the number of clients in it."""
    x = [one["cohort"] for one in case["rounds"]]
    y = [1e3 * one["wall"]["median"] for one in case["rounds"]]
    with plt.rc_context(LOOK):
        figure, axis = plt.subplots(figsize=(5.5, 3.4))
        axis.plot(x, y, color=OURS, marker="o", label="measured")
        axis.plot(x, [y[-1] * one / x[-1] for one in x], color=BARE, linestyle=":", label="in proportion to the last")
        axis.set(xscale="log", yscale="log", xlabel="clients in a round", ylabel="ms a round (median)")
        for side in (axis.xaxis, axis.yaxis):
            decades(side, (1, 2, 5))
        axis.grid()
        axis.legend(frameon=False)
        write(figure, path)


def profile(results: Results, path: Path) -> None:
    """What sort of work a round consists of."""
    kinds = dict(sorted(results["kinds"].items(), key=lambda item: -item[1]))
    shares = [100 * seconds / results["profiled_seconds"] for seconds in kinds.values()]
    with plt.rc_context(LOOK):
        figure, axis = plt.subplots(figsize=(7, 0.36 * len(kinds) + 0.8))
        bars = axis.barh(list(kinds), shares, color=OURS, height=0.7)
        axis.bar_label(bars, [f"{share:.1f} %" for share in shares], padding=4)
        axis.set_xlim(0, 1.15 * max(shares))
        axis.invert_yaxis()
        axis.set_xlabel("share of a round, %")
        axis.grid(axis="x")
        write(figure, path)
