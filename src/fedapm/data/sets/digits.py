"""The bundled federation: handwritten digits read at twenty sites that do not quite agree.

The 1,797 pictures come with scikit-learn (Alpaydin and Kaynak 1998), so nothing is downloaded. Each site

- sees the ten classes in proportions of its own (Dirichlet label skew),
- has a scanner of its own (contrast and brightness), and
- keeps a code table of its own: two pairs of classes are exchanged against the other sites', as happens where
  categories were numbered locally.

The pictures are worth sharing, because a site has about seventy of them to learn from. The codes are not: no single
model can be right at two sites whose tables differ.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedapm.core.random import numpy_generator
from fedapm.data.dataset import DataSet, Pool, Source
from fedapm.data.federation import Federation
from fedapm.data.partition import Natural, Partitioner, PartitionRule
from fedapm.errors import FedapmError

EXCHANGED_PAIRS = 2
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
        """The pictures and what they show, before sites change them."""
        del source
        x, y = pictures()
        classes = tuple(map(str, range(10)))
        return Pool(torch.from_numpy(y), classes, ("image",), inputs=(torch.from_numpy(x),))

    def federation(self, source: Source, rule: PartitionRule, *, test_fraction: float, seed: int) -> Federation:
        """The pictures dealt out to sites, as each site reads and codes them."""
        del source
        return federation(_dealing(rule), test_fraction=test_fraction, seed=seed)

    def index_federation(self, source: Source, rule: PartitionRule, *, test_fraction: float, seed: int) -> Federation:
        """The sites with positions instead of pictures; what a picture counts as depends on the site's codes."""
        del source
        return federation(_dealing(rule), test_fraction=test_fraction, seed=seed, positions=True)


def _dealing(rule: PartitionRule) -> Partitioner:
    if isinstance(rule, Natural):
        raise FedapmError("the samples of digits have no owner; choose another data.partition.")
    return rule


def pictures() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """All pictures, with pixels between 0 and 1, and the digits they show."""
    table = _table()
    return (table[:, :-1] / 16).astype(np.float32), table[:, -1].astype(np.int64)


@cache
def _table() -> np.ndarray[Any, Any]:
    """A row a picture: its pixels, and its digit."""
    found = importlib.util.find_spec("sklearn")
    for place in (found.submodule_search_locations or ()) if found is not None else ():
        # reading the file takes a moment, importing scikit-learn more than a second
        if (path := Path(place, "datasets", "data", "digits.csv.gz")).is_file():
            return np.loadtxt(path, delimiter=",")
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    return np.column_stack([pixels, digits])


def federation(
    partitioner: Partitioner, *, test_fraction: float, seed: int, shift: bool = True, positions: bool = False
) -> Federation:
    """The digits dealt out to sites; without the shift only the label skew is left.

    With ``positions`` a sample is its picture's position among all of them, and not the picture.
    """
    x, y = pictures()
    parts = partitioner(y, numpy_generator(seed, "partition"))
    sites = {}
    for site, index in enumerate(parts):
        values, codes = x[index], y[index]
        if shift:
            stream = numpy_generator(seed, "site", site)
            values = scanned(values, stream)
            codes = code_table(stream)[codes]
        sites[site] = (index if positions else values, codes)
    made = Federation.from_clients(sites, test_fraction=test_fraction, seed=seed, name="digits")
    return Federation(made.clients, made.name, modalities=("image",))


def scanned(values: np.ndarray[Any, Any], stream: np.random.Generator) -> np.ndarray[Any, Any]:
    """The pictures as a site's scanner gives them."""
    contrast, brightness = stream.uniform(*CONTRAST), stream.uniform(*BRIGHTNESS)
    return (contrast * values + brightness).astype(np.float32)


def code_table(stream: np.random.Generator) -> np.ndarray[Any, Any]:
    """The code of each digit at a site: the digit itself but for two exchanged pairs."""
    codes = np.arange(10)
    chosen = stream.permutation(10)[: 2 * EXCHANGED_PAIRS].reshape(EXCHANGED_PAIRS, 2)
    for a, b in chosen:
        codes[[a, b]] = codes[[b, a]]
    return codes
