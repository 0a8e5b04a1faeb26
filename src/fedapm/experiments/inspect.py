"""Inspection: who has which classes, in a table and in a picture, before anything is trained."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedapm.data import Federation, data_set
from fedapm.errors import FedapmError
from fedapm.experiments import build
from fedapm.experiments.settings import DataSettings
from fedapm.runs.files import write_atomic

INK, PALE, GRID = "#1f2933", "#52606d", "#d9e2ec"
FORMATS = ("png", "svg", "pdf")


@dataclass(frozen=True)
class Inspection:
    """The clients of a data set, and how many samples of each class they have."""

    name: str
    partition: str
    clients: tuple[str, ...]
    classes: tuple[str, ...]
    modalities: tuple[str, ...]
    train: tuple[int, ...]
    test: tuple[int, ...]
    counts: np.ndarray[Any, Any]
    """Samples of each class (rows) at each client (columns), training and test together."""
    lacking: dict[str, tuple[str, ...]]
    """For each modality that is not everywhere, the clients that lack it."""
    elsewhere: tuple[int, ...]
    """How many of each client's test samples another client trains on."""

    @property
    def samples(self) -> int:
        """How many there are in all."""
        return int(self.counts.sum())

    def as_dict(self) -> dict[str, Any]:
        """As plain numbers, for JSON."""
        return {
            "name": self.name,
            "partition": self.partition,
            "samples": self.samples,
            "classes": list(self.classes),
            "modalities": list(self.modalities),
            "lacking": {modality: list(clients) for modality, clients in self.lacking.items()},
            "clients": [
                {
                    "id": client,
                    "train": self.train[k],
                    "test": self.test[k],
                    "elsewhere": self.elsewhere[k],
                    "counts": self.counts[:, k].tolist(),
                }
                for k, client in enumerate(self.clients)
            ],
        }


def inspect(data: DataSettings) -> Inspection:
    """Deal a data set out and count. Features are not needed for it."""
    clients: Federation = data_set(data.name).index_federation(
        build.source(data), build.rule(data), test_fraction=data.test_fraction, seed=data.seed
    )
    classes = clients.class_names or tuple(map(str, range(clients.classes)))
    counts = np.stack(
        [
            np.bincount(np.concatenate([c.train.targets.numpy(), c.test.targets.numpy()]), minlength=len(classes))
            for c in clients.clients
        ],
        axis=1,
    )
    ids = tuple(c.id for c in clients.clients)
    lacking = build.lacking(clients, data) if data.missing else {}
    return Inspection(
        data.name,
        data.partition,
        ids,
        classes,
        clients.modalities,
        tuple(len(c.train) for c in clients.clients),
        tuple(len(c.test) for c in clients.clients),
        counts,
        {modality: tuple(ids[k] for k in who) for modality, who in lacking.items()},
        trained_elsewhere(clients),
    )


def trained_elsewhere(clients: Federation) -> tuple[int, ...]:
    """How many test samples of each client are training samples of another; a sample is its position in the pool."""
    train = [set(c.train.inputs[0].flatten().tolist()) for c in clients.clients]
    trainers = Counter(position for own in train for position in own)
    return tuple(
        sum(trainers[position] > (position in own) for position in c.test.inputs[0].flatten().tolist())
        for own, c in zip(train, clients.clients, strict=True)
    )


def check(path: Path) -> str:
    """The format of a picture, or one line that says which there are."""
    kind = path.suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise FedapmError(f"a picture is written as {', '.join(FORMATS)}; {path.name} ends in none of these.")
    return kind


def draw(found: Inspection, path: Path) -> None:
    """Write a picture: how many samples each client has, and below how many of each class."""
    import io

    import matplotlib as mpl
    from matplotlib.figure import Figure

    kind = check(path)
    classes, clients = found.counts.shape
    height = min(max(0.26 * classes, 2.0), 14.0)
    with mpl.rc_context({"svg.hashsalt": "fedapm", "axes.unicode_minus": False, "font.size": 9}):
        figure = Figure(
            figsize=(min(max(0.34 * clients + 3.2, 7.0), 20.0), height + 2.6), layout="constrained", dpi=150
        )
        bars, cells = figure.subplots(2, 1, sharex=True, height_ratios=[1.3, height])
        figure.suptitle(
            f"{found.name}: {found.samples:,} samples of {classes} classes at {clients} clients "
            f"({found.partition} partition)",
            color=INK,
        )
        where = np.arange(clients)
        bars.bar(where, found.train, color="#2b6cb0", label="training")
        bars.bar(where, found.test, bottom=found.train, color="#90cdf4", label="test")
        bars.set_ylabel("samples", color=PALE)
        bars.legend(frameon=False, ncols=2, loc="upper right", bbox_to_anchor=(1.0, 1.28), fontsize=8)
        bars.spines[["top", "right"]].set_visible(False)
        shown = np.ma.masked_equal(found.counts, 0)
        image = cells.imshow(
            shown, aspect="auto", cmap="Blues", norm=mpl.colors.LogNorm(vmin=0.7, vmax=max(int(found.counts.max()), 2))
        )
        if clients <= 30 and classes <= 30:
            dark = np.log(found.counts.max() + 1) * 0.6
            for row in range(classes):
                for column in range(clients):
                    if count := int(found.counts[row, column]):
                        colour = "white" if np.log(count + 1) > dark else INK
                        cells.text(column, row, str(count), ha="center", va="center", fontsize=6.5, color=colour)
        every = max(1, clients // 40)
        cells.set_xticks(where[::every], found.clients[::every], rotation=90 if clients > 12 else 0)
        step = max(1, classes // 40)
        names = [name.replace("_", " ") for name in found.classes]
        cells.set_yticks(np.arange(classes)[::step], names[::step])
        cells.set_xlabel("client", color=PALE)
        cells.set_facecolor("#f5f7fa")
        for axes in (bars, cells):
            axes.tick_params(colors=PALE, length=0)
            for spine in axes.spines.values():
                spine.set_color(GRID)
        figure.colorbar(image, ax=cells, label="samples (logarithmic)", pad=0.01, aspect=30)
        content = io.BytesIO()
        figure.savefig(content, format=kind, metadata={"Date": None} if kind == "svg" else None)
    write_atomic(path, content.getvalue())
