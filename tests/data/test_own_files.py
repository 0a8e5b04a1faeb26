"""Data files of the user's own: every format gives the same clients, and what is wrong is said in one line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedapm.data import Dirichlet, Natural
from fedapm.data.dealing import deal_out
from fedapm.data.own import digest, is_data_file, read_client, read_own
from tests.helpers.own import PEOPLE, arrays
from tests.helpers.unit import refused


def frame(**replaced: Any) -> pd.DataFrame:
    given = arrays() | replaced
    columns = {f"f{k}": given["x"][:, k] for k in range(given["x"].shape[1])}
    return pd.DataFrame(columns | {"y": given["y"], "client": given["client"]})


def write(folder: Path, kind: str) -> Path:
    given = arrays()
    path = folder / f"people.{kind}"
    if kind == "npz":
        np.savez(path, x=given["x"], y=given["y"], client=given["client"])
    elif kind == "csv":
        frame().to_csv(path, index=False)
    elif kind == "parquet":
        pytest.importorskip("pyarrow")
        frame().to_parquet(path)
    else:
        path = folder / "people"
        path.mkdir()
        for person in PEOPLE:
            mine = given["client"] == person
            np.savez(path / f"{person}.npz", x=given["x"][mine], y=given["y"][mine])
    return path


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet", "folder"])
def test_every_format_gives_the_same_clients(kind, tmp_path):
    made = deal_out(read_own(write(tmp_path, kind)), Natural(None, 1), test_fraction=0.25, seed=0, name="people")
    reference = read_own(write(tmp_path / ".", "npz") if kind != "npz" else tmp_path / "people.npz")
    reference = deal_out(reference, Natural(None, 1), test_fraction=0.25, seed=0, name="people")
    assert [c.id for c in made.clients] == list(PEOPLE)
    assert made.class_names == ("run", "sit", "walk") == made.labels
    for one, other in zip(made.clients, reference.clients, strict=True):
        assert torch.equal(one.train.targets, other.train.targets)
        torch.testing.assert_close(one.train.inputs[0], other.train.inputs[0])
        assert (len(one.train), len(one.test)) == (18, 6)


def test_columns_may_have_other_names_and_several_arrays_are_several_inputs(tmp_path):
    given = arrays()
    np.savez(tmp_path / "a.npz", signal=given["x"], activity=given["y"], person=given["client"])
    data = read_own(tmp_path / "a.npz", {"x": "signal", "y": "activity", "client": "person"})
    assert len(data) == 96
    np.savez(tmp_path / "b.npz", x1=given["x"], x2=given["x"][:, :2], y=given["y"], client=given["client"])
    assert [part.shape[1] for part in read_own(tmp_path / "b.npz").inputs] == [5, 2]
    table = frame().rename(columns={"y": "activity", "client": "person"})
    table.to_csv(tmp_path / "c.csv", index=False)
    data = read_own(tmp_path / "c.csv", {"y": "activity", "client": "person", "x": ["f0", "f2"]})
    assert data.inputs[0].shape == (96, 2)


def test_a_file_may_say_what_is_for_testing_and_what_the_classes_are_called(tmp_path):
    given = arrays()
    test = np.arange(96) % 4 == 0
    y = np.arange(96) % 3
    np.savez(tmp_path / "a.npz", x=given["x"], y=y, client=given["client"], test=test, classes=["a", "b", "c"])
    made = deal_out(read_own(tmp_path / "a.npz"), Natural(None, 1), test_fraction=0.5, seed=0, name="a")
    assert [len(c.test) for c in made.clients] == [6] * 4
    assert made.class_names == ("a", "b", "c")
    assert not made.labels


def test_without_clients_they_are_simulated_or_asked_for(tmp_path):
    given = arrays()
    np.savez(tmp_path / "a.npz", x=given["x"], y=given["y"])
    data = read_own(tmp_path / "a.npz")
    assert len(deal_out(data, Dirichlet(3, 1.0, 5), test_fraction=0.2, seed=0, name="a")) == 3
    with refused("no 'client'", "data.columns", "data.partition"):
        deal_out(data, Natural(None, 1), test_fraction=0.2, seed=0, name="a")


def test_recordings_stay_on_one_side_in_files_too(tmp_path):
    np.savez(tmp_path / "a.npz", **arrays())
    made = deal_out(read_own(tmp_path / "a.npz"), Natural(None, 1), test_fraction=0.25, seed=0, name="a")
    for client in made.clients:
        train, test = client.train, client.test
        assert not set(train.groups.tolist()) & set(test.groups.tolist())
        assert train.times.max() < test.times.min()


def test_the_digest_is_that_of_the_content(tmp_path):
    folder = write(tmp_path, "folder")
    before = digest(folder)
    shutil.copy(folder / "ann.npz", tmp_path / "copy.npz")
    assert digest(tmp_path / "copy.npz") == digest(folder / "ann.npz")
    np.savez(folder / "eve.npz", x=np.zeros((2, 5)), y=np.array(["run", "sit"]))
    assert digest(folder) != before


def test_one_clients_file_in_each_format(tmp_path):
    given = arrays(6)
    np.savez(tmp_path / "a.npz", x=given["x"], y=given["y"], x_test=given["x"][:2], y_test=given["y"][:2])
    (x, _), (x_test, _) = read_client(tmp_path / "a.npz")
    assert (len(x), len(x_test)) == (24, 2)
    frame(**given).drop(columns="client").to_csv(tmp_path / "a.csv", index=False)
    x, y = read_client(tmp_path / "a.csv")
    assert len(y) == len(x[0]) == 24


def test_what_names_a_file_and_what_a_data_set(tmp_path):
    assert is_data_file("people.npz")
    assert is_data_file(str(tmp_path))
    assert not is_data_file("digits")
    assert not is_data_file(str(tmp_path / "none"))


def bad_files(folder: Path) -> dict[str, Path]:
    """A file of each kind of mistake, by the words its message must have."""
    given, made = arrays(), {}

    def npz(mentions: str, **content: Any) -> None:
        made[mentions] = folder / f"f{len(made)}.npz"
        np.savez(made[mentions], **content)

    def csv(mentions: str, table: pd.DataFrame) -> None:
        made[mentions] = folder / f"f{len(made)}.csv"
        table.to_csv(made[mentions], index=False)

    npz("lacks the array 'y'", x=given["x"])
    npz("different lengths|x 96", x=given["x"], y=given["y"][:5])
    npz("holds no sample", x=np.zeros((0, 3)), y=np.zeros(0, dtype=int))
    npz("Python objects", x=given["x"], y=np.array([{}], dtype=object))
    npz("single number", x=np.array(3.0), y=np.array([1]))
    npz("one of x_test and y_test", x=given["x"], y=given["y"], x_test=given["x"])
    csv("no column 'y'|data.columns", frame().rename(columns={"y": "activity"}))
    csv("'f1'|text", frame().assign(f1="a"))
    csv("'f1'|row 3", frame().assign(f1=[0.0, 0, 0, np.nan] * 24))
    csv("no input column", frame()[["y", "client"]])
    made["is not an .npz file"] = folder / "broken.npz"
    made["is not an .npz file"].write_bytes(b"nonsense")
    made["not a table"] = folder / "broken.csv"
    made["not a table"].write_bytes(b"")
    made["does not exist|'broken.npz'"] = folder / "brokn.npz"
    made["ends in .txt|.parquet"] = folder / "a.txt"
    made["ends in .txt|.parquet"].write_text("x")
    made["holds no data file"] = folder / "empty"
    made["holds no data file"].mkdir()
    made["client b|(4,)|client a|(5,)"] = folder / "unlike"
    made["client b|(4,)|client a|(5,)"].mkdir()
    for name, width in (("a", 5), ("b", 4)):
        np.savez(folder / "unlike" / f"{name}.npz", x=np.zeros((3, width)), y=np.arange(3))
    return made


def test_every_mistake_in_a_file_is_one_line(tmp_path):
    for mentions, path in bad_files(tmp_path).items():
        with refused(*mentions.split("|")):
            read_own(path)


def test_unknown_purposes_and_columns_are_refused(tmp_path):
    path = write(tmp_path, "npz")
    with refused("data.columns.labels", "classes"):
        read_own(path, {"labels": "y"})
    with refused("lacks the array 'Y'"):
        read_own(path, {"y": "Y"})
    with refused("no column 'Y'", "f4, y."):
        read_own(write(tmp_path, "csv"), {"y": "Y"})
