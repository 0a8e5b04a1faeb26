"""The bundled federation is what its description says, whoever runs it."""

from __future__ import annotations

import socket

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedapm import Federation
from fedapm.core.random import numpy_generator
from fedapm.data import IID
from fedapm.data.sets import digits
from fedapm.experiments.build import federation, plan, resolve
from fedapm.experiments.settings import DataSettings


@pytest.fixture(scope="module")
def bundled() -> Federation:
    return federation(resolve({}).data)


def test_twenty_sites_share_every_digit_once(bundled: Federation) -> None:
    assert len(bundled) == 20
    assert bundled.classes == 10
    assert sum(len(c.train) + len(c.test) for c in bundled.clients) == 1797


def test_the_pictures_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, shown = load_digits(return_X_y=True)
    read = digits.images()
    # and the same where its files are elsewhere
    monkeypatch.setattr(digits.importlib.util, "find_spec", lambda _: None)
    digits._table.cache_clear()
    for x, y in (read, digits.images()):
        assert np.array_equal(x, (pixels / 16).astype(np.float32))
        assert np.array_equal(y, shown)


def test_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    federation(resolve({}).data)


def test_without_the_shift_the_sites_hold_the_pictures_themselves() -> None:
    plain = digits.federation(IID(7), test_fraction=0.25, seed=3, shift=False)
    pixels, labels = load_digits(return_X_y=True)
    expected = sorted((*row, label) for row, label in zip((pixels / 16).tolist(), labels.tolist(), strict=True))
    found = sorted(
        (*row, label)
        for client in plain.clients
        for part in (client.train, client.test)
        for row, label in zip(part.inputs[0].tolist(), part.targets.tolist(), strict=True)
    )
    assert found == expected


@pytest.mark.parametrize("site", range(20))
def test_a_code_table_exchanges_exactly_two_pairs(site: int) -> None:
    codes = digits.code_table(numpy_generator(0, "site", site))
    moved = [d for d in range(10) if codes[d] != d]
    assert len(moved) == 4
    assert all(codes[codes[d]] == d for d in range(10)), "every exchange goes both ways"


def test_sites_do_not_agree_on_their_codes() -> None:
    tables = {tuple(digits.code_table(numpy_generator(0, "site", site))) for site in range(20)}
    assert len(tables) > 15


def test_a_scanner_changes_contrast_and_brightness_and_nothing_else() -> None:
    pictures = np.random.default_rng(0).random((6, 64)).astype(np.float32)
    seen = digits.scan(pictures, numpy_generator(0, "site", 3))
    slope, intercept = np.polyfit(pictures.reshape(-1), seen.reshape(-1), 1)
    assert 0.7 <= slope <= 1.3
    assert -0.15 <= intercept <= 0.15
    assert np.allclose(seen, slope * pictures + intercept, atol=1e-6)


def test_every_site_has_few_pictures_and_a_skew_of_its_own(bundled: Federation) -> None:
    shares = []
    for client in bundled.clients:
        assert len(client.train) + len(client.test) >= 20
        counts = np.bincount(torch.cat([client.train.targets, client.test.targets]).numpy(), minlength=10)
        shares.append(counts / counts.sum())
    assert all(share.max() > 0.15 for share in shares), "ten equal classes would have a tenth each"
    gaps = [np.abs(a - b).sum() / 2 for k, a in enumerate(shares) for b in shares[:k]]
    assert np.mean(gaps) > 0.3


def fingerprint(clients: Federation) -> list[tuple[float, float, list[int]]]:
    return [
        (c.train.inputs[0].sum().item(), c.test.inputs[0].sum().item(), c.test.targets.tolist())
        for c in clients.clients
    ]


def test_every_run_seed_has_the_same_sites(bundled: Federation) -> None:
    runs = [plan(resolve({"engine": {"seed": seed}})) for seed in (0, 1)]
    assert all(fingerprint(run.problem.federation) == fingerprint(bundled) for run in runs)
    assert not runs[0].problem.u0.equal(runs[1].problem.u0), "the run seed decides the start"


def test_another_data_seed_has_other_sites(bundled: Federation) -> None:
    assert fingerprint(federation(resolve({"data": {"seed": 1}}).data)) != fingerprint(bundled)


@pytest.mark.parametrize("partition", ["dirichlet", "iid", "shards"])
def test_every_partition_works(partition: str) -> None:
    made = federation(DataSettings(partition=partition, clients=8))
    assert len(made) == 8
    assert sum(len(c.train) + len(c.test) for c in made.clients) == 1797
