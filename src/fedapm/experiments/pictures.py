"""A run as notebooks show it: a table, and a picture of loss, score, drift and who gains."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 12
"""Clients that a table has room for."""
BLUE, ORANGE, GREY = "#2b6cb0", "#c05621", "#718096"


def result_html(title: str, history: pd.DataFrame, per_client: pd.DataFrame | None) -> str:
    """The last round and the clients, as a piece of HTML."""

    def number(value: float) -> str:
        return f"{value:.4g}"

    shown = [c for c in ("accuracy", "accuracy_worst10", "test_loss", "train_loss", "drift") if c in history]
    parts = [f"<p><b>{html.escape(title)}</b></p>", history[shown].tail(1).to_html(float_format=number)]
    if per_client is not None:
        parts.append(per_client.head(MOST).to_html(float_format=number))
        if len(per_client) > MOST:
            parts.append(f"<p>… and {len(per_client) - MOST} more clients</p>")
    return "\n".join(parts)


def draw_result(
    title: str, history: pd.DataFrame, records: Sequence[Mapping[str, Any]], clients: Sequence[str]
) -> Figure:
    """Four panels: loss, score and drift over rounds, and each client's score before and after."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 6.0), layout="constrained", dpi=110)
    figure.suptitle(title, fontsize=11)
    loss, score, drift, gain = figure.subplots(2, 2).flat
    # what clients report of their local work is no model's score
    names = [str(column) for column in history if not str(column).startswith("local.")]
    views = [name.removesuffix("train_loss") for name in names if name.endswith("train_loss")]
    main = "accuracy" if any(name.endswith("accuracy") for name in names) else "test_loss"
    for view in views or [""]:
        name = view.rstrip(".") or "clients"
        for axes, column in ((loss, "train_loss"), (loss, "test_loss"), (score, main), (score, "accuracy_worst10")):
            if f"{view}{column}" in history and not history[f"{view}{column}"].isna().all():
                text = {"train_loss": "training", "test_loss": "test", "accuracy_worst10": "worst tenth"}.get(column)
                _line(
                    axes, history[f"{view}{column}"], f"{name}: {text or 'mean'}" if len(views) > 1 else text or "mean"
                )
    _titled(loss, "loss")
    _titled(score, main.replace("_", " "))
    if not history["drift"].isna().all():
        _line(drift, history["drift"], "drift")
    _titled(drift, "drift of clients from the shared part", legend=False)
    _gains(gain, records, clients, main)
    return figure


def _line(axes: Axes, values: pd.Series[Any], label: str) -> None:
    known = values.dropna()
    axes.plot(known.index, known.to_numpy(dtype=float), label=label, linewidth=1.5)


def _titled(axes: Axes, title: str, legend: bool = True) -> None:
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("round", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    if legend and axes.lines:
        axes.legend(fontsize=8, frameon=False)


def _gains(axes: Axes, records: Sequence[Mapping[str, Any]], clients: Sequence[str], main: str) -> None:
    """Each client at the first and the last evaluation, those who gained least on the left."""
    evaluated = [next(iter(r["evaluations"].values()))["per_client"] for r in records if r["evaluations"]]
    first, last = (
        np.array([np.nan if v is None else float(v) for v in scores.get(main, [None] * len(clients))])
        for scores in (evaluated[0], evaluated[-1])
    )
    order = np.argsort(np.nan_to_num(last - first, nan=-np.inf), kind="stable")
    places = np.arange(len(clients))
    better = (last - first)[order] * (-1 if main.endswith("loss") else 1) >= 0
    axes.vlines(places, first[order], last[order], colors=[BLUE if up else ORANGE for up in better], linewidth=2)
    axes.scatter(places, first[order], s=12, color=GREY, label="first round", zorder=3)
    axes.scatter(places, last[order], s=16, color=BLUE, label="last round", zorder=3)
    every = max(1, len(clients) // 12)
    axes.set_xticks(places[::every], [clients[k] for k in order[::every]], rotation=45, ha="right", fontsize=7)
    axes.set_title(f"who gains: each client's {main.replace('_', ' ')}", fontsize=9)
    axes.tick_params(axis="y", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
