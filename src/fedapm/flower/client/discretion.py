"""What a node tells beside its client's updates: with [privacy] nothing that its owner does not allow."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedapm.core.messages import collect_messages
from fedapm.errors import FedapmError
from fedapm.flower.client.node import SCORES
from fedapm.flower.problem import DataSummary
from fedapm.privacy import PrivacySettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Discretion:
    """What is told.

    Args:
        settings: The run's table [privacy].
        allowed: What the node's owner allows in runs with privacy.
    """

    settings: PrivacySettings
    allowed: frozenset[str] = frozenset()

    def tells(self, what: str) -> bool:
        """Whether scores, or ε, are told."""
        return what in self.allowed if self.settings.active else what == SCORES

    @property
    def active(self) -> bool:
        """Whether anything is kept back."""
        return self.settings.active

    def summary(self, whole: DataSummary) -> DataSummary:
        """What is told of the client's data: shapes and classes that a network is made for, no counts of its own.

        Where samples are protected, ε itself depends on how many there are, which is no secret.

        Args:
            whole: The true one.
        """
        return whole.without_counts(self.settings.samples) if self.active else whole

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Where something fails in a block, say why in the node's own log alone: it may come from the data.

        Raises:
            FedapmError: If it fails; as it is where nothing is kept back.
        """
        try:
            yield
        except Exception as error:
            if not self.active:
                raise
            logger.warning("the work of this node failed: %s", error, exc_info=not isinstance(error, FedapmError))
            raise FedapmError("its work failed; with [privacy] only its node's log says why.") from None

    @contextmanager
    def remarks(self) -> Iterator[list[str]]:
        """Collect what is logged in a block, to tell it; where remarks are kept back they go to the node's own log.

        Yields:
            The remarks, growing as they come.
        """
        if self.active:
            yield []
            return
        with collect_messages() as messages:
            yield messages
