"""Which layers are personal, and how large a part of the network that is."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedapm.algorithms import METHODS, PRESETS
from fedapm.report.comparison.series import Group
from fedapm.report.numbers import listed, value_range
from fedapm.report.page import Section
from fedapm.report.results import Results

PARTS = ("personal", "shared", "frozen")
MOST_NAMES = {"personal": 12, "shared": 12, "frozen": 3}


@dataclass(frozen=True)
class Layers:
    """The layers of one method's network."""

    label: str
    series: str
    model: str
    share: str
    """How much of the network is personal."""
    names: dict[str, str]
    """The layers of each part."""
    beside: str
    """What a client keeps beside the network, as its method says; empty for most."""
    counts: dict[str, str]
    """The numbers of parameters of each part, a range where clients differ."""
    sent: str
    """The bytes of what is shared against those of the whole network; empty where nothing is frozen."""


def layer_names(parameters: Iterable[str]) -> list[str]:
    """Parameters by the layers they belong to, each once: ``fc.weight`` and ``fc.bias`` are ``fc``."""
    return list(dict.fromkeys(name.rpartition(".")[0] or name for name in parameters))


def section(results: Results) -> Section | None:
    """The section; None where no run says what its network is."""
    first = {model.group.label: model.name for model in reversed(results.series)}
    rows = [_layers(group, first.get(group.label, "")) for group in results.groups if _known(group)]
    if not rows:
        return None
    frozen = any(row.names["frozen"] for row in rows)
    return Section("layers", "Personal layers", "layers.html.j2", {"results": results, "rows": rows, "frozen": frozen})


def _known(group: Group) -> bool:
    return bool(group.runs[0].info.get("split")) and bool(group.runs[0].info.get("parameters"))


def _layers(group: Group, series: str) -> Layers:
    split = group.runs[0].info["split"]
    counts = [run.info.get("parameters") or {} for run in group.runs]
    totals = {part: _values(counts, part) for part in PARTS}
    # a method may keep a whole model beside the shared one, of which the network's split knows nothing
    kind = (METHODS | PRESETS).get(group.method)
    beside = kind.personal if kind is not None and kind.personal_field and not split.get("personal") else ""
    means = {part: statistics.fmean(values) if values else 0.0 for part, values in totals.items()}
    whole = sum(means.values())
    return Layers(
        group.label,
        series,
        ", ".join(sorted({str(run.info.get("model") or "–") for run in group.runs})),
        _percent(means["personal"] / whole) if whole and not beside else "–",
        {part: listed(layer_names(split.get(part, [])), MOST_NAMES[part]) for part in PARTS},
        beside,
        {part: value_range(values) if values else "–" for part, values in totals.items()},
        _sent(4 * means["shared"], 4 * whole) if means["frozen"] else "",
    )


def _sent(shared: float, whole: float) -> str:
    """What is sent where a part of the network is frozen, in bytes of float32."""
    part = f", 1/{whole / shared:,.0f}" if shared else ""
    return f"{shared:,.0f} of {whole:,.0f} bytes{part}"


def _percent(share: float) -> str:
    if 0 < share < 0.001:
        return "under 0.1%"
    return f"{100 * share:.3g}%"


def _values(counts: Iterable[dict[str, Any]], part: str) -> list[int]:
    values: list[int] = []
    for count in counts:
        value = count.get(part)
        values += [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int)]
    return values
