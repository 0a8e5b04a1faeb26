"""Which layers get adapters, and of which size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import PositiveFloat, PositiveInt

from fedapm.core.ranges import check_ranges
from fedapm.errors import FedapmError

AdapterPreset = Literal["lora", "ffa-lora", "dual", "head"]
ADAPTER_PRESETS: tuple[str, ...] = get_args(AdapterPreset)
DEFAULT: AdapterPreset = "lora"
"""What is shared where nothing is said."""


@dataclass(frozen=True)
class LoraSettings:
    """Adapters of rank r: a frozen layer W becomes W + (α/r)·B·A, where A and B are trained."""

    rank: PositiveInt = 8
    """r, the rank of the adapters; with `preset = "dual"` that of the shared ones."""
    alpha: PositiveFloat = 16.0
    """α: adapters count α/r."""
    targets: tuple[str, ...] = ()
    """The layers that get adapters: their names, the ends of their names, or patterns; if not given, the queries and
    values of attention, in a network without any all linear layers, and where there are none all 1×1 convolutions."""
    layers: tuple[int, ...] | None = None
    """Only layers with these numbers in their names, counted from the end where they are negative; all if not given."""
    head: tuple[str, ...] = ()
    """The sub-modules that are trained whole; if not given, what the network calls its head, or its last linear
    layer."""
    personal_rank: int | dict[str, int] | None = None
    """Dual: the rank of the personal adapters, one for all clients or one for each by its id; the shared ones' if not
    given."""
    memory: PositiveInt = 1024
    """MiB of memory for what the frozen layers below the first trained one make of the samples; beyond it that is kept
    in a temporary file."""

    def __post_init__(self) -> None:
        check_ranges(self, "model.lora")
        given = self.personal_rank
        for rank in given.values() if isinstance(given, Mapping) else (given,):
            if rank is not None and rank < 1:
                raise FedapmError(f"model.lora.personal_rank = {rank}: a rank is at least 1.")

    def rank_of(self, client: str) -> int:
        """The rank of a client's personal adapters."""
        given = self.personal_rank
        if isinstance(given, Mapping):
            return given.get(client, self.rank)
        return given or self.rank

    @property
    def differs(self) -> bool:
        """Whether clients' personal adapters differ in rank."""
        return isinstance(self.personal_rank, Mapping)
