"""Samples of a user's own files dealt out to clients."""

from __future__ import annotations

import numpy as np

from fedapm.core.random import numpy_generator
from fedapm.data.arrays import LabelCode, find_label_code
from fedapm.data.dataset import sample_order
from fedapm.data.federation import Federation
from fedapm.data.own import OwnData
from fedapm.data.partition import Natural, PartitionRule
from fedapm.errors import FedapmError


def deal_out(
    data: OwnData, rule: PartitionRule, *, test_fraction: float, seed: int, name: str, samples: int | None = None
) -> Federation:
    """Distribute the samples of a file over clients.

    Args:
        data: The samples.
        rule: Which client gets which sample.
        test_fraction: The share of each client's samples that is held out, where the data says nothing of it.
        seed: Fixes the partition and the test split.
        name: The name of the data, for reports.
        samples: At most so many samples are used; all if None.
    """
    if samples is not None and samples < len(data):
        data = data.at(np.sort(sample_order(name, len(data))[:samples]))
    code = find_label_code([data.y], data.classes)
    targets = data.y if code is None else code.encode(data.y)
    if isinstance(rule, Natural):
        if data.client is None:
            raise FedapmError(
                f"{name} does not say who has which sample: it has no 'client'; name it in data.columns, or "
                'simulate clients, as in data.partition = "dirichlet".'
            )
        parts = rule(data.client)
    else:
        drawn = rule(targets, numpy_generator(seed, "partition"))
        parts = {str(k): positions for k, positions in enumerate(drawn)}
    return Federation.from_parts(
        data.inputs,
        targets,
        parts,
        groups=data.group,
        time=data.time,
        test=data.test,
        test_fraction=test_fraction,
        seed=seed,
        name=name,
        class_names=data.classes or (code.names if code is not None else ()),
        labels=code.values if isinstance(code, LabelCode) else (),
    )
