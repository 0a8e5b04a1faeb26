"""Clients that are loaded when they are needed: the same runs as in memory, and nobody else is touched."""

import sqlite3
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from fedapm import Federation, train
from fedapm.data.lazy.cache import ClientCache
from fedapm.experiments import build, inspect
from fedapm.experiments.settings import DataSettings
from tests.helpers.unit import blobs, refused, two_layers

IDS = ["a", "b", "c", "d", "e", "f"]
LOOK = {"rounds": 3, "epochs": 1, "batch_size": 8, "count": 2, "progress": False, "personal": ["head"]}


def arrays(client):
    """A client's own blobs, of a size of its own."""
    number = IDS.index(client)
    return blobs(20 + 3 * number, seed=number)


def in_memory(**options):
    return Federation.from_clients({client: arrays(client) for client in IDS}, **options)


def table():
    """All clients in one table, the last one first."""
    parts = []
    for client in reversed(IDS):
        x, y = arrays(client)
        parts.append(pd.DataFrame(x, columns=["p", "q", "r", "s"]).assign(y=y, client=client))
    return pd.concat(parts, ignore_index=True)


def same(one, other):
    assert list(one.ids) == list(other.ids)
    assert one.classes == other.classes
    assert one.class_names == other.class_names
    for a, b in zip(one.clients, other.clients, strict=True):
        for part, its in ((a.train, b.train), (a.test, b.test)):
            assert all(p.equal(q) for p, q in zip(part.inputs, its.inputs, strict=True))
            assert part.targets.equal(its.targets)


@pytest.mark.parametrize("engine", ["sequential", "processes", "vectorized"])
@pytest.mark.parametrize("memory", [1 << 28, 3000])
def test_a_run_is_that_of_the_same_data_in_memory(engine, memory):
    sizes = [len(arrays(client)[1]) for client in IDS]
    lazy = Federation.lazy(IDS, arrays, sizes=sizes, classes=3, memory=memory)
    same(lazy.for_validation(0.3, 1).limited(9, 4, 2), in_memory().for_validation(0.3, 1).limited(9, 4, 2))
    with_sizes = {"weights": "samples", "engine": engine, "final_personal_epochs": 1, **LOOK}
    whole, made = (train(clients, two_layers, validation=0.2, **with_sizes) for clients in (in_memory(), lazy))
    assert made.records == whole.records
    for client in IDS:
        assert all(t.equal(whole.state_dict(client)[n]) for n, t in made.state_dict(client).items())


def test_sizes_are_those_of_the_data_and_follow_what_is_done_to_it():
    sizes = [len(arrays(client)[1]) for client in IDS]
    lazy = Federation.lazy(IDS, arrays, sizes=sizes, classes=3)
    for change in (
        lambda f: f,
        lambda f: f.for_validation(0.3, 0),
        lambda f: f.limited(7, None, 0),
        lambda f: f.first(2),
    ):
        assert list(change(lazy).sizes) == list(change(in_memory()).sizes)
    assert lazy.hold_out(["b"]).unseen_ids == ("b",)
    assert list(lazy.hold_out(["b"]).sizes) == list(in_memory().hold_out(["b"]).sizes)
    assert Federation.lazy(IDS, arrays, classes=3).sizes is None


def test_only_those_who_take_part_are_loaded():
    """Of 100,000 clients a run loads those it needs, with the data of the next round read while one is under way."""
    loaded = []

    def load(client):
        loaded.append((client, threading.current_thread().name))
        stream = np.random.default_rng(client)
        return stream.normal(size=(10, 4)).astype("f"), np.arange(10) % 3

    clients = Federation.lazy(10**5, load, classes=3)
    made = train(clients, two_layers, engine="vectorized", evaluate_clients=5, **(LOOK | {"count": 20}))
    taken = {k for record in made.records for k in record["selected"]}
    others = {k for k, _ in loaded} - taken - set(made.spec.problem.evaluated)
    assert len(taken) > 40
    assert len(others) < 120  # tried before the first round, and for the mean size
    assert sum(name == "fedapm reads ahead" for _, name in loaded) > 20
    assert len(made.per_client) == 5
    assert made.state_dict("99999").keys() == made.state_dict(0).keys()


def test_the_cache_stays_within_its_bytes_and_reading_ahead_within_half():
    clients = Federation.lazy(30, lambda k: blobs(40, seed=k), classes=3).clients
    size = clients[0].nbytes
    cache = ClientCache(lambda some: [clients[k] for k in some], 6 * size)
    cache.read_ahead(range(30))
    cache.settle()
    assert 2 * size <= cache.bytes <= 4 * size
    for k in range(30):
        assert cache.get(k) is clients[k] or cache.get(k).train.targets.equal(clients[k].train.targets)
        assert cache.bytes <= 6 * size
    small = ClientCache(lambda some: [clients[k] for k in some], size - 1)
    assert small.get(3).id == "3"
    assert small.bytes == 0


def test_small_clients_are_read_ahead_together_and_a_broken_one_is_left_to_who_asks():
    broken = {
        7: (np.zeros((5, 4), np.float32), [0, 1, 2, 3, 0]),
        11: (np.full((5, 4), np.nan), [0, 1, 2, 0, 1]),
        15: (np.zeros((5, 3), np.float32), [0, 1, 2, 0, 1]),
        16: (np.zeros((5, 4), np.float32), [0, -1, 2, 0, 1]),
    }
    asked = []

    def read(k):
        asked.append(k)
        if k == 3:
            raise OSError("server is away")
        return broken.get(k) or blobs(20, seed=k)

    lazy = Federation.lazy(20, read, classes=3).clients
    alone = [k for k in range(20) if k not in (3, *broken)]
    lazy.read_ahead(range(20))
    lazy.settle()
    read_before = len(asked)
    apart = Federation.lazy(20, lambda k: blobs(20, seed=k), classes=3).clients
    for k in alone:
        assert lazy[k].train.targets.equal(apart[k].train.targets)
        assert lazy[k].test.inputs[0].equal(apart[k].test.inputs[0])
    assert len(asked) == read_before
    for k, words in {3: "server is away", 7: "the class 3", 11: "NaN", 15: "(3,)", 16: "the class -1"}.items():
        with refused(words):
            lazy[k]


def test_who_asks_does_not_wait_for_all_that_is_read_ahead():
    order = []

    def load(some):
        order.extend(some)
        time.sleep(0.005 * len(some))
        return [client for _ in some]

    client = Federation.lazy(1, lambda k: blobs(), classes=3)[0]
    cache = ClientCache(load, 1 << 20)
    cache.read_ahead(range(1, 20))
    cache.get(50)
    assert order.index(50) < 5
    cache.read_ahead(())
    cache.settle()


def test_folders_of_files(tmp_path):
    for client in IDS:
        x, y = arrays(client)
        np.savez(tmp_path / f"{client}.npz", x=x, y=y)
    same(Federation.lazy(tmp_path), in_memory())
    assert list(Federation.lazy(tmp_path).sizes) == list(in_memory().sizes)
    named = Federation.lazy(str(tmp_path), class_names=["0", "1", "2"])
    assert named.sizes is None  # nothing but the first file was read
    (tmp_path / "c.npz").unlink()
    with refused("client c", "does not exist"):
        named[2]


@pytest.mark.parametrize("marked", [False, True])
def test_tables_with_a_column_of_clients(tmp_path, marked):
    frame = table()
    frame["y"] = frame["y"].map({0: "low", 1: "mid", 2: "top"})
    options = {}
    if marked:
        frame["held out"] = np.arange(len(frame)) % 4 == 0
        options = {"test": "held out"}
    whole = Federation.from_dataframe(frame, **options)
    frame.to_parquet(tmp_path / "all.parquet", row_group_size=25)
    frame.to_feather(tmp_path / "all.feather", compression="uncompressed")
    with sqlite3.connect(tmp_path / "all.db") as database:
        frame.to_sql("samples", database, index=False)
        with refused("no index on 'client'", "CREATE INDEX"):
            Federation.lazy(tmp_path / "all.db", **options)
        database.execute("CREATE INDEX by_client ON samples (client)")
    database.close()
    for name in ("all.parquet", "all.feather", "all.db"):
        lazy = Federation.lazy(tmp_path / name, **options)
        same(lazy, whole)
        assert list(lazy.sizes) == list(whole.sizes)
        assert lazy.labels == whole.labels
    frame.sample(frac=1, random_state=0).to_parquet(tmp_path / "mixed.parquet")
    with refused("mixed.parquet", "sort"):
        Federation.lazy(tmp_path / "mixed.parquet", **options)


def test_bytes_in_a_database_are_numbers(tmp_path):
    with sqlite3.connect(tmp_path / "b.sqlite") as database:
        database.execute("CREATE TABLE s (client INTEGER, y REAL, x BLOB)")
        database.execute("CREATE INDEX c ON s (client)")
        rows = [(k // 4, k / 2, np.arange(3, dtype="<f4").tobytes()) for k in range(12)]
        database.executemany("INSERT INTO s VALUES (?, ?, ?)", rows)
    database.close()
    lazy = Federation.lazy(tmp_path / "b.sqlite")
    assert lazy.classes == 0
    assert lazy[2].train.inputs[0][0].tolist() == [0, 1, 2]
    assert lazy.position("2") == 2


def test_datasets_of_other_libraries():
    datasets = pytest.importorskip("datasets")
    whole = Federation.from_dataframe(table())
    frame = table().rename(columns={"y": "label"})
    same(Federation.lazy(datasets.Dataset.from_pandas(frame), client="client", x=["p", "q", "r", "s"]), whole)
    parts = {c: torch.utils.data.TensorDataset(*map(torch.as_tensor, arrays(c))) for c in IDS}
    same(Federation.lazy(parts, classes=3), Federation.from_datasets(parts))

    class Partitioner:
        num_partitions = 6

        def load_partition(self, k):
            return datasets.Dataset.from_pandas(frame[frame.client == IDS[k]][["p", "q", "r", "s", "label"]])

    same(Federation.lazy(Partitioner(), classes=3), Federation.from_datasets(Partitioner()))


def test_what_is_wrong_with_a_client_is_said_in_one_line_that_names_it():
    def load(client):
        x, y = arrays(client)
        if client == "b":
            raise ConnectionError("the server is away")
        return {"c": (x[:, :2], y), "d": (x, y + 7), "e": (x * np.nan, y), "f": x}.get(client, (x, y))

    lazy = Federation.lazy(IDS, load, classes=3)
    for position, words in enumerate(
        [["server is away"], ["(2,)", "client a"], ["9", "3 classes"], ["NaN"], ["pair"]], 1
    ):
        with refused(f"client {IDS[position]}", *words):
            lazy[position]
    with refused("client a", "23", "announced"):
        Federation.lazy(IDS, arrays, sizes=[23] * 6, classes=3)[0]
    with refused("how many classes"):
        Federation.lazy(IDS, arrays)
    with refused("'b'"):
        Federation.lazy(["a", "b", "b"], arrays, classes=3)
    with refused("engine.weights", "sizes"):
        train(Federation.lazy(IDS, arrays, classes=3), two_layers, weights="samples", **LOOK)
    with refused("function without arguments"):
        train(Federation.lazy(IDS, arrays, classes=3), lambda client: two_layers(), **LOOK)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_run_goes_on_and_notices_other_data(tmp_path, engine):
    lazy = partial(Federation.lazy, IDS, arrays, classes=3)
    straight = train(lazy(), two_layers, engine=engine, out=tmp_path / "whole", **LOOK)
    train(lazy(), two_layers, engine=engine, out=tmp_path / "run", **(LOOK | {"rounds": 2}))
    again = train(lazy(), two_layers, engine=engine, out=tmp_path / "run", resume=True, **LOOK)
    assert again.records == straight.records
    other = Federation.lazy(IDS, lambda client: (arrays(client)[0] + 1, arrays(client)[1]), classes=3)
    with refused("other data"):
        train(other, two_layers, engine=engine, out=tmp_path / "run", resume=True, **LOOK)


def test_nobody_reads_ahead_in_a_process_that_forks_others():
    threads = []

    def load(client):
        threads.append(threading.current_thread().name)
        return arrays(client)

    lazy = Federation.lazy(IDS, load, classes=3)
    train(lazy, two_layers, engine="processes", workers=2, evaluate_clients=1, **LOOK)
    assert set(threads) == {"MainThread"}


def test_experiment_files_name_lazy_data(tmp_path):
    table().to_parquet(tmp_path / "people.parquet")
    named = {"file": str(tmp_path / "people.parquet"), "test_fraction": 0.25, "validation": 0.2}
    whole, lazy = (build.resolve({"data": named | more}).data for more in ({}, {"lazy": True, "memory": 1}))
    same(build.federation(lazy), build.federation(whole))
    assert build.federation(lazy).clients.memory == 1 << 20
    found = inspect.inspect(replace(lazy, validation=0.0))
    assert found.as_dict()["population"] == len(IDS)
    assert found.train == inspect.inspect(replace(whole, validation=0.0)).train
    with refused("has changed", "people.parquet"):
        table()[:-1].to_parquet(tmp_path / "people.parquet")
        build.federation(lazy)
    with refused("data.partition"):
        build.resolve({"data": {"file": "people.db", "partition": "dirichlet"}})
    with refused("data.lazy", "data.file"):
        build.resolve({"data": {"name": "digits", "lazy": True}})


def test_an_inspection_of_many_clients_is_of_some(monkeypatch):
    clients = Federation.lazy(500, lambda k: blobs(20, seed=k), classes=3)
    monkeypatch.setattr(build, "counted", lambda data: clients)
    found = inspect.inspect(DataSettings(name="people", factory="people:load", partition="natural"))
    assert found.who == "50 of 500 clients"
    assert found.samples == 50 * 20
