"""SPSW (Matey-Sanz et al. 2023), phones and watches: the published folder ``sp-sw-har-dataset``, or windows of it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from fedapm.data.dataset import DataSet, Pool, Source
from fedapm.data.download import Archive, Origin
from fedapm.data.sets.windows import Windows, cut, prepared, scaled, table
from fedapm.errors import FedapmError

REPOSITORY = "sp-sw-har-dataset"
COMMIT = "673a2cc426707706c8a2578951b6b61b88777d78"
PREPARED = "spsw.npz"
CLASSES = ("SEATED", "SITTING_DOWN", "STANDING_UP", "TURNING", "WALKING")
ACC, GYRO = (tuple(f"{axis}_{sensor}" for axis in "xyz") for sensor in ("acc", "gyro"))
# of all windows of the published set; fixed, so that a person's data do not depend on who else is there
ACC_MEAN, ACC_STD = (-5.2918, -1.2305, 0.2541), (5.4947, 6.6406, 3.5620)
GYRO_MEAN, GYRO_STD = (-0.0103, -0.0221, 0.0159), (1.1788, 1.0474, 1.1188)


class SPSW(DataSet):
    """Five activities of 23 people with a phone and a watch, at 100 Hz in windows of 128 samples (1.28 s).

    A window is of one device and of one activity; windows in which the activity changes are not used. Signals are
    scaled per axis by the mean and the standard deviation of the whole data set, not of each window, which keeps the
    direction of gravity.
    """

    name = "spsw"
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
    defaults = {
        "data": {"partition": "natural"},
        "model": {"name": "har", "preset": "split_input"},
        "solver": {"lr": 0.1, "momentum": 0.9, "batch_size": 50},
        "engine": {"evaluate_every": 5},
    }

    def read(self, source: Source) -> Pool:
        """All windows by device, person and execution; the published files where both are there."""
        root = source.folder(self.name)
        folder = located(root)
        if folder is None:
            windows = prepared(root / PREPARED, CLASSES, "s{:02d}")
        else:
            files = recordings(folder)
            parts = []
            for done, (_, person, _, path) in enumerate(files, 1):
                parts.append(recording(path, f"s{person:02d}"))
                source.progress("reading SPSW", done, len(files))
            windows = Windows.joined(parts, folder)
        acc, gyro = scaled(windows.acc, ACC_MEAN, ACC_STD), scaled(windows.gyro, GYRO_MEAN, GYRO_STD)
        return Windows(acc, gyro, windows.targets, windows.owners).pool(CLASSES)


def located(root: Path) -> Path | None:
    """The folder of people; None where there is only the file of windows."""
    for folder in (*sorted(root.glob(f"*{REPOSITORY}*/DATA/")), root / "DATA", root):
        if any(folder.glob("s[0-9]*/s[0-9]*_s[pw].csv")):
            return folder
    if (root / PREPARED).is_file():
        return None
    raise FedapmError(
        f"{root / REPOSITORY / 'DATA'} is missing or has no recordings such as s01/s01_01_sp.csv; clone "
        f"https://github.com/GeoTecINIT/{REPOSITORY} in {root}, or see: fedapm data get spsw."
    )


def recordings(folder: Path) -> list[tuple[str, int, int, Path]]:
    """The device, person, execution and file of each recording, in order."""
    found = []
    for path in folder.glob("s[0-9]*/[!.]*.csv"):
        parts = re.fullmatch(r"s([0-9]{1,4})_([0-9]{1,4})_(sp|sw)\.csv", path.name)
        if parts is None:
            raise FedapmError(f"{path} is not named s<person>_<execution>_<sp or sw>.csv; move it elsewhere.")
        found.append((parts[3], int(parts[1]), int(parts[2]), path))
    return sorted(found)


def recording(path: Path, owner: str) -> Windows:
    """The windows of one file in which one activity goes on, in m/s² and radians a second."""
    read = table(path, [*ACC, *GYRO, "label"], header=True, text=["label"])
    unknown = [label for label in read["label"].unique() if label not in CLASSES]
    if unknown:
        raise FedapmError(f"{path} has the label {unknown[0]!r}, which is none of {', '.join(CLASSES)}.")
    labels = cut(read["label"].map(CLASSES.index).to_numpy()[None])[:, 0]
    same = (labels == labels[:, :1]).all(1)
    acc, gyro = (cut(read[list(axes)].to_numpy().T)[same].astype(np.float32) for axes in (ACC, GYRO))
    return Windows(acc, gyro, labels[same, 0], np.full(len(acc), owner))
