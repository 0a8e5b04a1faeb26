"""MotionSense (Malekzadeh et al. 2018): the published folder ``A_DeviceMotion_data``, or windows cut from it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from fedapm.data.dataset import DataSet
from fedapm.data.download import Archive, Origin
from fedapm.data.sets.sensors import Recording, Scale, SensorSet, Windows, cut_windows, read_table
from fedapm.data.sets.window_statistics import WindowStatistics
from fedapm.errors import FedapmError

FOLDER = "A_DeviceMotion_data"
CLASSES = ("dws", "ups", "sit", "std", "wlk", "jog")
"""Downstairs, upstairs, sitting, standing, walking, jogging."""
GRAVITY, OWN, TURN = ([f"{what}.{axis}" for axis in "xyz"] for what in ("gravity", "userAcceleration", "rotationRate"))


class MotionSense(SensorSet):
    """Six activities of 24 people with a phone in the trouser pocket, at 50 Hz in windows of 128 samples.

    The accelerometer's signal is userAcceleration + gravity, in g. It is scaled per axis by the mean and the standard
    deviation of the whole data set instead of each window's own: a window's mean is the direction of gravity, which
    distinguishes sitting from standing.
    """

    name = "motionsense"
    title = "MotionSense"
    activities = CLASSES
    windows_file = "motionsense.npz"
    owner_format = "{:02d}"
    acc_scale = Scale(mean=(0.0382, 0.7980, -0.0997), std=(0.4481, 0.6343, 0.5197))
    gyro_scale = Scale(mean=(0.0054, 0.0148, 0.0129), std=(1.2908, 1.2246, 0.8061))
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

    @classmethod
    def feature_versions(cls) -> tuple[type[DataSet], ...]:
        """Statistics of the windows."""
        return (MotionSenseStatistics,)

    def locate(self, root: Path) -> Path | None:
        """The folder of activities in a data root, or the root itself."""
        # the copy on Kaggle has the folder inside a folder of the same name
        for folder in (root / FOLDER / FOLDER, root / FOLDER, root):
            if any(any(folder.glob(f"{activity}_*/")) for activity in CLASSES):
                return folder
        return None

    def missing(self, root: Path) -> str:
        """The error message if there are neither recordings nor windows."""
        return (
            f"{root / FOLDER} is missing or has no folder such as {CLASSES[0]}_1; unpack MotionSense's {FOLDER}.zip in "
            f"{root}, or see: fedapm data get motionsense."
        )

    def recordings(self, folder: Path) -> list[Recording]:
        """The recordings by person, activity and trial."""
        recordings = []
        for target, activity in enumerate(CLASSES):
            trials = [
                (path, int(match[1]))
                for path in folder.glob(f"{activity}_*/")
                if (match := re.fullmatch(r"[a-z]+_([0-9]{1,4})", path.name))
            ]
            if not trials:
                raise FedapmError(
                    f"{folder} has no folder {activity}_<trial>; unpack MotionSense's {FOLDER}.zip again."
                )
            for trial_folder, trial in trials:
                for path in trial_folder.glob("[!.]*.csv"):
                    match = re.fullmatch(r"sub_([0-9]{1,4})\.csv", path.name)
                    if match is None:
                        raise FedapmError(f"{path} is not named sub_<person>.csv; move it elsewhere.")
                    person = int(match[1])
                    owner = self.owner_format.format(person)
                    recordings.append(Recording((person, target, trial), path, owner, target))
        return recordings

    def windows(self, recording: Recording) -> Windows:
        """The windows of one file, in g and radians per second."""
        table = read_table(recording.path, [*GRAVITY, *OWN, *TURN], header=True)
        signals = (table[OWN].to_numpy() + table[GRAVITY].to_numpy(), table[TURN].to_numpy())
        acc, gyro = (cut_windows(signal.T).astype(np.float32) for signal in signals)
        return Windows.of_recording(acc, gyro, recording.target, recording.owner)


class MotionSenseStatistics(WindowStatistics, MotionSense):
    """MotionSense with 54 statistics of each window."""
