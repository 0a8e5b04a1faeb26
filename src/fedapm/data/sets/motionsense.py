"""MotionSense (Malekzadeh et al. 2018): the published folder ``A_DeviceMotion_data``, or windows cut from it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from fedapm.data.dataset import DataSet, Pool, Source
from fedapm.data.download import Archive, Origin
from fedapm.data.sets.windows import Windows, cut, prepared, scaled, table
from fedapm.errors import FedapmError

FOLDER = "A_DeviceMotion_data"
PREPARED = "motionsense.npz"
CLASSES = ("dws", "ups", "sit", "std", "wlk", "jog")
"""Downstairs, upstairs, sitting, standing, walking, jogging."""
GRAVITY, OWN, TURN = ([f"{what}.{axis}" for axis in "xyz"] for what in ("gravity", "userAcceleration", "rotationRate"))
# of all windows of the published set; fixed, so that a person's data do not depend on who else is there
ACC_MEAN, ACC_STD = (0.0382, 0.7980, -0.0997), (0.4481, 0.6343, 0.5197)
GYRO_MEAN, GYRO_STD = (0.0054, 0.0148, 0.0129), (1.2908, 1.2246, 0.8061)


class MotionSense(DataSet):
    """Six activities of 24 people with a phone in the trouser pocket, at 50 Hz in windows of 128 samples.

    The accelerometer's signal is what the sensor feels, in g: userAcceleration + gravity. It is scaled per axis by
    the mean and the standard deviation of the whole data set, not of each window: a window's own mean is the
    direction of gravity, which is what tells sitting from standing.
    """

    name = "motionsense"
    about = "MotionSense, phone accelerometer and gyroscope, 6 activities of 24 people; needs --data-root"
    origin = Origin(
        page="https://github.com/mmalekzadeh/motion-sense",
        license="MIT; cite Malekzadeh et al. 2019 (doi 10.1145/3302505.3310068)",
        layout=f"{FOLDER}/<activity>_<trial>/sub_<person>.csv",
        archives=(
            Archive(
                "https://github.com/mmalekzadeh/motion-sense/raw/master/data/A_DeviceMotion_data.zip", None, FOLDER
            ),
        ),
        by_hand=f"unpack data/A_DeviceMotion_data.zip so that {FOLDER} is in the data root",
    )
    defaults = {
        "data": {"partition": "natural"},
        "model": {"name": "har", "preset": "split_input"},
        "solver": {"lr": 0.1, "momentum": 0.9, "batch_size": 50},
        "engine": {"evaluate_every": 5},
    }

    def read(self, source: Source) -> Pool:
        """All windows by person, activity and trial; the published files where both are there."""
        root = source.folder(self.name)
        folder = located(root)
        if folder is None:
            windows = prepared(root / PREPARED, CLASSES, "{:02d}")
        else:
            files = recordings(folder)
            parts = []
            for done, (person, target, _, path) in enumerate(files, 1):
                parts.append(recording(path, target, f"{person:02d}"))
                source.progress("reading MotionSense", done, len(files))
            windows = Windows.joined(parts, folder)
        acc, gyro = scaled(windows.acc, ACC_MEAN, ACC_STD), scaled(windows.gyro, GYRO_MEAN, GYRO_STD)
        return Windows(acc, gyro, windows.targets, windows.owners).pool(CLASSES)


def located(root: Path) -> Path | None:
    """The folder of recordings; None where there is only the file of windows."""
    # the copy on Kaggle has the folder inside a folder of the same name
    for folder in (root / FOLDER / FOLDER, root / FOLDER, root):
        if any(any(folder.glob(f"{activity}_*/")) for activity in CLASSES):
            return folder
    if (root / PREPARED).is_file():
        return None
    raise FedapmError(
        f"{root / FOLDER} is missing or has no folder such as {CLASSES[0]}_1; unpack MotionSense's {FOLDER}.zip in "
        f"{root}, or see: fedapm data get motionsense."
    )


def recordings(folder: Path) -> list[tuple[int, int, int, Path]]:
    """The person, class, trial and file of each recording, in order."""
    found = []
    for target, activity in enumerate(CLASSES):
        trials = [(p, m) for p in folder.glob(f"{activity}_*/") if (m := re.fullmatch(r"[a-z]+_([0-9]{1,4})", p.name))]
        if not trials:
            raise FedapmError(f"{folder} has no folder {activity}_<trial>; unpack MotionSense's {FOLDER}.zip again.")
        for trial, number in trials:
            for path in trial.glob("[!.]*.csv"):
                person = re.fullmatch(r"sub_([0-9]{1,4})\.csv", path.name)
                if person is None:
                    raise FedapmError(f"{path} is not named sub_<person>.csv; move it elsewhere.")
                found.append((int(person[1]), target, int(number[1]), path))
    return sorted(found)


def recording(path: Path, target: int, owner: str) -> Windows:
    """The windows of one file, in g and radians a second."""
    read = table(path, [*GRAVITY, *OWN, *TURN], header=True)
    acc = read[OWN].to_numpy() + read[GRAVITY].to_numpy()
    acc, gyro = (cut(signal.T).astype(np.float32) for signal in (acc, read[TURN].to_numpy()))
    return Windows.of(acc, gyro, target, owner)
