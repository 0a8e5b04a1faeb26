"""KU-HAR (Sikder and Nahid 2021) as published: the folder ``Trimmed_interpolated_data``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedapm.data.download import Archive, Origin
from fedapm.data.sets.sensors import Recording, SensorSet, Windows, cut_windows, read_table, standardize_windows
from fedapm.errors import FedapmError

FOLDER = "Trimmed_interpolated_data"
FOLDERS = (
    "0.Stand", "1.Sit", "11.Walk", "5.Lay", "8.Jump", "14.Run", "15.Stair-up", "16.Stair-down",
)  # fmt: skip
CLASSES = tuple(folder.partition(".")[2] for folder in FOLDERS)
COLUMNS = ("acc time", "acc x", "acc y", "acc z", "gyro time", "gyro x", "gyro y", "gyro z")
ACC, GYRO = slice(1, 4), slice(5, 8)
EVERY = 2
"""Files are sampled at 100 Hz; every second row makes 50 Hz."""
EXCLUDED_PERSONS = ("1101",)


class KUHAR(SensorSet):
    """Eight of the eighteen activities of KU-HAR, phone at the waist, by person.

    Each window of 128 samples at 50 Hz (2.56 s) is standardized on each axis separately, as in the paper. That removes
    the direction of gravity, so standing, sitting and lying differ only in how a person keeps still. Where one sensor
    stopped before the other, the published files continue with zeros; such rows are used as they are.
    """

    name = "ku-har"
    title = "KU-HAR"
    activities = CLASSES
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
    defaults = {**SensorSet.defaults, "engine": {"evaluate_every": 5, "fraction": 0.2}}

    def locate(self, root: Path) -> Path | None:
        """The folder of activities in a data root, or the root itself."""
        for folder in (root, root / FOLDER, root / f"2.{FOLDER}"):
            if any((folder / name).is_dir() for name in FOLDERS):
                return folder
        return None

    def missing(self, root: Path) -> str:
        """The error message if there are no recordings."""
        return (
            f"{root / FOLDER} is missing or has no folder such as {FOLDERS[0]}; unpack KU-HAR's "
            f"2.Trimmed_interpolated_data.zip in {root / FOLDER}, or see: fedapm data get ku-har."
        )

    def recordings(self, folder: Path) -> list[Recording]:
        """The recordings by activity, then by file name."""
        recordings = []
        for target, name in enumerate(FOLDERS):
            if not (folder / name).is_dir():
                raise FedapmError(f"{folder / name} is missing; unpack KU-HAR's 2.Trimmed_interpolated_data.zip again.")
            for path in (folder / name).glob("[!.]*.csv"):
                person = path.name.partition("_")[0]
                if not (person.isascii() and person.isdigit()):
                    raise FedapmError(f"{path} is not named <number of the person>_*.csv; move it elsewhere.")
                if person not in EXCLUDED_PERSONS:
                    recordings.append(Recording((target,), path, person, target))
        return recordings

    def windows(self, recording: Recording) -> Windows:
        """The windows of one file, standardized."""
        signal = read_table(recording.path, COLUMNS, header=False).to_numpy()[::EVERY].T
        acc, gyro = (standardize_windows(cut_windows(signal[axes])).astype(np.float32) for axes in (ACC, GYRO))
        return Windows.of_recording(acc, gyro, recording.target, recording.owner)
