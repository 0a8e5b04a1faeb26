"""Federations from what people have: tables, torch and Hugging Face datasets, partitions, dictionaries of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from fedapm import Federation
from tests.helpers.own import PEOPLE, arrays
from tests.helpers.unit import refused

GIVEN = arrays()
REFERENCE = Federation.from_arrays(GIVEN["x"], GIVEN["y"], GIVEN["client"])
CODES = np.unique(GIVEN["y"], return_inverse=True)[1]


def assert_same(made: Federation, reference: Federation = REFERENCE) -> None:
    assert len(made) == len(reference)
    for one, other in zip(made.clients, reference.clients, strict=True):
        for mine, theirs in ((one.train, other.train), (one.test, other.test)):
            torch.testing.assert_close(mine.inputs[0], theirs.inputs[0])
            assert torch.equal(mine.targets, theirs.targets)


def parts() -> dict[str, Any]:
    return {
        name: (GIVEN["x"][mine], GIVEN["y"][mine]) for name in PEOPLE if (mine := GIVEN["client"] == name) is not None
    }


def test_text_is_numbered_in_sorted_order_and_the_names_are_kept():
    assert REFERENCE.class_names == REFERENCE.labels == ("run", "sit", "walk")
    first = REFERENCE[0].train
    names = np.array(REFERENCE.class_names)[first.targets.numpy()]
    rows = {tuple(row): label for row, label in zip(GIVEN["x"].astype(np.float32).tolist(), GIVEN["y"], strict=True)}
    assert [rows[tuple(row)] for row in first.inputs[0].tolist()] == names.tolist()


def test_labels_from_one_are_numbered_and_their_names_kept():
    made = Federation.from_arrays(GIVEN["x"], CODES * 2 + 1, GIVEN["client"])
    assert made.labels == (1, 3, 5)
    assert made.class_names == ("1", "3", "5")
    assert_same(made)


def test_labels_from_zero_and_labels_with_names_stay_as_they_are():
    assert Federation.from_arrays(GIVEN["x"], CODES, GIVEN["client"]).labels == ()
    shifted = Federation.from_arrays(GIVEN["x"], CODES + 1, GIVEN["client"], class_names=["none", "run", "sit", "walk"])
    assert not shifted.labels
    assert shifted.classes == 4
    assert int(shifted[0].train.targets.min()) == 1
    named = Federation.from_arrays(GIVEN["x"], GIVEN["y"], GIVEN["client"], class_names=["walk", "sit", "run", "fly"])
    assert named.classes == 4
    with refused("'walk'", "classes"):
        Federation.from_arrays(GIVEN["x"], GIVEN["y"], GIVEN["client"], class_names=["sit", "run", "stand"])


def test_all_clients_of_a_dictionary_have_one_numbering():
    made = Federation.from_clients({"a": (np.ones((4, 2)), [2, 2, 1, 1]), "b": (np.ones((4, 2)), [3, 3, 3, 1])})
    assert made.labels == (1, 2, 3)
    assert sorted(made[1].train.targets.tolist() + made[1].test.targets.tolist()) == [0, 2, 2, 2]


def test_labels_in_a_column_are_squeezed():
    assert_same(Federation.from_arrays(GIVEN["x"], CODES[:, None], GIVEN["client"]))
    assert_same(Federation.from_arrays(GIVEN["x"], GIVEN["y"][:, None], GIVEN["client"]))


@pytest.mark.parametrize("kind", ["pairs", "dictionaries", "tensors"])
def test_dictionaries_of_arrays(kind):
    given = parts()
    if kind == "dictionaries":
        given = {name: {"x": x, "y": y} for name, (x, y) in given.items()}
    if kind == "tensors":
        codes = {name: CODES[GIVEN["client"] == name] for name in PEOPLE}
        given = {name: (torch.tensor(x).float(), torch.tensor(codes[name])) for name, (x, _) in given.items()}
    assert_same(Federation.from_clients(given))
    with refused("client ann", "'label'"):
        Federation.from_clients({"ann": {"x": GIVEN["x"], "label": CODES}})
    with refused("client ann", "lacks the array 'y'"):
        Federation.from_clients({"ann": {"x": GIVEN["x"]}})


def test_a_dataframe_with_a_client_column():
    frame = pd.DataFrame(GIVEN["x"], columns=[f"f{k}" for k in range(5)])
    frame = frame.assign(activity=GIVEN["y"], person=GIVEN["client"])
    assert_same(Federation.from_dataframe(frame, client="person", y="activity"))
    lists = pd.DataFrame({"window": list(GIVEN["x"]), "y": GIVEN["y"], "client": GIVEN["client"]})
    assert_same(Federation.from_dataframe(lists, x="window"))
    marked = frame.assign(late=np.arange(96) % 24 >= 18)
    made = Federation.from_dataframe(marked, client="person", y="activity", test="late")
    assert [len(client.test) for client in made.clients] == [6] * 4
    with refused("no column 'persn'", "'person'"):
        Federation.from_dataframe(frame, client="persn", y="activity")
    with refused("input column 'activity'", "text"):
        Federation.from_dataframe(frame, client="person", y="f0")
    with refused("DataFrame", "dict"):
        Federation.from_dataframe({})


@pytest.mark.parametrize("kind", ["dataset", "subset", "loader", "shuffled loader"])
def test_torch_datasets_subsets_and_loaders(kind):
    x, y = torch.tensor(GIVEN["x"]).float(), torch.tensor(CODES)
    whole, given = TensorDataset(x, y), {}
    for name in PEOPLE:
        index = np.flatnonzero(GIVEN["client"] == name).tolist()
        part = TensorDataset(x[index], y[index]) if kind == "dataset" else Subset(whole, index)
        given[name] = DataLoader(part, batch_size=7, shuffle="shuffled" in kind) if "loader" in kind else part
    assert_same(Federation.from_datasets(given))


def test_a_loader_that_loses_samples_is_refused():
    loader = DataLoader(TensorDataset(torch.ones(9, 2), torch.arange(9)), batch_size=4, shuffle=True, drop_last=True)
    with refused("client a", "drop_last"):
        Federation.from_datasets({"a": loader})


def test_one_torch_dataset_of_all_clients():
    whole = TensorDataset(torch.tensor(GIVEN["x"]).float(), torch.tensor(CODES))
    assert_same(Federation.from_dataset(whole, clients=GIVEN["client"]))
    with refused("client="):
        Federation.from_dataset(whole)
    with refused("no named columns"):
        Federation.from_dataset(whole, "person")


class Columns:
    """A dataset with named columns, as the package datasets has them."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns, self.column_names, self.features = columns, list(columns), {}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]


def named_columns(rows: Any = slice(None)) -> dict[str, Any]:
    return {
        "signal": GIVEN["x"][rows].tolist(),
        "label": CODES[rows].tolist(),
        "person": GIVEN["client"][rows].tolist(),
    }


def hugging_face(columns: dict[str, Any], names: list[str] | None = None) -> Any:
    datasets = pytest.importorskip("datasets")
    table = pytest.importorskip("pyarrow").table(columns)
    # the name spares it a digest of its content, which not every version of pyarrow can give it
    made = datasets.Dataset(datasets.table.InMemoryTable(table), fingerprint="people")
    return made.cast_column("label", datasets.ClassLabel(names=names)) if names else made


@pytest.mark.parametrize("make", [Columns, hugging_face])
def test_datasets_with_named_columns(make):
    assert_same(Federation.from_dataset(make(named_columns()), "person", x="signal"))
    assert_same(Federation.from_dataset(make(named_columns()), "person"))
    each = {name: make(named_columns(GIVEN["client"] == name)) for name in PEOPLE}
    assert_same(Federation.from_datasets(each, x="signal"))
    with refused("no column 'signl'", "'signal'"):
        Federation.from_datasets(each, x="signl")
    with refused("client ann", "'person'", "str"):
        Federation.from_datasets(each)
    with refused("no column 'persn'"):
        Federation.from_dataset(make(named_columns()), "persn")


def test_class_names_and_pictures_of_hugging_face():
    made = Federation.from_dataset(hugging_face(named_columns(), ["run", "sit", "walk"]), "person")
    assert made.class_names == ("run", "sit", "walk")
    pictures = {"image": np.zeros((8, 6, 5, 3), dtype=np.uint8), "label": [0, 1] * 4}
    assert Federation.from_datasets({"a": Columns(pictures)}).shapes == ((3, 6, 5),)


def test_partitions_of_flwr_datasets():
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    partitioner = partitioners.NaturalIdPartitioner(partition_by="person")
    partitioner.dataset = hugging_face(named_columns())
    made = Federation.from_datasets(partitioner, x="signal")
    assert [client.id for client in made.clients] == ["0", "1", "2", "3"]
    assert_same(made)


def test_a_recording_is_never_on_both_sides_of_any_split():
    groups = [f"r{k // 4}" for k in range(96)]
    made = Federation.from_arrays(GIVEN["x"], GIVEN["y"], GIVEN["client"], groups=groups, test_fraction=0.3)
    halves = [(c.train, c.test) for c in made.clients]
    halves += [(c.train, c.test) for c in made.for_validation(0.3, 0).clients]
    for train, test in halves:
        assert len(test) in (4, 8)
        assert not set(train.groups.tolist()) & set(test.groups.tolist())


def test_the_latest_are_held_out():
    made = Federation.from_arrays(GIVEN["x"], GIVEN["y"], GIVEN["client"], time=GIVEN["time"], test_fraction=0.25)
    for client in (*made.clients, *made.for_validation(0.25, 0).clients):
        assert client.train.times.max() < client.test.times.min()
    days = np.datetime64("2024-01-01") + GIVEN["time"]
    dated = Federation.from_arrays(GIVEN["x"], GIVEN["y"], GIVEN["client"], time=days, test_fraction=0.25)
    assert_same(dated, made)
    with refused("one entry for each of the 96"):
        Federation.from_arrays(GIVEN["x"], GIVEN["y"], GIVEN["client"], groups=[1, 2])
    with refused("no date"):
        Federation.from_arrays(GIVEN["x"], GIVEN["y"], GIVEN["client"], time=["noon"] * 96)


def test_groups_hold_out_classes_like_all_samples_where_that_can_be():
    y = np.repeat([0, 1], 40)
    groups = np.arange(80) // 10
    made = Federation.from_arrays(np.ones((80, 2)), y, ["a"] * 80, groups=groups, test_fraction=0.25)
    assert sorted(made[0].test.targets.tolist()) == [0] * 10 + [1] * 10


@pytest.mark.parametrize("missing", [np.array([1.0, np.nan] * 48), np.array(["a", None] * 48, dtype=object)])
def test_missing_client_ids_are_refused(missing):
    with refused("give every sample an id"):
        Federation.from_arrays(GIVEN["x"], GIVEN["y"], missing)
