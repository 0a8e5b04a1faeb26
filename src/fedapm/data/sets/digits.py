"""The bundled data set: handwritten digits at twenty sites whose data differ.

The 1,797 images come with scikit-learn (Alpaydin and Kaynak 1998), so nothing is downloaded. Each site

- has its own proportions of the ten classes (Dirichlet label skew),
- has its own scanner (contrast and brightness), and
- has its own code table: two pairs of classes are swapped, as happens where categories are numbered locally.

Sites benefit from sharing what the images look like, because each has only about seventy of them. They cannot share the
codes: no single model is right at two sites with different tables.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedapm.core.random import numpy_generator
from fedapm.data.dataset import DataSet, Pool, Source, sample_order
from fedapm.data.federation import Federation
from fedapm.data.partition import Natural, Partitioner, PartitionRule
from fedapm.errors import FedapmError

SWAPPED_PAIRS = 2
CONTRAST = (0.7, 1.3)
BRIGHTNESS = (-0.15, 0.15)


class Digits(DataSet):
    """The bundled data set."""

    name = "digits"
    about = "1,797 handwritten digits at 20 sites with scanners and code tables of their own; bundled"
    defaults = {
        "data": {"concentration": 2.0, "minimum": 20},
        "model": {"name": "digits", "preset": "output"},
        "solver": {"lr": 0.2, "batch_size": 10},
    }

    def read(self, source: Source) -> Pool:
        """The images and their digits, before sites change them."""
        del source
        x, y = images()
        classes = tuple(map(str, range(10)))
        return Pool(torch.from_numpy(y), classes, ("image",), inputs=(torch.from_numpy(x),))

    def federation(self, source: Source, rule: PartitionRule, *, test_fraction: float, seed: int) -> Federation:
        """Distribute the images over sites, as each site scans and codes them."""
        return federation(_check_rule(rule), test_fraction=test_fraction, seed=seed, samples=source.samples)

    def index_federation(self, source: Source, rule: PartitionRule, *, test_fraction: float, seed: int) -> Federation:
        """The same sites with positions instead of images; the classes are the site's codes."""
        check = _check_rule(rule)
        return federation(check, test_fraction=test_fraction, seed=seed, positions=True, samples=source.samples)


def _check_rule(rule: PartitionRule) -> Partitioner:
    if isinstance(rule, Natural):
        raise FedapmError("the samples of digits have no owner; choose another data.partition.")
    return rule


def images() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """All images, with pixels from 0 to 1, and their digits."""
    table = _table()
    return (table[:, :-1] / 16).astype(np.float32), table[:, -1].astype(np.int64)


@cache
def _table() -> np.ndarray[Any, Any]:
    """One row per image: its pixels and its digit."""
    package = importlib.util.find_spec("sklearn")
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        # importing scikit-learn takes more than a second, reading the file does not
        if (path := Path(folder, "datasets", "data", "digits.csv.gz")).is_file():
            return np.loadtxt(path, delimiter=",")
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    return np.column_stack([pixels, digits])


def federation(
    partitioner: Partitioner,
    *,
    test_fraction: float,
    seed: int,
    shift: bool = True,
    positions: bool = False,
    samples: int | None = None,
) -> Federation:
    """Distribute the digits over sites.

    Args:
        partitioner: Which site gets which image.
        test_fraction: The share of each site's images that is held out for testing.
        seed: Fixes the partition, the sites' scanners and codes, and the test split.
        shift: Whether sites have their own scanners and codes, besides the label skew.
        positions: Whether an input is the image's position instead of the image.
        samples: At most so many images are used; all of them if None.
    """
    x, y = images()
    if samples is not None and samples < len(y):
        chosen = np.sort(sample_order(Digits.name, len(y))[:samples])
        x, y = x[chosen], y[chosen]
    parts = partitioner(y, numpy_generator(seed, "partition"))
    sites = {}
    for site, index in enumerate(parts):
        values, codes = x[index], y[index]
        if shift:
            stream = numpy_generator(seed, "site", site)
            values = scan(values, stream)
            codes = code_table(stream)[codes]
        sites[site] = (index if positions else values, codes)
    clients = Federation.from_clients(sites, test_fraction=test_fraction, seed=seed).clients
    return Federation(clients, "digits", modalities=("image",))


def scan(values: np.ndarray[Any, Any], stream: np.random.Generator) -> np.ndarray[Any, Any]:
    """The images as a site's scanner produces them."""
    contrast, brightness = stream.uniform(*CONTRAST), stream.uniform(*BRIGHTNESS)
    return (contrast * values + brightness).astype(np.float32)


def code_table(stream: np.random.Generator) -> np.ndarray[Any, Any]:
    """The code of each digit at a site: the digit itself, except for two swapped pairs."""
    codes = np.arange(10)
    pairs = stream.permutation(10)[: 2 * SWAPPED_PAIRS].reshape(SWAPPED_PAIRS, 2)
    for a, b in pairs:
        codes[[a, b]] = codes[[b, a]]
    return codes
