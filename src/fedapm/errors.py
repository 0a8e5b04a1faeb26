"""What a person did wrong, said in one line: what, where, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class FedapmError(Exception):
    """Bad input. The message is one line meant for a person; the CLI prints it and exits with 2."""

    def __init__(self, message: str = "") -> None:
        # what is quoted from a user's input may have line ends of its own
        super().__init__(" ".join(message.splitlines()))


class Diverged(FedapmError):
    """No client has a finite result any more, so going on would compute nothing."""


class StopRun(Exception):
    """Raised by a callback at the end of a round to end the run there. The message says why."""


class Interrupted(Exception):
    """Ctrl-C: what was finished is saved and can be resumed.

    No FedapmError, so that ``except FedapmError: continue`` does not swallow Ctrl-C. Without a folder the rounds that
    were finished are in ``result``.
    """

    def __init__(self, message: str = "interrupted.", result: Any = None) -> None:
        super().__init__(message)
        self.result = result
        """The run as far as it got, where nothing was saved; None elsewhere."""


def in_words(error: OSError | MemoryError) -> str:
    """What the system refused, in one line.

    Args:
        error: As Python raised it.

    Returns:
        Which file it was about, if any, and what is wrong.
    """
    if isinstance(error, MemoryError):
        return "there is not enough memory; use fewer workers, smaller batches or fewer clients in a round."
    what = f"{error.strerror or error}."
    return f"{error.filename}: {what}" if error.filename else what


SYNONYMS = {
    "learning_rate": "lr",
    "step_size": "lr",
    "eta": "lr",
    "num_epochs": "epochs",
    "local_epochs": "epochs",
    "num_rounds": "rounds",
    "iterations": "rounds",
    "batchsize": "batch_size",
    "bs": "batch_size",
    "l2": "weight_decay",
    "method": "algorithm",
    "random_state": "seed",
    "clients_per_round": "count",
    "participation": "fraction",
    "n_jobs": "workers",
    "output": "out",
    "verbose": "progress",
}
"""What other libraries call a setting."""


def closest(name: str, choices: Iterable[str], count: int = 3) -> list[str]:
    """The choices a mistyped name most likely meant, best first."""
    pool = list(choices)
    if SYNONYMS.get(name) in pool:
        return [SYNONYMS[name]]
    found = difflib.get_close_matches(name, pool, n=count, cutoff=0.5)
    if not found:
        found = [c for c in pool if name and (name in c or c in name)][:count]
    return found


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """A clause to append to "unknown ...": the nearest names, or all of them when none is near."""
    pool = sorted(choices)
    near = closest(name, pool)
    if near:
        return "did you mean " + " or ".join(f"'{n}'" for n in near) + "?"
    return "choose from " + ", ".join(pool) + "." if pool else "there is nothing to choose from."
