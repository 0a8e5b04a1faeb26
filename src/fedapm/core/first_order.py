"""Whether what is under way needs first derivatives only, so that a network may use kernels that have no others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ENOUGH: ContextVar[bool] = ContextVar("first derivatives are enough", default=False)


@contextmanager
def first_order() -> Iterator[None]:
    """For a ``with`` block: networks are differentiated once at most, by autograd and for one client at a time."""
    before = _ENOUGH.set(True)
    try:
        yield
    finally:
        _ENOUGH.reset(before)


def first_order_is_enough() -> bool:
    """Whether this is within :func:`first_order`; elsewhere anything may be asked of a network."""
    return _ENOUGH.get()
