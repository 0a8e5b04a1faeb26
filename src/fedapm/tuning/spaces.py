"""The named search spaces: the paper's grid, the same per client, and a wide one for samplers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedapm.tuning.space import Choice, Dimension, Range, Space, Whole
from fedapm.tuning.units import Units, power, scaled


def choice(setting: str, *values: float | str) -> Dimension:
    """A setting with some values."""
    return Dimension(setting, Choice(values))


def log(setting: str, low: float, high: float) -> Dimension:
    """A setting between two numbers, by its logarithm."""
    return Dimension(setting, Range(low, high, log=True))


PAPER_LR = choice("solver.lr", 0.05, 0.1, 0.5, 1.0)
PAPER_RHO = choice("algorithm.rho", 0.001, 0.01, 0.02, 0.05, 0.1)
PAPER_SIGMA = choice("algorithm.sigma", 0.01)
PAPER: dict[str, Space] = {"fedapm": (PAPER_RHO, PAPER_SIGMA), "fedadmm": (PAPER_RHO,)}
"""What the paper searches beside the step size, in its own units."""

AROUND: dict[str, Space] = {
    "fedprox": (choice("algorithm.mu", 0.001, 0.01, 0.1, 1.0),),
    "ditto": (choice("algorithm.lam", 0.01, 0.1, 0.5, 1.0),),
    "pfedme": (choice("algorithm.lam", 0.5, 2.0, 8.0, 15.0),),
    "lp-proj": (choice("algorithm.lam", 0.1, 0.5, 1.0, 5.0),),
    "fedala": (choice("algorithm.eta", 0.1, 0.5, 1.0, 2.0),),
    "fedcp": (choice("algorithm.lam", 0.1, 0.5, 1.0, 5.0),),
    "scaffold": (choice("algorithm.eta_g", 0.3, 0.6, 1.0, 1.5),),
}
"""Methods the paper says nothing of: values around their defaults, per client."""

EPOCHS_V = Dimension("algorithm.epochs_v", Whole(1, 5), otherwise="solver.epochs")
LR_V = Dimension("algorithm.lr_v", Range(0.1, 3.0, log=True), otherwise="solver.lr", ratio=True)

COMMON: Space = (
    log("solver.lr", 0.005, 1.0),
    choice("solver.lr_schedule", "constant", "exponential", "cosine"),
    Dimension("solver.lr_decay", Range(0.94, 0.999), where=("solver.lr_schedule", "exponential")),
    choice("solver.weight_decay", 0.0, 0.0001, 0.0003, 0.001, 0.003, 0.01),
    Dimension("model.options.dropout", Range(0.0, 0.5)),
)
"""The same distribution for every method, per client; dropout where the network has it."""

WIDE: dict[str, Space] = {
    "fedapm": (
        log("algorithm.rho", 0.001, 1.0),
        choice("algorithm.sigma", 0.0, 0.003, 0.01, 0.03, 0.1, 0.3),
        EPOCHS_V,
        LR_V,
        choice("algorithm.evaluate", "local", "shared"),
    ),
    "fedalt": (EPOCHS_V, LR_V),
    "fedsim": (),
    "fedavg": (),
    "fedprox": (log("algorithm.mu", 0.0001, 1.0),),
    "fedadmm": (log("algorithm.rho", 0.001, 1.0),),
    "pfedme": (
        log("algorithm.lam", 0.3, 30.0),
        Dimension("algorithm.k", Whole(1, 8)),
        log("algorithm.eta", 0.005, 0.5),
    ),
    "ditto": (log("algorithm.lam", 0.001, 3.0), EPOCHS_V),
    "lp-proj": (log("algorithm.lam", 0.01, 10.0), choice("algorithm.dimension", 30, 100, 300, 1000)),
    "fedala": (log("algorithm.eta", 0.1, 10.0), Dimension("algorithm.p", Whole(1, 3))),
    "fedrod": (),
    "fedcp": (log("algorithm.lam", 0.01, 10.0),),
    "scaffold": (log("algorithm.eta_g", 0.1, 2.0),),
    "local": (),
    "fedper": (),
    "fedrep": (EPOCHS_V, LR_V),
    "lg-fedavg": (),
}
"""What each method has beside the common settings, per client."""


def paper(name: str, m: int) -> Space:
    """The paper's grid in its own units; the values of other methods are put into them."""
    return (*_paper_grid(name), *(_times(d, power(name, d.setting), m) for d in AROUND.get(name, ())))


def client(name: str, m: int) -> Space:
    """The same grid per client: step sizes divided by m, penalties multiplied by it."""
    return (*(_times(d, -power(name, d.setting), m) for d in _paper_grid(name)), *AROUND.get(name, ()))


def wide(name: str, m: int) -> Space:
    """Ranges that do not depend on the number of clients."""
    del m
    return COMMON + WIDE.get(name, ())


SPACES: dict[str, tuple[Units, Callable[[str, int], Space]]] = {
    "wide": ("client", wide),
    "paper": ("paper", paper),
    "client": ("client", client),
}
"""By name: the units of a space's values, and the space of a method with m clients."""


def _paper_grid(name: str) -> Space:
    return PAPER_LR, *PAPER.get(name, ())


def _times(d: Dimension, power: int, m: int) -> Dimension:
    assert isinstance(d.values, Choice)
    if not power:
        return d
    return replace(d, values=Choice(tuple(scaled(float(value), power, m) for value in d.values.values)))
