"""fedapm.tune: good settings for every method, on validation data, with a network of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedapm.api.setup import removed_with, set_up, split_table, temporary_folder
from fedapm.core.network import Loss
from fedapm.core.split import Preset
from fedapm.data import Federation
from fedapm.simulation.problem import Model

if TYPE_CHECKING:
    from fedapm.tuning import Tuned


def tune(
    data: Federation | str,
    model: Model | None = None,
    methods: Sequence[str] = ("fedapm",),
    *,
    search: Mapping[str, Any] | Sequence[str] = (),
    space: str | None = None,
    trials: int = 20,
    seeds: Sequence[int] = (0,),
    metric: str = "accuracy",
    select: Literal["last", "best"] = "last",
    sampler: Literal["grid", "random", "tpe"] | None = None,
    pruner: Literal["none", "median", "halving"] = "median",
    validation: float | None = None,
    personal: Sequence[str] | Literal["auto"] | None = None,
    shared: Sequence[str] = (),
    frozen: Sequence[str] = (),
    preset: Preset | None = None,
    loss: Loss | None = None,
    workers: int | None = None,
    out: str | Path | None = None,
    progress: bool = False,
    **settings: Any,
) -> Tuned:
    """Search good settings for every method, the same number of trials for each. Test data is never looked at.

    Args:
        data: A federation, or the name of a data set.
        model: The network, as in [train][fedapm.train].
        methods: The methods' names.
        search: What is searched: settings with lists of values, as in ``{"algorithm.rho": [0.01, 0.1],
            "solver.lr": "log:0.01:1", "model.split": "auto"}``; or the same as texts of ``fedapm tune --search``.
        space: A named space in place of a search: wide, paper or client; wide if neither is given.
        trials: Trials of each method, the first one with the present settings.
        seeds: Every trial is run with each of them; their mean counts.
        metric: What counts: the client mean of accuracy, f1, auc or test_loss.
        select: At the last round, or at the best one.
        sampler: How values are chosen.
        pruner: What ends a trial early.
        validation: The share of each client's training data that trials are scored on; a fifth if not given.
        personal: Patterns of personal parameters. With data of your own and nothing said, the split is searched first,
            unless ``model.split`` is among what is searched.
        shared: Patterns of shared parameters.
        frozen: Patterns of parameters that are not trained.
        preset: A stage of the network that is personal.
        loss: The loss, if not the usual one.
        workers: Trials at a time; as many as processors and memory allow if not given.
        out: A folder to keep the search in; an interrupted search in it goes on. A temporary one if None.
        progress: Whether to show progress.
        **settings: Settings of all trials, as in [compare][fedapm.compare].

    Returns:
        What was found: ``leaderboard`` and ``trials`` as tables; ``compare(…, tuned=…)`` takes it.

    Raises:
        FedapmError: Something cannot be searched; the message is one line.
    """
    from fedapm import tuning

    texts = [f"{key}={_values(value)}" for key, value in search.items()] if isinstance(search, Mapping) else search
    with_split = any(text.startswith("model.split") for text in texts)
    split = split_table(personal, shared, frozen, preset)
    if with_split and personal is None:
        split |= {"personal": []}
    options = tuning.Options(
        trials, settings.get("rounds"), tuple(seeds), space, tuple(texts), sampler, pruner, metric, select
    )
    setup = set_up("tune", data, model, methods, split, settings, loss=loss)
    setup = setup.with_split(None, progress)
    folder = Path(out) if out is not None else temporary_folder() / "tune"
    share = {"data": {"validation": validation}} if validation is not None else {}
    found = tuning.tune(
        setup.methods,
        folder,
        *setup.layers,
        share,
        options=options,
        clients=setup.clients,
        model=setup.model,
        loss=setup.loss,
        workers=workers,
        progress=progress,
    )
    return found if out is not None else removed_with(found, folder.parent)


def _values(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
