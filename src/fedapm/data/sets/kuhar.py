"""KU-HAR (Sikder and Nahid 2021) as published: the folder ``Trimmed_interpolated_data``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedapm.data.dataset import DataSet, Pool, Source
from fedapm.data.download import Archive, Origin
from fedapm.data.sets.windows import Windows, cut, standardised, table
from fedapm.errors import FedapmError

FOLDER = "Trimmed_interpolated_data"
FOLDERS = (
    "0.Stand", "1.Sit", "11.Walk", "5.Lay", "8.Jump", "14.Run", "15.Stair-up", "16.Stair-down",
)  # fmt: skip
CLASSES = tuple(folder.partition(".")[2] for folder in FOLDERS)
COLUMNS = ("acc time", "acc x", "acc y", "acc z", "gyro time", "gyro x", "gyro y", "gyro z")
ACC, GYRO = slice(1, 4), slice(5, 8)
EVERY = 2
"""Files are sampled at 100 Hz; every second row is 50 Hz."""
LEFT_OUT = ("1101",)


class KUHAR(DataSet):
    """Eight of the eighteen activities of KU-HAR, phone at the waist, by person.

    Each window of 128 samples at 50 Hz (2.56 s) is standardised on each axis by itself, as in the paper. That takes
    the direction of gravity away, so standing, sitting and lying differ only in how a person keeps still. Where one
    sensor stopped before the other the published files go on with zeros; such rows are used as they are.
    """

    name = "ku-har"
    about = "KU-HAR, phone accelerometer and gyroscope, 8 activities, by person; needs --data-root"
    origin = Origin(
        page="https://doi.org/10.17632/45f952y38r.5",
        license="CC BY 4.0",
        layout=f"{FOLDER}/<number>.<activity>/<person>_*.csv",
        archives=(
            Archive(
                "https://data.mendeley.com/public-files/datasets/45f952y38r/files/"
                "49c6120b-59fd-466c-97da-35d53a4be595/file_downloaded",
                "sha256:9fe5d0052f2f1d6711afac42ee4badd968116afa8ba4b8ba591f4fdd771c2ec2",
                FOLDER,
                unpack_in=FOLDER,
                filename="2.Trimmed_interpolated_data.zip",
            ),
        ),
        by_hand=f"unpack 2.Trimmed_interpolated_data.zip in a folder {FOLDER} in the data root",
    )
    defaults = {
        "data": {"partition": "natural"},
        "model": {"name": "har", "preset": "split_input"},
        "solver": {"lr": 0.1, "momentum": 0.9, "batch_size": 50},
        "engine": {"evaluate_every": 5, "fraction": 0.2},
    }

    def read(self, source: Source) -> Pool:
        """All windows, by activity, then by file name."""
        folder = located(source.folder(self.name))
        files = recordings(folder)
        parts = []
        for done, (target, path) in enumerate(files, 1):
            parts.append(recording(path, target))
            source.progress("reading KU-HAR", done, len(files))
        return Windows.joined(parts, folder).pool(CLASSES)


def located(root: Path) -> Path:
    """The folder of recordings in a data root, or the root itself if it is that folder."""
    candidates = (root, root / FOLDER, root / f"2.{FOLDER}")
    for folder in candidates:
        if any((folder / name).is_dir() for name in FOLDERS):
            return folder
    raise FedapmError(
        f"{root / FOLDER} is missing or has no folder such as {FOLDERS[0]}; unpack KU-HAR's "
        f"2.Trimmed_interpolated_data.zip in {root / FOLDER}, or see: fedapm data get ku-har."
    )


def recordings(folder: Path) -> list[tuple[int, Path]]:
    """The class and the file of each recording that is used, in order."""
    found = []
    for target, name in enumerate(FOLDERS):
        if not (folder / name).is_dir():
            raise FedapmError(f"{folder / name} is missing; unpack KU-HAR's 2.Trimmed_interpolated_data.zip again.")
        for path in sorted((folder / name).glob("[!.]*.csv")):
            person = path.name.partition("_")[0]
            if not (person.isascii() and person.isdigit()):
                raise FedapmError(f"{path} is not named <number of the person>_*.csv; move it elsewhere.")
            if person not in LEFT_OUT:
                found.append((target, path))
    return found


def recording(path: Path, target: int) -> Windows:
    """The windows of one file."""
    signal = table(path, COLUMNS, header=False).to_numpy()[::EVERY].T
    acc, gyro = (standardised(cut(signal[axes])).astype(np.float32) for axes in (ACC, GYRO))
    return Windows.of(acc, gyro, target, path.name.partition("_")[0])
