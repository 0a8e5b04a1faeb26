"""Registry: things a user can name, built in or added by other packages through entry points."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from fedapm.errors import FedapmError, did_you_mean

T = TypeVar("T")
logger = logging.getLogger(__name__)


class Registry(Mapping[str, T], Generic[T]):
    """A mapping from names to methods, data sets, networks, metrics or loggers.

    A package adds its own by an entry point in the registry's group:

    .. code-block:: toml

        [project.entry-points."fedapm.methods"]
        my-method = "my_package:MyMethod"

    Entry points are looked up the first time somebody asks, so importing fedapm imports no plug-in.

    Args:
        kind: What an entry is called in messages, such as "method".
        group: The entry-point group, such as "fedapm.methods".
        items: The built-in entries, in the order in which they are listed.
        convert: Makes an entry of a name and what the entry point of that name loads, or raises an error that says
            why it is none; without it everything that loads is an entry.
    """

    def __init__(
        self, kind: str, group: str, items: Mapping[str, T], convert: Callable[[str, Any], T] | None = None
    ) -> None:
        self.kind, self.group, self._convert = kind, group, convert
        self._items: dict[str, T] = dict(items)
        self._discovered = False

    def register(self, name: str, item: T) -> None:
        """Add an entry for this process; a name that is taken is refused."""
        if name in self._items and self._items[name] is not item:
            raise FedapmError(f"there already is a {self.kind} {name!r}; choose another name.")
        self._items[name] = item

    def find(self, name: str) -> T:
        """The entry of that name, or an error that suggests the nearest names."""
        if name not in self:
            raise FedapmError(f"unknown {self.kind} {name!r}; {did_you_mean(name, self)}")
        return self[name]

    def __getitem__(self, name: str) -> T:
        if name not in self._items:
            self._discover()
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        self._discover()
        return iter(self._items)

    def __len__(self) -> int:
        self._discover()
        return len(self._items)

    def __or__(self, other: Mapping[str, T]) -> dict[str, T]:
        return dict(self) | dict(other)

    def __repr__(self) -> str:
        return f"Registry({self.kind}: {', '.join(self)})"

    def _discover(self) -> None:
        if self._discovered:
            return
        self._discovered = True
        for point in entry_points(group=self.group):
            if point.name in self._items:
                logger.warning("the %s %r of %s is already there and was left out.", self.kind, point.name, point.value)
                continue
            try:
                item = point.load()
                self._items[point.name] = item if self._convert is None else self._convert(point.name, item)
            except Exception as error:  # a broken plug-in must not take the built-in entries with it
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                logger.warning("the %s %r (%s) cannot be loaded: %s", self.kind, point.name, point.value, reason)
