"""The table [upload] of an experiment file: what is done to a client's message before it is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import PositiveFloat, PositiveInt

from fedapm.core.ranges import check_ranges
from fedapm.uploads.compression import Compression, LowRank, TopK, Whole
from fedapm.uploads.masks.fixed_point import EXACT, FixedPoint
from fedapm.uploads.robust import GeometricMedian, Rule, TrimmedMean
from fedapm.uploads.rounding import BFloat16, Exact, Int8, Rounding
from fedapm.uploads.transform import Transform

TABLE = "upload"
KEEP, RANK, TRIM = 0.1, 4, 0.25
STEP, RANGE, BITS, THRESHOLD = 2.0**-20, 8.0, 32, 3
ROUNDINGS: dict[str | None, Rounding] = {None: Exact(), "bf16": BFloat16(), "int8": Int8()}


@dataclass(frozen=True)
class UploadSettings:
    """What is done to a message before it is sent, in this order: clipped, compressed, rounded, masked."""

    clip: PositiveFloat | None = None
    """S: the norm that a client's change of the model has at most; a longer one is shortened. What is withheld here or
    below is sent in a later round."""
    compress: Literal["top-k", "low-rank"] | None = None
    """`top-k`: only the numbers farthest from zero. `low-rank`: each matrix as the product of two thin ones."""
    keep: Annotated[float, Gt(0), Le(1)] | None = None
    """Top-k: the share of numbers that is sent; 0.1 if not given."""
    rank: PositiveInt | None = None
    """Low-rank: the rank of the products; 4 if not given."""
    round_to: Literal["bf16", "int8"] | None = None
    """How numbers are written: in two bytes, or in one and a scale for each tensor; up or down at random, so that the
    mean over draws is the number itself."""

    broadcast: Literal["bf16", "int8"] | None = None
    """How the server's model is sent to clients: as the rounded change of what they were shown before, where they have
    that, and else whole. What rounding withholds is sent in a later round."""

    aggregate: Literal["mean", "trimmed-mean", "geometric-median", "centered-clipping"] | None = None
    """How the server takes the mean of a round; the plain `mean` if not given. `trimmed-mean`: without the largest and
    the smallest numbers of each coordinate. `geometric-median`: the point nearest to all messages.
    `centered-clipping`: no message is farther than `clip` from the last round's mean."""
    trim: Annotated[float, Gt(0), Lt(0.5)] | None = None
    """Trimmed mean: the share that is left out at either end; 0.25 if not given. It must be more than the share of bad
    clients in a round."""
    norm_limit: Annotated[float, Gt(1)] | None = None
    """A message more than so many times as long as usual counts as never sent; any length is allowed if not given. On
    Flower `flower.norm_limit` does this by default."""
    mask: bool | None = None
    """Whether messages are added up under masks, so that the server on Flower learns their sum alone. They become whole
    numbers for it; compression and `round_to` cannot go with it."""
    mask_step: PositiveFloat | None = None
    """Masks: what numbers are whole multiples of; 2⁻²⁰ if not given, about a millionth."""
    mask_range: PositiveFloat | None = None
    """Masks: how far from zero a number may be; 8 if not given. What is beyond is sent in a later round."""
    mask_bits: Literal[32, 64] | None = None
    """Masks: the bits of a number; 32 if not given. The sum of all clients' numbers must fit."""
    mask_threshold: Annotated[int, Ge(2)] | None = None
    """Masks: t, the fewest clients over which the server may learn a sum; 3 if not given. A round is abandoned where
    too many drop out for that."""

    def __post_init__(self) -> None:
        check_ranges(self, TABLE)
        if self.trim is not None and self.aggregate != "trimmed-mean":
            raise ValueError(f'{TABLE}.trim is for {TABLE}.aggregate = "trimmed-mean"; leave it out.')
        if self.aggregate == "centered-clipping" and self.clip is None:
            raise ValueError(
                f'{TABLE}.aggregate = "centered-clipping" needs {TABLE}.clip, the distance from the last mean that a '
                "message may have, in units of the model; usual norms are a good start."
            )
        for name, needed in (("keep", "top-k"), ("rank", "low-rank")):
            if getattr(self, name) is not None and self.compress != needed:
                raise ValueError(f'{TABLE}.{name} is for {TABLE}.compress = "{needed}"; leave it out.')
        for name in ("step", "range", "bits", "threshold"):
            if getattr(self, f"mask_{name}") is not None and not self.mask:
                raise ValueError(f"{TABLE}.mask_{name} is for {TABLE}.mask = true; leave it out.")
        if self.mask:
            self._check_mask()

    def _check_mask(self) -> None:
        for name in ("compress", "round_to"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{TABLE}.{name} and {TABLE}.mask: masked messages are added up as they are sent, and what is "
                    "coded differently at each client cannot be; leave one of them out."
                )
        if self.norm_limit is not None or self.aggregate in ("trimmed-mean", "geometric-median"):
            what = "norm_limit" if self.norm_limit is not None else "aggregate"
            raise ValueError(
                f"{TABLE}.{what} looks at single messages, which {TABLE}.mask hides; leave one of them out, or take "
                f'{TABLE}.aggregate = "centered-clipping", which clients do themselves.'
            )
        point = self.point
        if not point.range / point.step <= EXACT or point.largest < 1:
            raise ValueError(f"{TABLE}.mask_range should be from 1 to {EXACT:.0e} times {TABLE}.mask_step.")
        if point.room < self.threshold:
            raise ValueError(
                f"{TABLE}.mask_range is {point.largest:.3g} times {TABLE}.mask_step, of which {point.bits} bits cannot "
                f"hold a sum over {self.threshold} clients; take mask_bits = 64, or a larger step."
            )

    @property
    def point(self) -> FixedPoint:
        """How numbers are written under masks."""
        return FixedPoint(self.mask_step or STEP, self.mask_range or RANGE, self.mask_bits or BITS)

    @property
    def threshold(self) -> int:
        """The fewest clients of a sum, t."""
        return self.mask_threshold or THRESHOLD

    @property
    def transform(self) -> Transform | None:
        """What is done; None where messages are sent as they are."""
        clip = None if self.aggregate == "centered-clipping" else self.clip
        if (clip, self.compress, self.round_to) == (None, None, None) and not self.mask:
            return None
        compression: Compression = Whole()
        if self.compress == "top-k":
            compression = TopK(self.keep or KEEP)
        elif self.compress == "low-rank":
            compression = LowRank(self.rank or RANK)
        return Transform(clip, compression, self.point if self.mask else ROUNDINGS[self.round_to])

    @property
    def rule(self) -> Rule | None:
        """The robust mean of a round; None where the server only adds up."""
        if self.aggregate == "trimmed-mean":
            return TrimmedMean(self.trim or TRIM)
        return GeometricMedian() if self.aggregate == "geometric-median" else None

    @property
    def screens(self) -> bool:
        """Whether single messages are looked at."""
        return self.norm_limit is not None or self.aggregate not in (None, "mean")
