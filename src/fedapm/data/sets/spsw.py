"""SPSW (Matey-Sanz et al. 2023), phones and watches: the published folder ``sp-sw-har-dataset``, or windows of it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from fedapm.data.dataset import DataSet
from fedapm.data.download import Archive, Origin
from fedapm.data.sets.sensors import Recording, Scale, SensorSet, Windows, cut_windows, read_table
from fedapm.data.sets.window_statistics import WindowStatistics
from fedapm.errors import FedapmError

REPOSITORY = "sp-sw-har-dataset"
COMMIT = "673a2cc426707706c8a2578951b6b61b88777d78"
CLASSES = ("SEATED", "SITTING_DOWN", "STANDING_UP", "TURNING", "WALKING")
ACC, GYRO = (tuple(f"{axis}_{sensor}" for axis in "xyz") for sensor in ("acc", "gyro"))


class SPSW(SensorSet):
    """Five activities of 23 people with a phone and a watch, at 100 Hz in windows of 128 samples (1.28 s).

    A window comes from one device; windows in which the activity changes are not used. Signals are scaled per axis by
    the mean and the standard deviation of the whole data set instead of each window's own, which keeps the direction of
    gravity.
    """

    name = "spsw"
    title = "SPSW"
    activities = CLASSES
    windows_file = "spsw.npz"
    owner_format = "s{:02d}"
    acc_scale = Scale(mean=(-5.2918, -1.2305, 0.2541), std=(5.4947, 6.6406, 3.5620))
    gyro_scale = Scale(mean=(-0.0103, -0.0221, 0.0159), std=(1.1788, 1.0474, 1.1188))
    about = "phones and watches, accelerometer and gyroscope, 5 activities of 23 people; needs --data-root"
    origin = Origin(
        page="https://doi.org/10.5281/zenodo.8398688",
        license="CC BY 4.0",
        layout=f"{REPOSITORY}*/DATA/s<person>/s<person>_<execution>_<sp or sw>.csv",
        archives=(
            Archive(
                f"https://github.com/GeoTecINIT/{REPOSITORY}/archive/{COMMIT}.zip",
                None,
                f"{REPOSITORY}-{COMMIT}",
                filename=f"{REPOSITORY}.zip",
            ),
        ),
        by_hand=f"clone or unpack https://github.com/GeoTecINIT/{REPOSITORY} in the data root",
    )

    @classmethod
    def feature_versions(cls) -> tuple[type[DataSet], ...]:
        """Statistics of the windows."""
        return (SPSWStatistics,)

    def locate(self, root: Path) -> Path | None:
        """The folder of persons in a data root, or the root itself."""
        for folder in (*sorted(root.glob(f"*{REPOSITORY}*/DATA/")), root / "DATA", root):
            if any(folder.glob("s[0-9]*/s[0-9]*_s[pw].csv")):
                return folder
        return None

    def missing(self, root: Path) -> str:
        """The error message if there are neither recordings nor windows."""
        return (
            f"{root / REPOSITORY / 'DATA'} is missing or has no recordings such as s01/s01_01_sp.csv; clone "
            f"https://github.com/GeoTecINIT/{REPOSITORY} in {root}, or see: fedapm data get spsw."
        )

    def recordings(self, folder: Path) -> list[Recording]:
        """The recordings by device, person and execution."""
        recordings = []
        for path in folder.glob("s[0-9]*/[!.]*.csv"):
            match = re.fullmatch(r"s([0-9]{1,4})_([0-9]{1,4})_(sp|sw)\.csv", path.name)
            if match is None:
                raise FedapmError(f"{path} is not named s<person>_<execution>_<sp or sw>.csv; move it elsewhere.")
            person, execution, device = int(match[1]), int(match[2]), match[3]
            recordings.append(Recording((device, person, execution), path, self.owner_format.format(person)))
        return recordings

    def windows(self, recording: Recording) -> Windows:
        """The windows of one file that have a single activity, in m/s² and radians per second."""
        table = read_table(recording.path, [*ACC, *GYRO, "label"], header=True, text=["label"])
        unknown = [label for label in table["label"].unique() if label not in CLASSES]
        if unknown:
            raise FedapmError(f"{recording.path} has the label {unknown[0]!r}, which is none of {', '.join(CLASSES)}.")
        labels = cut_windows(table["label"].map(CLASSES.index).to_numpy()[None])[:, 0]
        single = (labels == labels[:, :1]).all(1)
        acc, gyro = (cut_windows(table[list(axes)].to_numpy().T)[single].astype(np.float32) for axes in (ACC, GYRO))
        return Windows(acc, gyro, labels[single, 0], np.full(len(acc), recording.owner))


class SPSWStatistics(WindowStatistics, SPSW):
    """SPSW with 54 statistics of each window."""
