"""Windows of signals, and KU-HAR read from a small archive in the published layout, whole and damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedapm.data import Natural, Pool, Source
from fedapm.data.sets.kuhar import CLASSES, FOLDER, FOLDERS, KUHAR
from fedapm.data.sets.sensors import Scale, cut_windows, standardize_windows
from fedapm.experiments.settings import Experiment
from tests.helpers.unit import few, refused

signals = arrays.arrays(
    np.float64,
    st.tuples(st.integers(1, 3), st.integers(0, 60)),
    # what sensors give: neither huge nor closer together than their resolution
    elements=st.integers(-20_000, 20_000).map(lambda value: value / 1000),
)


@few
@given(signals, st.integers(1, 20))
def test_every_window_is_a_piece_of_the_signal_and_pieces_follow_each_other(signal: Any, length: int) -> None:
    windows = cut_windows(signal, length)
    axes, samples = signal.shape
    assert windows.shape == (samples // length, axes, length)
    for k, window in enumerate(windows):
        assert np.array_equal(window, signal[:, k * length : (k + 1) * length])


@few
@given(signals.filter(lambda signal: signal.shape[1] > 0), st.floats(-100, 100), st.floats(0.01, 100))
def test_standardised_windows_have_mean_0_and_deviation_1_unless_constant(
    signal: Any, shift: float, factor: float
) -> None:
    (window,) = standardize_windows(signal[None])
    for axis, before in zip(window, signal, strict=True):
        if len(set(before)) == 1:
            assert not axis.any()
        else:
            assert axis.mean() == pytest.approx(0, abs=1e-9)
            assert axis.std() == pytest.approx(1)
    again = standardize_windows((signal * factor + shift)[None])[0]
    assert again == pytest.approx(window, abs=1e-6), "units and offsets do not matter"


@pytest.mark.parametrize("value", [0.0, 0.1, -9.81, 1e-320, 1e30])
def test_an_axis_that_does_not_move_is_zeros(value: float) -> None:
    moving = np.arange(128.0)
    window = standardize_windows(np.stack([np.full(128, value), moving])[None])[0]
    assert not window[0].any()
    assert window[1].std() == pytest.approx(1)


def test_a_movement_below_what_numbers_can_square_is_zeros_rather_than_nan() -> None:
    window = np.zeros((1, 1, 128))
    window[0, 0, 5] = 5e-324
    assert not standardize_windows(window).any()


def test_scaling_keeps_magnitudes() -> None:
    windows = np.random.default_rng(0).normal(3.0, 2.0, (4, 3, 8))
    assert Scale((1, 2, 3), (2, 4, 8))(windows)[:, 1] == pytest.approx((windows[:, 1] - 2) / 4)


def rows(count: int, seed: int) -> np.ndarray:
    """A recording as published: time, acc x y z, time, gyro x y z."""
    stream = np.random.default_rng(seed)
    time = np.arange(count)[:, None] / 100
    values = stream.normal(0, 2, (count, 6)).cumsum(0) / 10
    return np.hstack([time, values[:, :3], time, values[:, 3:]]).round(5)


def save(path: Path, table: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savetxt(path, table, delimiter=",", fmt="%.5f")


def published(root: Path, people: dict[str, int], left_out: bool = True) -> Path:
    """A root where each person has one recording of so many rows in each class, beside classes that are not used."""
    folder = root / FOLDER
    for k, name in enumerate((*FOLDERS, "2.Talk-sit", "17.Table-tennis")):
        for person, count in {**people, **({"1101": 600} if left_out else {})}.items():
            save(folder / name / f"{person}_{'ABCDEFGHIJ'[k]}_1.csv", rows(count, int(person) + k))
    return folder


def read(root: Path) -> Pool:
    return KUHAR().read(Source(root))


def test_windows_are_every_second_row_standardised(tmp_path: Path) -> None:
    folder = published(tmp_path, {"1001": 600, "1002": 300})
    pool = read(tmp_path)
    acc, gyro, acc_length, gyro_length = pool.inputs
    assert pool.modalities == ("acc", "gyro")
    assert pool.classes == CLASSES == ("Stand", "Sit", "Walk", "Lay", "Jump", "Run", "Stair-up", "Stair-down")
    assert pool.targets.tolist() == [k for k in range(8) for _ in range(3)]
    assert pool.owners.tolist() == ["1001", "1001", "1002"] * 8
    assert acc.shape == gyro.shape == (24, 3, 128)
    assert acc.dtype == gyro.dtype == torch.float32
    assert acc_length.tolist() == gyro_length.tolist() == [128] * 24
    assert acc_length.dtype == pool.targets.dtype == torch.int64
    for place, name, first in ((7, "11.Walk/1001_C_1.csv", 256), (23, "16.Stair-down/1002_H_1.csv", 0)):
        raw = np.loadtxt(folder / name, delimiter=",")[first : first + 256 : 2]
        for columns, found in ((raw[:, 1:4], acc[place]), (raw[:, 5:8], gyro[place])):
            by_hand = ((columns - columns.mean(0)) / columns.std(0)).T
            assert found.numpy() == pytest.approx(by_hand, abs=1e-5)


def test_the_order_depends_on_names_alone(tmp_path: Path) -> None:
    files = [f"{name}/{person}_X_{n}.csv" for name in FOLDERS for person in ("1002", "1001") for n in (2, 1)]
    for k, root in enumerate((tmp_path / "a", tmp_path / "b")):
        for name in files[:: (-1) ** k]:
            save(root / FOLDER / name, rows(256, sum(map(ord, name))))
    first, second = read(tmp_path / "a"), read(tmp_path / "b")
    assert torch.equal(first.inputs[0], second.inputs[0])
    assert first.owners.tolist() == second.owners.tolist() == ["1001", "1001", "1002", "1002"] * 8


def test_recordings_shorter_than_a_window_give_none(tmp_path: Path) -> None:
    published(tmp_path, {"1001": 255, "1002": 254, "1003": 1})
    assert read(tmp_path).owners.tolist() == ["1001"] * 8, "255 rows at 100 Hz are 128 at 50 Hz"


def test_nothing_but_short_recordings_is_refused(tmp_path: Path) -> None:
    published(tmp_path, {"1001": 100}, left_out=False)
    with refused(str(tmp_path / FOLDER), "128"):
        read(tmp_path)


def test_a_sensor_that_stopped_is_zeros_in_the_end(tmp_path: Path) -> None:
    folder = published(tmp_path, {"1001": 600})
    table = rows(600, 1)
    table[250:, 4:] = 0
    save(folder / "0.Stand" / "1001_A_1.csv", table)
    pool = read(tmp_path)
    assert pool.inputs[1][0].any()
    assert not pool.inputs[1][1].any()
    assert pool.inputs[0][1].any()


def test_clients_are_people_with_ten_windows(tmp_path: Path) -> None:
    published(tmp_path, {"1010": 600, "1002": 256, "1003": 512})
    known = KUHAR()
    federation = known.federation(Source(tmp_path), Natural(), test_fraction=0.2, seed=0)
    assert [c.id for c in federation.clients] == ["1003", "1010"], "1002 has 8 windows, 1101 is left out"
    assert [len(c.train) + len(c.test) for c in federation.clients] == [16, 16]
    assert federation.classes == 8
    assert federation.shapes == ((3, 128), (3, 128), (), ())
    without = federation.without({"gyro": [0]})
    assert not without.has(0, "gyro")
    assert without.has(1, "gyro")
    more = known.federation(Source(tmp_path), Natural(minimum=5), test_fraction=0.2, seed=0)
    assert [c.id for c in more.clients] == ["1002", "1003", "1010"]


@pytest.mark.parametrize("where", [".", FOLDER, f"2.{FOLDER}"])
def test_the_folder_may_be_the_root_or_be_named_as_its_archive(tmp_path: Path, where: str) -> None:
    published(tmp_path / "made", {"1001": 300})
    (tmp_path / "root").mkdir()
    (tmp_path / "made" / FOLDER).rename(tmp_path / "root" / where)
    assert len(read(tmp_path / "root").targets) == 8


def test_progress_is_told_file_by_file(tmp_path: Path) -> None:
    published(tmp_path, {"1001": 300})
    reports: list[tuple[str, int, int]] = []
    KUHAR().read(Source(tmp_path, progress=lambda *report: reports.append(report)))
    assert reports == [("reading KU-HAR", k, 8) for k in range(1, 9)]


DAMAGE = {
    "text": (
        lambda lines: [*lines[:4], lines[4].replace(lines[4].split(",")[2], "abc"), *lines[5:]],
        "line 5",
        "'abc'",
    ),
    "a header": (lambda lines: ["t,x,y,z,t,x,y,z", *lines], "line 1", "'t'"),
    "too few columns": (lambda lines: [*lines[:6], lines[6].rpartition(",")[0], *lines[7:]], "line 7", "7 columns"),
    "too few columns at first": (lambda lines: [lines[0].rpartition(",")[0], *lines[1:]], "line 1", "7 columns"),
    "too many columns": (lambda lines: [*lines[:6], lines[6] + ",1.0", *lines[7:]], "line 7", "9 columns"),
    "too many columns at first": (lambda lines: [lines[0] + ",1.0", *lines[1:]], "line 1", "9 columns"),
    "too few columns everywhere": (lambda lines: [line.rpartition(",")[0] for line in lines], "line 1", "7 columns"),
    "semicolons": (lambda lines: [line.replace(",", ";") for line in lines], "line 1", "1 columns"),
    "NaN": (lambda lines: [*lines[:-1], "NaN," * 7 + "NaN"], "line 300", "'NaN'"),
    "a gap": (lambda lines: [*lines[:-1], lines[-1].rpartition(",")[0] + ","], "line 300", "nothing"),
    "infinity": (lambda lines: [*lines[:-1], "0,1,1,1,0,1,inf,1"], "line 300", "'inf'"),
    "a number beyond single precision": (lambda lines: [*lines[:-1], "0,1,1,1e300,0,1,1,1"], "line 300", "'1e300'"),
    "a blank line before": (lambda lines: ["", *lines[:-1], "x"], "line 301", "1 columns"),
    "cut off": (lambda lines: [*lines[:9], lines[9][:20]], "line 10", "columns"),
    "a long text": (lambda lines: ["y" * 100_000, *lines], "line 1", "1 columns"),
    "accents": (lambda lines: ["0,é,0,0,0,0,0,0", *lines], "line 1", "where a number"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_broken_line_is_named_with_its_file(tmp_path: Path, kind: str) -> None:
    path = published(tmp_path, {"1001": 300}) / "5.Lay" / "1001_D_1.csv"
    broken, *mentions = DAMAGE[kind]
    path.write_text("\n".join(broken(path.read_text().splitlines())), encoding="latin-1")
    with refused(str(path), *mentions):
        read(tmp_path)


@pytest.mark.parametrize(
    ("content", "mention"),
    [
        (b"", "empty"),
        (b"\n\n\n", "empty"),
        (np.random.default_rng(0).bytes(5000), "1001_D_1.csv"),
        (b"\x00" * 5000, "1001_D_1.csv"),
        ("0,1,2,3,4,5,6,7\n".encode("utf-16"), "1001_D_1.csv"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "line 1"),
        (b'"0,1,2,3,4,5,6,7\n', "1001_D_1.csv"),
    ],
)
def test_a_file_that_is_no_table_is_named(tmp_path: Path, content: bytes, mention: str) -> None:
    path = published(tmp_path, {"1001": 300}) / "5.Lay" / "1001_D_1.csv"
    path.write_bytes(content)
    with refused(str(path), mention):
        read(tmp_path)


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b"\r\n"])
def test_marks_that_other_programs_leave_do_not_matter(tmp_path: Path, mark: bytes) -> None:
    path = published(tmp_path, {"1001": 300}) / "5.Lay" / "1001_D_1.csv"
    before = read(tmp_path)
    lines = path.read_bytes()
    path.write_bytes(lines.replace(b"\n", mark) if mark == b"\r\n" else mark + lines)
    assert torch.equal(read(tmp_path).inputs[0], before.inputs[0])


def test_a_folder_named_like_a_recording(tmp_path: Path) -> None:
    path = published(tmp_path, {"1001": 300}) / "5.Lay" / "1002_D_1.csv"
    path.mkdir()
    with refused(str(path), "cannot be read"):
        read(tmp_path)


def test_a_missing_class_is_named(tmp_path: Path) -> None:
    folder = published(tmp_path, {"1001": 300}, left_out=False)
    (folder / "14.Run" / "1001_F_1.csv").unlink()
    assert len(read(tmp_path).targets) == 7, "nobody ran"
    (folder / "14.Run").rmdir()
    with refused(str(folder / "14.Run"), "missing", "unpack"):
        read(tmp_path)


def test_no_recordings_at_all(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "nowhere"):
        with refused(str(root / FOLDER), "unpack", "fedapm data get ku-har"):
            read(root)
    with refused("ku-har", "--data-root"):
        KUHAR().read(Source())


def test_files_beside_the_recordings(tmp_path: Path) -> None:
    folder = published(tmp_path, {"1001": 300}) / "1.Sit"
    (folder / "._1001_B_1.csv").write_bytes(b"\x00\x05\x16\x07")
    (folder / "Thumbs.db").write_bytes(b"x")
    assert len(read(tmp_path).targets) == 8
    (folder / "notes.csv").write_text("x")
    with refused(str(folder / "notes.csv"), "person"):
        read(tmp_path)


def test_its_own_settings_are_known_settings() -> None:
    tables = {name: dict(table) for name, table in KUHAR.defaults.items()}
    assert tables["data"] == {"partition": "natural"}
    assert tables["engine"] == {"evaluate_every": 5, "fraction": 0.2}
    experiment = Experiment.from_tables(tables)
    assert (experiment.data.partition, experiment.data.minimum) == ("natural", 10)
    assert (experiment.model.name, experiment.model.preset) == ("har", "split_input")
    assert (experiment.solver.lr, experiment.solver.batch_size) == (0.1, 50)
