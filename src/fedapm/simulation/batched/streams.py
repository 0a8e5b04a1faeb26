"""Streams: the random orders in which several clients take their samples, each from a stream of the client's own."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor


class Streams:
    """The random streams of some clients, seeded when somebody draws from them.

    Making a generator takes as long as drawing from it. So where nobody is expected to draw twice, one generator is
    seeded for each client in turn; whoever draws again nevertheless gets a generator that goes on after the first draw.

    Args:
        seeds: The seed of each client's stream.
        once: Whether a single draw is expected. It changes no draw.
    """

    def __init__(self, seeds: Sequence[int], once: bool = False) -> None:
        self._seeds, self._once = seeds, once
        self._places: Sequence[int] = range(len(seeds))
        self._streams: dict[int, torch.Generator] = {}
        self._passed: dict[int, int] = {}
        """How many samples those have that have drawn without a generator of their own."""
        self._all, self.draws = self, 0
        """For all clients together: how often somebody drew."""

    def chosen(self, places: Sequence[int]) -> Streams:
        """The streams of some of these clients; what is drawn from them is drawn from these."""
        some = copy(self)
        some._places = [self._places[k] for k in places]
        return some

    def orders(self, sizes: Sequence[int]) -> list[Tensor]:
        """A random order of each client's samples, given how many it has."""
        self._all.draws += 1
        if self._once and self._all.draws == 1:
            self._passed.update(zip(self._places, sizes, strict=True))
            passing, seeds = torch.Generator(), self._seeds
            return [
                torch.randperm(size, generator=passing.manual_seed(seeds[place]))
                for place, size in zip(self._places, sizes, strict=True)
            ]
        streams = [self._stream(place) for place in self._places]
        return [torch.randperm(size, generator=stream) for size, stream in zip(sizes, streams, strict=True)]

    def _stream(self, place: int) -> torch.Generator:
        stream = self._streams.get(place)
        if stream is None:
            stream = self._streams[place] = torch.Generator().manual_seed(self._seeds[place])
            if place in self._passed:
                torch.randperm(self._passed[place], generator=stream)
        return stream
