"""MotionSense and SPSW: small archives in the published layout, prepared windows, damage of each, and the real ones."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedapm.data import DataSet, Natural, Pool, Source, data_set
from fedapm.data.sets import motionsense as ms
from fedapm.data.sets import spsw as sw
from fedapm.data.sets.motionsense import MotionSense
from fedapm.data.sets.spsw import SPSW
from tests.helpers.realdata import unpacked
from tests.helpers.unit import refused

TRIALS = {"dws": (1, 11), "ups": (3,), "sit": (5,), "std": (6,), "wlk": (7,), "jog": (9, 16)}
HEADER = [
    "", "attitude.roll", "attitude.pitch", "attitude.yaw", *ms.GRAVITY, *ms.TURN, *ms.OWN,
]  # fmt: skip


def read(known: DataSet, root: Path) -> Pool:
    return known.read(Source(root))


def device_motion(root: Path, people: tuple[int, ...] = (1, 2, 10), samples: int = 300) -> Path:
    """MotionSense as published."""
    folder = root / ms.FOLDER
    for activity, trials in TRIALS.items():
        for trial in trials:
            (folder / f"{activity}_{trial}").mkdir(parents=True, exist_ok=True)
            for person in people:
                stream = np.random.default_rng([person, trial])
                table = pd.DataFrame(stream.normal(size=(samples, 12)).round(6), columns=HEADER[1:])
                table.to_csv(folder / f"{activity}_{trial}" / f"sub_{person}.csv")
    return folder


def phones_and_watches(root: Path, people: tuple[int, ...] = (1, 2, 10), samples: int = 300) -> Path:
    """SPSW as published: the activity changes at sample 150, within the second window."""
    folder = root / sw.REPOSITORY / "DATA"
    for person in people:
        (folder / f"s{person:02d}").mkdir(parents=True)
        for execution in (1, 2):
            for device in ("sp", "sw"):
                stream = np.random.default_rng([person, execution, device == "sw"])
                table = pd.DataFrame(stream.normal(size=(samples, 6)), columns=[*sw.ACC, *sw.GYRO])
                table["timestamp"] = 1657533977813 + 10 * np.arange(samples)
                table["label"] = np.where(np.arange(samples) < 150, "TURNING", "WALKING")
                table.to_csv(folder / f"s{person:02d}" / f"s{person:02d}_{execution:02d}_{device}.csv", index=False)
    (root / sw.REPOSITORY / "DATA" / "subjects_info.csv").write_text("subject_id,age\n")
    return folder


def windows(classes: tuple[str, ...], count: int = 60) -> dict[str, np.ndarray]:
    """The arrays of a file of windows."""
    stream = np.random.default_rng(0)
    return {
        "acc": stream.normal(size=(count, 3, 128)).astype(np.float32),
        "gyro": stream.normal(size=(count, 3, 128)).astype(np.float32),
        "subject": (np.arange(count) % 3 + 9).astype(np.int8),
        "activity": np.arange(count) // 3 % len(classes),
        "activities": np.array(classes),
    }


def test_acceleration_is_what_the_sensor_feels_and_rotation_is_the_gyroscope(tmp_path: Path) -> None:
    folder = device_motion(tmp_path)
    pool = read(MotionSense(), tmp_path)
    assert pool.classes == ("dws", "ups", "sit", "std", "wlk", "jog")
    assert pool.modalities == ("acc", "gyro")
    assert [tuple(part.shape) for part in pool.inputs] == [(48, 3, 128), (48, 3, 128), (48,), (48,)]
    assert pool.inputs[0].dtype == torch.float32
    assert set(pool.inputs[2].tolist()) == {128}
    raw = pd.read_csv(folder / "jog_16" / "sub_2.csv").iloc[128:256]
    acc = raw[ms.GRAVITY].to_numpy() + raw[ms.OWN].to_numpy()
    place = 16 + 15
    assert pool.inputs[0][place].numpy() == pytest.approx(MotionSense.acc_scale(acc.T), abs=1e-5)
    gyro = MotionSense.gyro_scale(raw[ms.TURN].to_numpy().T)
    assert pool.inputs[1][place].numpy() == pytest.approx(gyro, abs=1e-5)


def test_recordings_are_ordered_by_person_activity_and_trial_as_numbers(tmp_path: Path) -> None:
    device_motion(tmp_path, people=(10, 2, 1))
    pool = read(MotionSense(), tmp_path)
    assert pool.owners.tolist() == ["01"] * 16 + ["02"] * 16 + ["10"] * 16
    assert pool.targets[:16].tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 5, 5]


def test_prepared_windows_are_the_published_ones(tmp_path: Path) -> None:
    """The same signals read from either source give the same samples of the same people in the same order."""
    arrays = windows(ms.CLASSES, 36)
    order = np.lexsort((np.arange(36), arrays["activity"], arrays["subject"]))
    arrays = {name: values[order] if name != "activities" else values for name, values in arrays.items()}
    (tmp_path / "prepared").mkdir()
    np.savez(tmp_path / "prepared" / MotionSense.windows_file, **arrays)
    for subject in np.unique(arrays["subject"]):
        for k, activity in enumerate(ms.CLASSES):
            own = (arrays["subject"] == subject) & (arrays["activity"] == k)
            path = tmp_path / "published" / ms.FOLDER / f"{activity}_1" / f"sub_{subject}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            acc, gyro = (np.concatenate(arrays[name][own], axis=1).T for name in ("acc", "gyro"))
            still = np.zeros_like(acc)
            pd.DataFrame(np.hstack([still, still, gyro, acc]), columns=HEADER[1:]).to_csv(path)
    first, second = (read(MotionSense(), tmp_path / name) for name in ("prepared", "published"))
    assert first.owners.tolist() == second.owners.tolist()
    assert torch.equal(first.targets, second.targets)
    for a, b in zip(first.inputs, second.inputs, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_published_files_win_over_prepared_windows(tmp_path: Path) -> None:
    np.savez(tmp_path / MotionSense.windows_file, **windows(ms.CLASSES))
    assert len(read(MotionSense(), tmp_path).targets) == 60
    device_motion(tmp_path)
    assert len(read(MotionSense(), tmp_path).targets) == 48


@pytest.mark.parametrize("where", [".", ms.FOLDER, f"{ms.FOLDER}/{ms.FOLDER}"])
def test_the_folder_may_be_the_root_or_in_a_folder_of_its_name(tmp_path: Path, where: str) -> None:
    device_motion(tmp_path / "made")
    (tmp_path / "root" / where).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "made" / ms.FOLDER).rename(tmp_path / "root" / where)
    assert len(read(MotionSense(), tmp_path / "root").targets) == 48


def test_a_missing_activity_or_folder_is_named(tmp_path: Path) -> None:
    with refused(str(tmp_path / ms.FOLDER), "unpack", "fedapm data get motionsense"):
        read(MotionSense(), tmp_path)
    with refused("motionsense", "--data-root"):
        MotionSense().read(Source())
    folder = device_motion(tmp_path)
    (folder / "sit_5").rename(folder / "sit_five")
    with refused(str(folder), "sit_<trial>"):
        read(MotionSense(), tmp_path)


def test_other_files_are_ignored_or_named(tmp_path: Path) -> None:
    folder = device_motion(tmp_path)
    (folder / "dws_1" / ".DS_Store").write_bytes(b"x")
    (folder / "dws_1" / "._sub_1.csv").write_bytes(b"\x00")
    (folder / "other").mkdir()
    assert len(read(MotionSense(), tmp_path).targets) == 48
    (folder / "dws_1" / "sub_x.csv").write_text("x")
    with refused(str(folder / "dws_1" / "sub_x.csv"), "sub_<person>.csv"):
        read(MotionSense(), tmp_path)


def test_recordings_that_are_all_too_short(tmp_path: Path) -> None:
    folder = device_motion(tmp_path, samples=127)
    with refused(str(folder), "128"):
        read(MotionSense(), tmp_path)


def broken_lines(lines: list[str], kind: str) -> list[str]:
    if kind == "text":
        return [*lines[:3], lines[3].rpartition(",")[0] + ",abc", *lines[4:]]
    if kind == "gap":
        return [*lines[:3], lines[3].rpartition(",")[0] + ",", *lines[4:]]
    if kind == "short":
        return [*lines[:3], lines[3].rpartition(",")[0], *lines[4:]]
    if kind == "long":
        return [*lines[:3], lines[3] + ",1", *lines[4:]]
    if kind == "all long":
        return [lines[0], *(line + ",1" for line in lines[1:])]
    assert kind == "no rows"
    return lines[:1]


LINES = [
    ("text", "line 4"), ("gap", "line 4"), ("short", "line 4"), ("long", "line 4"), ("all long", "line 2"),
    ("no rows", "empty"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "mention"), LINES)
def test_a_broken_line_of_motionsense_is_named(tmp_path: Path, kind: str, mention: str) -> None:
    path = device_motion(tmp_path) / "wlk_7" / "sub_2.csv"
    path.write_text("\n".join(broken_lines(path.read_text().splitlines(), kind)))
    with refused(str(path), mention):
        read(MotionSense(), tmp_path)


@pytest.mark.parametrize("content", [b"", b"\n", b"a,b\n1,2\n", b"\x00\xff\xfe", "gravity.x\n".encode("utf-16")])
def test_a_file_without_the_published_columns_is_named(tmp_path: Path, content: bytes) -> None:
    path = device_motion(tmp_path) / "wlk_7" / "sub_2.csv"
    path.write_bytes(content)
    with refused(str(path), "'gravity.x'"):
        read(MotionSense(), tmp_path)


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = device_motion(tmp_path) / "wlk_7" / "sub_2.csv"
    path.write_text(path.read_text().replace("attitude.yaw", "rotationRate.x"))
    with refused(str(path), "'rotationRate.x'"):
        read(MotionSense(), tmp_path)


def test_spsw_windows_are_of_one_activity_and_ordered_as_prepared_ones(tmp_path: Path) -> None:
    folder = phones_and_watches(tmp_path, people=(10, 2, 1), samples=400)
    pool = read(SPSW(), tmp_path)
    assert pool.classes == ("SEATED", "SITTING_DOWN", "STANDING_UP", "TURNING", "WALKING")
    assert pool.targets.tolist() == [3, 4] * 12, "of three windows the second has two activities"
    assert pool.owners.tolist() == (["s01"] * 4 + ["s02"] * 4 + ["s10"] * 4) * 2
    raw = pd.read_csv(folder / "s02" / "s02_01_sw.csv").iloc[256:384]
    place = 12 + 4 + 1
    for axes, scale, values in (
        (sw.ACC, SPSW.acc_scale, pool.inputs[0]),
        (sw.GYRO, SPSW.gyro_scale, pool.inputs[1]),
    ):
        assert values[place].numpy() == pytest.approx(scale(raw[list(axes)].to_numpy().T), abs=1e-5)


@pytest.mark.parametrize(
    "where", ["sp-sw-har-dataset-main/DATA", "GeoTecINIT-sp-sw-har-dataset-673a2cc/DATA", "DATA", "."]
)
def test_spsw_may_lie_where_archives_put_it(tmp_path: Path, where: str) -> None:
    folder = phones_and_watches(tmp_path / "made")
    (tmp_path / "root" / where).parent.mkdir(parents=True, exist_ok=True)
    folder.rename(tmp_path / "root" / where)
    assert len(read(SPSW(), tmp_path / "root").targets) == 12


@pytest.mark.parametrize(("kind", "mention"), LINES)
def test_a_broken_line_of_spsw_is_named(tmp_path: Path, kind: str, mention: str) -> None:
    path = phones_and_watches(tmp_path) / "s02" / "s02_01_sw.csv"
    path.write_text("\n".join(broken_lines(path.read_text().splitlines(), kind)))
    # a text in the last column is a label that nobody knows
    with refused(str(path), "'abc'" if kind == "text" else mention):
        read(SPSW(), tmp_path)


def test_a_number_missing_before_a_label_is_named(tmp_path: Path) -> None:
    path = phones_and_watches(tmp_path) / "s02" / "s02_01_sw.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:7], "1,2,,4,5,6,7,WALKING", *lines[8:]]))
    with refused(str(path), "line 8", "z_acc"):
        read(SPSW(), tmp_path)


def test_spsw_that_is_not_there_or_oddly_named(tmp_path: Path) -> None:
    with refused(str(tmp_path), "clone", "fedapm data get spsw"):
        read(SPSW(), tmp_path)
    folder = phones_and_watches(tmp_path)
    (folder / "s01" / "s01_copy.csv").write_text("")
    with refused(str(folder / "s01" / "s01_copy.csv"), "<execution>"):
        read(SPSW(), tmp_path)


STATISTICS = [
    (MotionSense(), device_motion, MotionSense.windows_file, ms.CLASSES),
    (SPSW(), phones_and_watches, SPSW.windows_file, sw.CLASSES),
]


@pytest.mark.parametrize(("known", "publish", "name", "classes"), STATISTICS, ids=["motionsense", "spsw"])
def test_statistics_are_those_of_the_windows_however_they_are_published(
    tmp_path: Path, known: DataSet, publish: Any, name: str, classes: tuple[str, ...]
) -> None:
    publish(tmp_path / "published")
    (tmp_path / "cut").mkdir()
    np.savez(tmp_path / "cut" / name, **windows(classes))
    version = data_set(known.name, "statistics")
    for root in (tmp_path / "published", tmp_path / "cut"):
        raw, pool = read(known, root), read(version, root)
        signals = torch.cat(raw.inputs[:2], dim=1)
        assert pool.inputs[0].shape == (len(raw.targets), 54)
        assert pool.inputs[0].dtype == torch.float32
        means = pool.inputs[0].view(-1, 6, 9)[:, :, 0]
        assert torch.allclose(means, signals.mean(-1), atol=1e-5)
        assert torch.equal(pool.targets, raw.targets)
        assert pool.owners.tolist() == raw.owners.tolist()
        assert pool.classes == raw.classes
        assert not version.federation(Source(root), Natural(minimum=2), test_fraction=0.5, seed=0).has_lengths


PREPARED = [(MotionSense(), MotionSense.windows_file, ms.CLASSES), (SPSW(), SPSW.windows_file, sw.CLASSES)]
both = pytest.mark.parametrize(("known", "name", "classes"), PREPARED, ids=["motionsense", "spsw"])


@both
def test_prepared_windows_of_other_order_of_activities(tmp_path: Path, known: DataSet, name: str, classes: Any) -> None:
    arrays = windows(classes)
    np.savez(tmp_path / name, **arrays)
    first = read(known, tmp_path)
    turned = arrays | {"activities": np.array(classes[::-1]), "activity": len(classes) - 1 - arrays["activity"]}
    np.savez_compressed(tmp_path / name, **turned, device=np.array(["sp"] * 60))
    second = read(known, tmp_path)
    assert torch.equal(first.targets, second.targets)
    assert first.classes == second.classes == classes


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    arrays = windows(ms.CLASSES) | {"activities": np.array([*ms.CLASSES], dtype=object)}
    np.savez(tmp_path / MotionSense.windows_file, **arrays)
    with refused(MotionSense.windows_file, "activities", "damaged"):
        read(MotionSense(), tmp_path)


NAN = np.zeros((60, 3, 128), np.float32)
NAN[3, 1, 5] = np.nan


@both
@pytest.mark.parametrize(
    ("array", "value"),
    [
        ("acc", np.zeros((60, 3, 64), np.float32)),
        ("acc", np.zeros((60, 128, 3), np.float32)),
        ("acc", np.zeros((60, 3, 128), np.int16)),
        ("acc", np.zeros((0, 3, 128), np.float32)),
        ("acc", np.float32(1)),
        ("acc", NAN),
        ("gyro", np.zeros((59, 3, 128), np.float32)),
        ("gyro", np.full((60, 3, 128), np.inf, np.float32)),
        ("gyro", np.full((60, 3, 128), 1e300)),
        ("subject", np.arange(59)),
        ("subject", np.array(["a"] * 60)),
        ("subject", np.zeros((60, 1), int)),
        ("activity", np.arange(61) % 5),
        ("activity", np.full(60, 0.5)),
        ("activity", np.full(60, -1)),
        ("activity", np.full(60, 6)),
        ("activities", np.arange(6)),
        ("activities", np.array("dws")),
        ("activities", np.array(["swimming"] * 6)),
    ],
)
def test_an_array_that_does_not_fit_is_named(
    tmp_path: Path, known: DataSet, name: str, classes: Any, array: str, value: Any
) -> None:
    np.savez(tmp_path / name, **(windows(classes) | {array: value}))
    with refused(str(tmp_path / name), f"array {array}"):
        read(known, tmp_path)


@pytest.mark.parametrize("array", ["acc", "gyro", "subject", "activity", "activities"])
def test_a_missing_array_is_named(tmp_path: Path, array: str) -> None:
    arrays = windows(ms.CLASSES)
    del arrays[array]
    np.savez(tmp_path / MotionSense.windows_file, **arrays)
    with refused(str(tmp_path / MotionSense.windows_file), f"no array {array}"):
        read(MotionSense(), tmp_path)


def test_a_file_of_windows_that_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / MotionSense.windows_file
    np.savez(path, **windows(ms.CLASSES))
    whole = path.read_bytes()
    for content in (b"", b"text", whole[:1000], whole[: len(whole) // 2], whole[:-5], b"\x93NUMPY", b"PK\x03\x04"):
        path.write_bytes(content)
        with refused(str(path), "damaged"):
            read(MotionSense(), tmp_path)
    for place in (300, len(whole) // 4):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        with refused(str(path), "array acc", "damaged"):
            read(MotionSense(), tmp_path)


def test_a_single_array_under_the_name_of_several(tmp_path: Path) -> None:
    with (tmp_path / MotionSense.windows_file).open("wb") as file:
        np.save(file, np.zeros(3))
    with refused(str(tmp_path / MotionSense.windows_file), "several arrays"):
        read(MotionSense(), tmp_path)


def test_an_array_that_claims_to_be_enormous(tmp_path: Path) -> None:
    path = tmp_path / MotionSense.windows_file
    np.savez(path, **windows(ms.CLASSES))
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    header = members["acc.npy"]
    members["acc.npy"] = header.replace(b"(60, 3, 128), }        ", b"(60000000000, 3, 128), }")[: len(header)]
    assert members["acc.npy"] != header
    with zipfile.ZipFile(path, "w") as new:
        for name, content in members.items():
            new.writestr(name, content)
    with refused(str(path), "array acc", "damaged"):
        read(MotionSense(), tmp_path)


@pytest.mark.parametrize(("known", "make"), [(MotionSense(), device_motion), (SPSW(), phones_and_watches)])
def test_clients_are_people_in_the_order_of_their_numbers(tmp_path: Path, known: DataSet, make: Any) -> None:
    make(tmp_path, samples=900)
    reports: list[tuple[str, int, int]] = []
    source = Source(tmp_path, progress=lambda *report: reports.append(report))
    federation = known.federation(source, Natural(), test_fraction=0.2, seed=0)
    ids = [c.id for c in federation.clients]
    assert [int(i.lstrip("s")) for i in ids] == [1, 2, 10]
    assert federation.has_lengths
    assert federation.class_names == read(known, tmp_path).classes
    first = known.federation(source, Natural(clients=2), test_fraction=0.2, seed=0)
    assert [c.id for c in first.clients] == ids[:2]
    assert reports[-1][1] == reports[-1][2] > 0


@pytest.mark.parametrize("known", [MotionSense, SPSW])
def test_their_own_settings(known: type[DataSet]) -> None:
    assert known.defaults["data"] == {"partition": "natural"}
    assert known.defaults["model"] == {"name": "har", "preset": "split_input"}
    assert known.defaults["solver"] == {"lr": 0.1, "momentum": 0.9, "batch_size": 50}
    assert known.defaults["engine"] == {"evaluate_every": 5}


@pytest.mark.real_data
def test_the_real_motionsense(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = unpacked("motionsense", tmp_path_factory)
    pool = read(MotionSense(), root)
    assert pool.inputs[0].shape == pool.inputs[1].shape == (10_854, 3, 128)
    assert torch.bincount(pool.targets).tolist() == [997, 1190, 2620, 2367, 2655, 1025]
    for part in pool.inputs[:2]:
        assert part.mean((0, 2)).abs().max() < 0.01
        assert (part.std((0, 2)) - 1).abs().max() < 0.01
    # the magnitude of a body at rest is gravity's: 1 g
    acc = (
        pool.inputs[0] * torch.tensor(MotionSense.acc_scale.std)[:, None]
        + torch.tensor(MotionSense.acc_scale.mean)[:, None]
    )
    still = acc[pool.targets == ms.CLASSES.index("sit")].norm(dim=1)
    assert still.mean().item() == pytest.approx(1, abs=0.02)
    federation = MotionSense().federation(Source(root), Natural(), test_fraction=0.2, seed=0)
    assert [c.id for c in federation.clients] == [f"{k:02d}" for k in range(1, 25)]
    assert all(c.classes == 6 for c in federation.clients)
    assert sum(len(c.train) + len(c.test) for c in federation.clients) == 10_854


@pytest.mark.real_data
def test_the_statistics_of_the_real_motionsense_are_scaled_well(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The fixed scales suit real signals: no feature is much larger or smaller than the others."""
    pool = read(data_set("motionsense", "statistics"), unpacked("motionsense", tmp_path_factory))
    spread = pool.inputs[0].view(-1, 6, 9).std((0, 1))
    assert pool.inputs[0].shape == (10_854, 54)
    assert (spread.min() > 0.4, spread.max() < 2, pool.inputs[0].abs().max() < 20) == (True, True, True)


@pytest.mark.real_data
def test_the_real_spsw(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = unpacked("spsw", tmp_path_factory)
    pool = read(SPSW(), root)
    assert pool.inputs[0].shape == (1_146, 3, 128)
    for part in pool.inputs[:2]:
        assert part.mean((0, 2)).abs().max() < 0.01
        assert (part.std((0, 2)) - 1).abs().max() < 0.01
    federation = SPSW().federation(Source(root), Natural(), test_fraction=0.2, seed=0)
    assert [c.id for c in federation.clients] == [f"s{k:02d}" for k in range(1, 24)]
    assert federation.classes == 5
