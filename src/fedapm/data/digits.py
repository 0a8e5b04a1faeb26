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

from typing import Any

import numpy as np

from fedapm.data.federation import Federation
from fedapm.data.partition import Partitioner
from fedapm.streams import numpy_stream

EXCHANGED_PAIRS = 2
CONTRAST = (0.7, 1.3)
BRIGHTNESS = (-0.15, 0.15)


def federation(partitioner: Partitioner, *, test_fraction: float, seed: int, shift: bool = True) -> Federation:
    """The digits dealt out to sites; without the shift only the label skew is left."""
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    x, y = (pixels / 16).astype(np.float32), digits.astype(np.int64)
    parts = partitioner(y, numpy_stream(seed, "partition"))
    sites = {}
    for site, index in enumerate(parts):
        values, codes = x[index], y[index]
        if shift:
            stream = numpy_stream(seed, "site", site)
            values = scanned(values, stream)
            codes = code_table(stream)[codes]
        sites[site] = (values, codes)
    return Federation.from_clients(sites, test_fraction=test_fraction, seed=seed, name="digits")


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
