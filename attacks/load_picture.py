"""The picture of a load: memory, open files and the time of each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot as plt

COLORS = ("#0072b2", "#d55e00", "#009e73")
LOOK = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#d9d9d9",
    "svg.hashsalt": "fedapm",
    "savefig.facecolor": "white",
}


def draw(path: Path, title: str, shown: Mapping[str, Sequence[float]]) -> None:
    """Draw a load.

    Args:
        path: The SVG file.
        title: What was loaded.
        shown: Seconds, MiB and open files at these seconds, and how long each round took.
    """
    with plt.rc_context(LOOK):
        figure, (memory, files, rounds) = plt.subplots(3, 1, figsize=(8, 6.5), layout="constrained")
        minutes = [second / 60 for second in shown["seconds"]]
        for axes, values, color, label in (
            (memory, shown["MiB"], COLORS[0], "memory, MiB"),
            (files, shown["files"], COLORS[1], "open files"),
        ):
            axes.plot(minutes, values, color=color, linewidth=1)
            axes.set(ylabel=label, xlabel="minutes")
        rounds.plot(range(1, len(shown["rounds"]) + 1), shown["rounds"], color=COLORS[2], linewidth=1, marker=".")
        rounds.set(ylabel="seconds a round", xlabel="round")
        for axes in (memory, files, rounds):
            axes.set_ylim(bottom=0)
            axes.grid(axis="y")
        figure.suptitle(title, x=0.02, ha="left")
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)
