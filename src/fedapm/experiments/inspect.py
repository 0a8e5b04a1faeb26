"""Inspection: the classes of each client, as numbers and as a figure, before anything is trained."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedapm.data import Federation
from fedapm.errors import FedapmError
from fedapm.experiments import build
from fedapm.experiments.settings import DataSettings
from fedapm.runs.files import write_atomic

TEXT_COLOR, LABEL_COLOR, GRID_COLOR = "#1f2933", "#52606d", "#d9e2ec"
SHOWN = 50
"""Clients that are looked at where they are read only when they take part."""
FORMATS = ("png", "svg", "pdf")


@dataclass(frozen=True)
class Inspection:
    """The clients of a data set, with their number of samples of each class."""

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
    """The number of each client's test samples that another client trains on."""
    unseen: tuple[str, ...] = ()
    """Those of the clients that do not take part in training."""
    population: int = 0
    """How many clients there are; these are some of them where they are read only when they take part."""

    @property
    def samples(self) -> int:
        """The total number of samples."""
        return int(self.counts.sum())

    @property
    def who(self) -> str:
        """How many clients these are, in words."""
        shown = len(self.clients)
        return f"{shown} of {self.population:,} clients" if shown < self.population else f"{shown} clients"

    def as_dict(self) -> dict[str, Any]:
        """Convert to plain values, for JSON."""
        return {
            "name": self.name,
            "partition": self.partition,
            "samples": self.samples,
            "population": self.population,
            "classes": list(self.classes),
            "modalities": list(self.modalities),
            "unseen": list(self.unseen),
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
    """Distribute a data set over clients and count; no features are needed.

    Args:
        data: The data set and its partition.
    """
    whole = build.limited(build.counted(data), data)
    federation = whole.sample(SHOWN) if whole.lazy_clients is not None else whole
    if not federation.classes:
        raise FedapmError(f"{federation.name} has quantities and no classes, so there is nothing to count by class.")
    classes = whole.class_names or tuple(map(str, range(whole.classes)))
    counts = np.stack(
        [
            np.bincount(np.concatenate([c.train.targets.numpy(), c.test.targets.numpy()]), minlength=len(classes))
            for c in federation.clients
        ],
        axis=1,
    )
    ids = tuple(c.id for c in federation.clients)
    lacking = build.lacking(federation, data) if data.missing else {}
    return Inspection(
        data.full_name,
        data.partition,
        ids,
        classes,
        federation.modalities,
        tuple(len(c.train) for c in federation.clients),
        tuple(len(c.test) for c in federation.clients),
        counts,
        {modality: tuple(ids[k] for k in positions) for modality, positions in lacking.items()},
        trained_elsewhere(federation) if not data.factory and federation is whole else (0,) * len(federation),
        tuple(whole.hold_out(data.unseen, data.seed).unseen_ids) if data.unseen else (),
        len(whole),
    )


def trained_elsewhere(federation: Federation) -> tuple[int, ...]:
    """The number of each client's test samples that another client trains on; inputs are positions in the pool."""
    train = [set(c.train.inputs[0].flatten().tolist()) for c in federation.clients]
    trainers = Counter(position for positions in train for position in positions)
    return tuple(
        sum(trainers[position] > (position in own) for position in c.test.inputs[0].flatten().tolist())
        for own, c in zip(train, federation.clients, strict=True)
    )


def figure_format(path: Path) -> str:
    """The format of a figure by its suffix; an error if it is not supported."""
    suffix = path.suffix.lstrip(".").lower()
    if suffix not in FORMATS:
        raise FedapmError(f"a figure is written as {', '.join(FORMATS)}; {path.name} ends in none of these.")
    return suffix


def draw(inspection: Inspection, path: Path) -> None:
    """Write a figure: the number of samples of each client, and below those of each class."""
    import io

    import matplotlib as mpl
    from matplotlib.figure import Figure

    file_format = figure_format(path)
    classes, clients = inspection.counts.shape
    height = min(max(0.26 * classes, 2.0), 14.0)
    with mpl.rc_context({"svg.hashsalt": "fedapm", "axes.unicode_minus": False, "font.size": 9}):
        figure = Figure(
            figsize=(min(max(0.34 * clients + 3.2, 7.0), 20.0), height + 2.6), layout="constrained", dpi=150
        )
        bars, cells = figure.subplots(2, 1, sharex=True, height_ratios=[1.3, height])
        figure.suptitle(
            f"{inspection.name}: {inspection.samples:,} samples of {classes} classes at {inspection.who} "
            f"({inspection.partition} partition)",
            color=TEXT_COLOR,
        )
        positions = np.arange(clients)
        bars.bar(positions, inspection.train, color="#2b6cb0", label="training")
        bars.bar(positions, inspection.test, bottom=inspection.train, color="#90cdf4", label="test")
        bars.set_ylabel("samples", color=LABEL_COLOR)
        bars.legend(frameon=False, ncols=2, loc="upper right", bbox_to_anchor=(1.0, 1.28), fontsize=8)
        bars.spines[["top", "right"]].set_visible(False)
        counts = np.ma.masked_equal(inspection.counts, 0)
        norm = mpl.colors.LogNorm(vmin=0.7, vmax=max(int(inspection.counts.max()), 2))
        image = cells.imshow(counts, aspect="auto", cmap="Blues", norm=norm)
        if clients <= 30 and classes <= 30:
            dark = np.log(inspection.counts.max() + 1) * 0.6
            for row in range(classes):
                for column in range(clients):
                    if count := int(inspection.counts[row, column]):
                        color = "white" if np.log(count + 1) > dark else TEXT_COLOR
                        cells.text(column, row, str(count), ha="center", va="center", fontsize=6.5, color=color)
        every = max(1, clients // 40)
        cells.set_xticks(positions[::every], inspection.clients[::every], rotation=90 if clients > 12 else 0)
        step = max(1, classes // 40)
        names = [name.replace("_", " ") for name in inspection.classes]
        cells.set_yticks(np.arange(classes)[::step], names[::step])
        cells.set_xlabel("client", color=LABEL_COLOR)
        cells.set_facecolor("#f5f7fa")
        for axes in (bars, cells):
            axes.tick_params(colors=LABEL_COLOR, length=0)
            for spine in axes.spines.values():
                spine.set_color(GRID_COLOR)
        figure.colorbar(image, ax=cells, label="samples (logarithmic)", pad=0.01, aspect=30)
        content = io.BytesIO()
        figure.savefig(content, format=file_format, metadata={"Date": None} if file_format == "svg" else None)
    write_atomic(path, content.getvalue())
