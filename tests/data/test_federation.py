"""Federations of a user's own data: what goes in is what the clients have, and bad data is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import fedapm
from fedapm import IID, Dirichlet, Federation, Shards
from fedapm.core.samples import Samples
from fedapm.data import ClientData, DataSet, Pool, Source, data_set
from fedapm.experiments import build
from tests.helpers.unit import blobs, few, refused, two_layers, unless_refused


class Everything(DataSet):
    """A thousand samples of two classes."""

    name = "everything"

    def read(self, source: Source) -> Pool:
        del source
        return Pool(torch.arange(1000) % 2, ("even", "odd"), (), inputs=(torch.arange(1000),))


QUICK: dict[str, Any] = {"rounds": 2, "fraction": 1.0, "batch_size": 10}


def rows(federation: Federation) -> dict[str, set[tuple[float, ...]]]:
    """Every client's inputs, training and test together."""
    return {c.id: {tuple(r) for part in (c.train, c.test) for r in part.inputs[0].tolist()} for c in federation.clients}


def test_a_column_of_ids_gives_each_client_its_rows() -> None:
    x, y = blobs(60)
    ids = np.array(["anna", "bo", "cleo"])[np.arange(60) * 7 % 3]
    federation = Federation.from_arrays(x, y, ids)
    assert [c.id for c in federation.clients] == ["anna", "bo", "cleo"]
    assert rows(federation) == {name: {tuple(r) for r in x[ids == name].tolist()} for name in set(ids)}


def test_inputs_and_targets_stay_together() -> None:
    y = np.arange(60) % 5
    x = y[:, None] + np.zeros((60, 2), np.float32)
    for client in Federation.from_arrays(x, y, IID(4)).clients:
        for part in (client.train, client.test):
            assert torch.equal(part.inputs[0][:, 0], part.targets.float())


@few
@given(st.integers(1, 5), st.floats(0.1, 0.6), st.integers(0, 100))
def test_a_partitioner_deals_out_everything_once(m: int, fraction: float, seed: int) -> None:
    x, y = blobs(60)
    federation = Federation.from_arrays(x, y, IID(m), test_fraction=fraction, seed=seed)
    assert [c.id for c in federation.clients] == [str(k) for k in range(m)]
    found = [tuple(r) for c in federation.clients for s in (c.train, c.test) for r in s.inputs[0].tolist()]
    assert sorted(found) == sorted(tuple(r) for r in x.tolist())


@pytest.mark.parametrize("clients", [IID(3), Dirichlet(3, 1.0, 4), Shards(3), np.arange(60) % 3])
def test_same_seed_same_clients_other_seed_other_clients(clients: Any) -> None:
    x, y = blobs(60)
    first, again, other = (Federation.from_arrays(x, y, clients, seed=s) for s in (5, 5, 6))
    for a, b in zip(first.clients, again.clients, strict=True):
        assert torch.equal(a.train.inputs[0], b.train.inputs[0])
        assert torch.equal(a.test.targets, b.test.targets)
    assert any(
        a.test.inputs[0].shape != b.test.inputs[0].shape or not torch.equal(a.test.inputs[0], b.test.inputs[0])
        for a, b in zip(first.clients, other.clients, strict=True)
    )


def test_data_already_apart_as_dict_or_list() -> None:
    apart = {"north": blobs(20, seed=1), "south": blobs(30, seed=2)}
    named = Federation.from_clients(apart, test_fraction=0.5)
    assert [(c.id, len(c.train), len(c.test)) for c in named.clients] == [("north", 10, 10), ("south", 15, 15)]
    assert rows(named) == {k: {tuple(r) for r in x.tolist()} for k, (x, _) in apart.items()}
    assert [c.id for c in Federation.from_clients(list(apart.values())).clients] == ["0", "1"]


def test_own_test_data_is_kept_as_it_is() -> None:
    train, test = blobs(20, seed=1), blobs(8, seed=2)
    client = Federation.from_clients({"a": train}, test={"a": test})[0]
    assert torch.equal(client.train.inputs[0], torch.from_numpy(train[0]))
    assert torch.equal(client.test.inputs[0], torch.from_numpy(test[0]))
    assert client.test.targets.tolist() == test[1].tolist()


def test_a_client_without_test_data_is_named() -> None:
    with refused("client b", "no test data"):
        Federation.from_clients({"a": blobs(20), "b": blobs(20)}, test={"a": blobs(5)})


def test_torch_datasets() -> None:
    x, y = (torch.as_tensor(part) for part in blobs(30))
    federation = Federation.from_datasets({"a": TensorDataset(x[:12], y[:12]), "b": TensorDataset(x[12:], y[12:])})
    assert [len(c.train) + len(c.test) for c in federation.clients] == [12, 18]
    assert rows(federation)["a"] == {tuple(r) for r in x[:12].tolist()}
    assert federation[0].train.targets.dtype == torch.int64


class Rows(Dataset):
    """A dataset as people write it: numpy in, tuples out."""

    def __init__(self, *columns: Any) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(column[index] for column in self.columns)


def test_a_dataset_of_double_precision_arrays_trains_like_the_arrays_would() -> None:
    x, y = blobs(20)
    federation = Federation.from_datasets([Rows(x.astype(np.float64), y)])
    fedapm.train(federation, two_layers, personal=["head"], **QUICK)


def test_a_dataset_that_is_no_pairs_is_refused() -> None:
    with refused("client 0", "(x, y)"):
        Federation.from_datasets([Rows(np.zeros((4, 2)))])


def test_an_empty_dataset_is_refused() -> None:
    with refused("client 1", "no training data"):
        Federation.from_datasets([TensorDataset(*map(torch.as_tensor, blobs(9))), Rows(np.zeros((0, 2)), np.zeros(0))])


def test_a_stream_without_a_length_is_refused() -> None:
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield torch.zeros(2), 0

    with refused("client 0", "no length"):
        Federation.from_datasets([Endless()])


class TwoInputs(nn.Module):
    """Adds up what two linear maps say."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.side, self.head = nn.Linear(4, 5), nn.Linear(2, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return self.head((self.body(x) + self.side(z)).relu())


def two_input_federation(how: str) -> Federation:
    x, y = blobs(60)
    z = np.random.default_rng(3).normal(size=(60, 2)).astype(np.float32)
    if how == "arrays":
        return Federation.from_arrays((x, z), y, np.arange(60) // 20)
    pieces = [slice(0, 20), slice(20, 40), slice(40, 60)]
    if how == "clients":
        return Federation.from_clients([((x[p], z[p]), y[p]) for p in pieces])
    return Federation.from_datasets([Rows(x[p], z[p], y[p]) for p in pieces])


@pytest.mark.parametrize("how", ["arrays", "clients", "datasets"])
def test_a_network_with_two_inputs_trains_end_to_end(how: str) -> None:
    federation = two_input_federation(how)
    assert [part.shape[1] for part in federation[0].train.inputs] == [4, 2]
    result = fedapm.train(federation, TwoInputs, personal=["head"], **(QUICK | {"rounds": 4}))
    assert result.history["train_loss"].iloc[-1] < result.history["train_loss"].iloc[0]
    inputs = federation[0].test.inputs
    assert result.model("0")(*inputs).shape == (len(inputs[0]), 3)


def quantities(column: bool) -> Federation:
    x, _ = blobs(90)
    y = (x @ np.array([0.5, -0.2, 0.1, 0.3]) + 1.0).astype(np.float32)
    return Federation.from_arrays(x, y[:, None] if column else y, np.arange(90) % 3)


def test_quantities_train_with_squared_error_and_have_no_accuracy() -> None:
    federation = quantities(column=True)
    result = fedapm.train(federation, lambda: nn.Linear(4, 1), personal=["bias"], lr=0.01, **QUICK)
    assert {"train_loss", "test_loss"} <= set(result.history.columns)
    assert not {"accuracy", "f1", "auc"} & set(result.history.columns)
    assert result.history["train_loss"].iloc[-1] < result.history["train_loss"].iloc[0]
    client = federation[1]
    by_hand = (result.model(client.id)(*client.test.inputs) - client.test.targets).square().mean().item()
    assert result.per_client.loc[client.id, "test_loss"] == pytest.approx(by_hand, rel=1e-5)
    assert federation.classes == 0


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_quantities_in_a_row_are_never_broadcast_against_outputs_in_a_column() -> None:
    """(n,) against (n, 1) is every target against every output; it must be refused or done right."""
    federation = quantities(column=False)
    options = {"personal": ["bias"], "lr": 0.01} | QUICK
    result = unless_refused(lambda: fedapm.train(federation, lambda: nn.Linear(4, 1), **options))
    if result is not None:
        client = federation[0]
        outputs = result.model(client.id)(*client.test.inputs).reshape(-1)
        by_hand = (outputs - client.test.targets.reshape(-1)).square().mean().item()
        assert result.per_client.loc[client.id, "test_loss"] == pytest.approx(by_hand, rel=1e-5)


def test_arrays_of_other_kinds_become_what_networks_take() -> None:
    x, y = blobs(20)
    made = Federation.from_arrays(x.astype(np.float64).tolist(), y.astype(np.int8), ["a"] * 20)[0].train
    assert made.inputs[0].dtype == torch.float32
    assert made.targets.dtype == torch.int64
    tokens = Federation.from_arrays(np.arange(40).reshape(20, 2), y, ["a"] * 20)[0].train
    assert tokens.inputs[0].dtype == torch.int64


def test_the_users_arrays_are_not_touched() -> None:
    x, y = blobs(60)
    kept = x.copy(), y.copy()
    federation = Federation.from_arrays(x, y, np.arange(60) % 3)
    fedapm.train(federation, two_layers, personal=["head"], **QUICK)
    assert np.array_equal(x, kept[0])
    assert np.array_equal(y, kept[1])


def test_position_by_id_and_by_place() -> None:
    federation = Federation.from_clients({"10": blobs(9), "anna": blobs(9), "0": blobs(9)})
    assert federation.position("anna") == 1
    assert federation.position("0") == 2
    assert federation.position(10) == 0, "a number that is an id means that id"
    assert federation.position(1) == 1, "a number that is no id means the place"
    for unknown in ("bob", 3, -1, "1"):
        with refused(repr(unknown), "10, anna, 0"):
            federation.position(unknown)


def test_two_clients_of_one_id_are_refused() -> None:
    client = Federation.from_clients({"a": blobs(9)})[0]
    with refused("'a'", "its own id"):
        Federation([client, client])


def test_ids_that_are_written_alike_are_refused_rather_than_lost() -> None:
    with refused("'1'"):
        Federation.from_clients({1: blobs(9), "1": blobs(9, seed=1)})


def test_no_clients_are_refused() -> None:
    with refused("at least one client"):
        Federation([])
    with refused("at least one client"):
        Federation.from_clients({})


def test_an_empty_client_is_refused() -> None:
    x, y = blobs(20)
    with refused("client b", "no training data"):
        Federation.from_clients({"a": (x, y), "b": (x[:0], y[:0])})
    with refused("client b", "no training data"):
        Federation.from_clients({"b": (x[:0], y[:0])}, test={"b": (x, y)})


def test_a_client_with_one_sample_is_refused() -> None:
    x, y = blobs(20)
    with refused("client b", "1 sample"):
        Federation.from_arrays(x, y, ["a"] * 19 + ["b"])


def test_a_client_with_one_sample_of_its_own_is_refused_where_it_has_to_be_split() -> None:
    x, y = blobs(20)
    with refused("client b", "1 sample"):
        Federation.from_clients({"a": (x, y), "b": (x[:1], y[:1])})
    Federation.from_clients({"b": (x[:1], y[:1])}, test={"b": (x, y)})


def test_a_partition_that_leaves_a_client_with_too_little_is_refused() -> None:
    x, y = blobs(5)
    with refused("client", "too few"):
        Federation.from_arrays(x, y, IID(4))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_data_that_is_not_finite_is_refused(bad: float) -> None:
    x, y = blobs(20)
    x[7, 2] = bad
    with refused("client b", "NaN or infinite"):
        Federation.from_clients({"a": blobs(9), "b": (x, y)})
    with refused("client a", "test data", "NaN or infinite"):
        Federation.from_clients({"a": blobs(9)}, test={"a": (x, y)})
    target = np.ones(9, np.float32)
    target[0] = bad
    with refused("client a", "NaN or infinite"):
        Federation.from_clients({"a": (blobs(9)[0], target)})


def test_mismatched_lengths_are_refused() -> None:
    x, y = blobs(20)
    with refused("equal lengths", "19", "20"):
        Federation.from_arrays(x, y[:19], ["a"] * 20)
    with refused("equal lengths", "19", "20"):
        Federation.from_clients({"a": (x[:19], y)})
    with refused("20 samples", "18 client ids"):
        Federation.from_arrays(x, y, ["a"] * 18)
    with refused("equal lengths"):
        Federation.from_arrays((x, x[:5]), y, ["a"] * 20)


def test_names_as_inputs_are_refused_in_one_line() -> None:
    _, y = blobs(20)
    with refused("numbers"):
        Federation.from_arrays(np.array(["cat", "dog", "owl"])[y], y, ["a"] * 20)


def test_ids_with_a_gap_are_refused_in_one_line() -> None:
    x, y = blobs(20)
    with refused("id"):
        Federation.from_arrays(x, y, ["a", None] * 10)


@pytest.mark.parametrize("rule", [Dirichlet(3, 1.0, 2), Shards(3)])
def test_label_skew_of_several_quantities_is_refused(rule: Any) -> None:
    x, _ = blobs(60)
    with refused("class"):
        Federation.from_arrays(x, x[:, :2], rule)


def test_a_client_whose_own_test_data_is_empty_has_no_scores() -> None:
    x, y = blobs(20)
    federation = Federation.from_clients({"a": (x, y), "b": (x, y)}, test={"a": (x, y), "b": (x[:0], y[:0])})
    scores = fedapm.train(federation, two_layers, personal=["head"], **QUICK).per_client
    assert scores.loc["b", ["accuracy", "f1", "auc", "test_loss"]].isna().all()
    assert scores.loc["a"].notna().all()
    assert scores["train_loss"].notna().all()


def test_an_empty_list_as_test_data_is_empty_test_data() -> None:
    x, y = blobs(20)
    federation = Federation.from_clients({"a": (x, y), "b": (x, y)}, test={"a": (x, y), "b": (x[:0], [])})
    scores = fedapm.train(federation, two_layers, personal=["head"], **QUICK).per_client
    assert scores["accuracy"].notna().tolist() == [True, False]


def test_classes_are_counted_over_all_clients() -> None:
    x, _ = blobs(20)
    federation = Federation.from_clients({"a": (x, np.arange(20) % 2), "b": (x, np.arange(20) % 2 + 5)})
    assert federation.classes == 7
    assert [c.classes for c in federation.clients] == [2, 2]


def test_validation_is_a_part_of_the_training_data_and_test_data_is_gone() -> None:
    x, y = blobs(200)
    whole = Federation.from_arrays(x, y, IID(4))
    judged = whole.for_validation(0.25, seed=3)
    for before, after in zip(whole.clients, judged.clients, strict=True):
        parts = [{tuple(r) for r in part.inputs[0].tolist()} for part in (after.train, after.test)]
        assert parts[0] | parts[1] == {tuple(r) for r in before.train.inputs[0].tolist()}
        assert not parts[0] & parts[1]
        assert len(after.test) == round(0.25 * len(before.train))
    again = whole.for_validation(0.25, seed=3)
    assert all(torch.equal(a.test.targets, b.test.targets) for a, b in zip(judged.clients, again.clients, strict=True))
    other = whole.for_validation(0.25, seed=4)
    assert rows(other) == rows(judged)
    assert any(
        not torch.equal(a.test.inputs[0], b.test.inputs[0]) for a, b in zip(judged.clients, other.clients, strict=True)
    )


@pytest.mark.parametrize("share", [-0.1, 1.0, 2.0])
def test_a_share_for_validation_outside_its_range_is_refused(share: float) -> None:
    with refused("data.validation", "should be"):
        build.resolve({"data": {"validation": share}})


def test_limited_clients_have_fewer_samples_of_each_part_in_the_same_proportions() -> None:
    x, y = blobs(400)
    whole = Federation.from_arrays(x, y, IID(4), test_fraction=0.5)
    fewer = whole.limited(10, 20, seed=3)
    for before, after in zip(whole.clients, fewer.clients, strict=True):
        for part, count in (("train", 10), ("test", 20)):
            old, new = getattr(before, part), getattr(after, part)
            assert len(new) == count
            assert {tuple(r) for r in new.inputs[0].tolist()} <= {tuple(r) for r in old.inputs[0].tolist()}
            shares = torch.bincount(old.targets) * count / len(old)
            assert (torch.bincount(new.targets, minlength=len(shares)) - shares).abs().max() <= 1
    assert rows(whole.limited(10, 20, seed=3)) == rows(fewer)
    assert rows(whole.limited(10, 20, seed=4)) != rows(fewer)
    mixed = [ClientData(a.id, a.train, b.test) for a, b in zip(fewer.clients, whole.clients, strict=True)]
    assert rows(whole.limited(10, None, seed=3)) == rows(Federation(mixed)), "the limits are drawn independently"


def test_a_limit_above_what_there_is_changes_nothing() -> None:
    x, y = blobs(100)
    whole = Federation.from_arrays(x, y, IID(4))
    assert rows(whole.limited(1000, None, seed=0)) == rows(whole)


def test_settings_limit_training_samples_and_leave_the_test_samples_alone() -> None:
    tables = {"data": {"clients": 5, "test_fraction": 0.4}}
    whole = build.federation(build.resolve(tables).data)
    fewer = build.federation(build.resolve(tables, {"data": {"train_limit": 12}}).data)
    assert {len(c.train) for c in fewer.clients} == {12}
    for a, b in zip(whole.clients, fewer.clients, strict=True):
        assert torch.equal(a.test.inputs[0], b.test.inputs[0])
    judged = build.federation(build.resolve(tables, {"data": {"train_limit": 12, "validation": 0.25}}).data)
    assert {(len(c.train), len(c.test)) for c in judged.clients} == {(9, 3)}


@pytest.mark.parametrize("key", ["train_limit", "test_limit", "samples", "feature_dim"])
def test_limits_below_one_are_refused(key: str) -> None:
    with refused(f"data.{key}", "greater than 0"):
        build.resolve({"data": {key: 0}})


def test_fewer_samples_are_among_more_whatever_the_seed() -> None:
    def positions(samples: int, seed: int) -> set[int]:
        data = build.resolve({"data": {"samples": samples, "clients": 4, "partition": "iid", "seed": seed}}).data
        source, rule = build.source(data), build.rule(data)
        clients = Everything().index_federation(source, rule, test_fraction=0.5, seed=data.seed).clients
        return {int(k) for c in clients for part in (c.train, c.test) for k in part.inputs[0]}

    assert len(positions(100, 0)) == 100
    assert positions(100, 0) < positions(300, 1)
    assert positions(2000, 0) == set(range(1000)), "there are no more"


def test_a_run_on_fewer_digits() -> None:
    data = build.resolve({"data": {"samples": 600, "clients": 5, "concentration": 100.0}}).data
    clients = build.federation(data).clients
    assert sum(len(c.train) + len(c.test) for c in clients) == 600
    indexed = data_set("digits").index_federation(build.source(data), build.rule(data), test_fraction=0.2, seed=0)
    for a, b in zip(clients, indexed.clients, strict=True):
        assert torch.equal(a.train.targets, b.train.targets)


def test_settings_can_ask_for_validation_and_for_clients_that_overlap() -> None:
    settings = build.resolve({"data": {"validation": 0.2, "partition": "overlapping", "clients": 5}}).data
    clients = build.federation(settings)
    assert {len(c.train) + len(c.test) for c in clients.clients} == {round(0.8 * (1797 // 5))}


X, Y = np.random.default_rng(0).normal(size=(12, 3)), np.arange(12) % 2


@pytest.mark.parametrize("kind", ["float16", ">f4", ">f8", "longdouble", "float64"])
def test_floats_of_every_length_and_order_are_float32(kind: str) -> None:
    made = Federation.from_arrays(X.astype(kind), Y.astype(">i8"), np.arange(12) % 2)
    inputs = made[0].train.inputs[0]
    assert inputs.dtype == torch.float32
    rows = {tuple(row) for row in X.astype(kind).astype(np.float32).tolist()}
    assert {tuple(row) for row in inputs.tolist()} <= rows
    assert made[0].train.targets.dtype == torch.int64


def test_views_of_arrays_are_copied() -> None:
    made = Federation.from_arrays(X[::-1], Y, np.arange(12) % 2)
    assert made[0].train.inputs[0].is_contiguous()


@pytest.mark.parametrize(
    ("x", "says"),
    [
        ([[1, 2], [3]] * 6, "differ in length"),
        (np.ma.masked_less(X, 0), "masked"),
        (np.float32(3), "single number"),
        (torch.tensor(X).to_sparse(), "sparse"),
        (torch.empty(12, 3, device="meta"), "sparse, quantized or empty"),
        (np.array(["a"] * 12), "must be numbers"),
    ],
)
def test_data_that_is_no_array_of_numbers_is_one_sentence(x: object, says: str) -> None:
    with refused(says):
        Federation.from_arrays(x, Y, np.arange(12) % 2)


@pytest.mark.parametrize(
    "ids", [[float("nan")] * 12, [1.0, float("nan")] * 6, np.array(["NaT"] * 12, "M8[s]"), [None, 1] * 6]
)
def test_ids_that_are_none_are_one_sentence(ids: object) -> None:
    with refused("client ids"):
        Federation.from_arrays(X, Y, ids)
    with refused("no id of a client"):
        Federation.from_clients({float("nan"): (X, Y)})


def test_the_digest_knows_every_sample_and_id_but_not_their_order_in_memory() -> None:
    clients = {"a": (X[:6], Y[:6]), "b": (X[6:], Y[6:])}
    one = Federation.from_clients(clients).digest()
    assert one == Federation.from_clients({k: (np.asfortranarray(x), y) for k, (x, y) in clients.items()}).digest()
    changed = X.copy()
    changed[11, 2] += 1e-3
    others = [
        Federation.from_clients({"a": (X[:6], Y[:6]), "c": (X[6:], Y[6:])}),
        Federation.from_clients({"a": (X[:6], Y[:6]), "b": (changed[6:], Y[6:])}),
        Federation.from_clients({"a": (X[:6], Y[:6]), "b": (X[6:], 1 - Y[6:])}),
    ]
    assert len({one, *(other.digest() for other in others)}) == 4


def test_pictures_are_rearranged_in_place_and_other_orders_are_copies():
    pictures = torch.randn(6, 3, 4, 4)
    parts = [Samples((part,), torch.arange(len(part))) for part in (pictures, pictures[:2])]
    clients = Federation([ClientData("a", *parts)])
    before = clients.digest()
    assert clients.with_memory_format(torch.channels_last) is clients
    there = clients[0].train.inputs[0]
    assert there.is_contiguous(memory_format=torch.channels_last)
    assert there.equal(pictures)
    assert pictures.is_contiguous()
    clients._digest = None
    assert clients.digest() == before
    other = clients.with_memory_format(torch.contiguous_format)
    assert other is not clients
    assert other[0].train.inputs[0].is_contiguous()
    assert there.is_contiguous(memory_format=torch.channels_last)
