"""Execution: one run from start to end, in memory or in a folder, and what comes out of it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import tomli_w

from fedapm.core.record import RoundRecord
from fedapm.errors import FedapmError
from fedapm.experiments.result import Result, write_models
from fedapm.experiments.settings import differences
from fedapm.runs.files import remove_leftovers, write_atomic, write_json
from fedapm.runs.folder import refuse_to_overwrite
from fedapm.runs.records import (
    CHECKPOINTS,
    CONFIG,
    ENGINE,
    ROUNDS,
    TIMINGS,
    WITHOUT_EFFECT,
    JsonLines,
    is_run,
)
from fedapm.simulation.callbacks import Checkpointer, History, ProgressDisplay, RecordWriter
from fedapm.simulation.engines import auto
from fedapm.simulation.engines.base import Resumed
from fedapm.simulation.loop import Callback, Loop
from fedapm.simulation.spec import CallbackFactory, RunSpec
from fedapm.simulation.stores import disk

if TYPE_CHECKING:
    pass

Warn = Callable[[str], None]


def execute(
    plan: RunSpec,
    out: Path | None = None,
    *,
    resume: bool = False,
    show: bool = True,
    tell: Warn | None = None,
    callbacks: Sequence[CallbackFactory] = (),
) -> Result:
    """Run a plan to its end. With a folder everything is written there as it happens.

    ``tell`` hears how the run is computed. ``callbacks`` make whatever else is to follow the run.
    """
    if out is not None and not (resume and is_run(out)):
        refuse_to_overwrite(out)
    chosen = plan.open_engine(out / CHECKPOINTS / disk.ROWS if out is not None else None)
    try:
        return _execute(plan, chosen, out, resume, show, tell or (lambda _: None), callbacks)
    finally:
        chosen.engine.close()


def _execute(
    plan: RunSpec,
    chosen: auto.EngineChoice,
    out: Path | None,
    resume: bool,
    show: bool,
    tell: Warn,
    follow: Sequence[CallbackFactory],
) -> Result:
    history = History()
    callbacks: list[Callback] = [history]
    resumed: Resumed | None = None
    folder: RecordWriter | None = None
    engine = chosen.engine
    loop = Loop(plan.problem, plan.algorithm, plan.schedule, engine, callbacks)
    if out is not None and resume and is_run(out):
        resumed = _resume(out, plan, loop, history)
    # before the first file of a new run, so that a log that cannot be opened leaves no folder behind
    extra = [make(plan, out, resumed.state.round if resumed is not None else -1) for make in follow]
    if out is not None:
        if resumed is None:
            write_atomic(out / CONFIG, tomli_w.dumps(plan.settings))
        write_json(out / ENGINE, {"engine": engine.name, "why": chosen.why})
        folder = RecordWriter(out, plan.info())
        callbacks.append(folder)
    # a log is ahead of the checkpoint, never behind: what is logged twice can be told, what is missing cannot
    callbacks.extend(extra)
    if out is not None:
        callbacks.append(Checkpointer(engine, out / CHECKPOINTS, plan.checkpoint_every, plan.schedule.rounds))
    if show:
        label = f"{plan.algorithm.label}, seed {plan.problem.seed}"
        callbacks.append(ProgressDisplay(label, plan.schedule.rounds))
    tell(f"engine: {engine.name} ({chosen.why})")
    result = Result(plan, loop.run(resumed), history.records, engine)
    if folder is not None:
        if plan.save_models:
            write_models(folder.folder, result)
        folder.finish(result.progress, "complete")
    return result


def _resume(out: Path, plan: RunSpec, loop: Loop, history: History) -> Resumed | None:
    config = out / CONFIG
    if not config.is_file():
        raise FedapmError(f"{out} has no {CONFIG}, so there is no knowing what to resume; use another folder.")
    remove_leftovers(out)
    old = tomllib.loads(config.read_text("utf-8"))
    changed = [setting for setting in differences(old, plan.settings) if setting not in WITHOUT_EFFECT]
    if "engine.rounds" in changed:
        before = old.get("engine", {}).get("rounds", 0)
        longer = plan.schedule.rounds > before
        if longer and plan.problem.solver.lr_schedule != "cosine":
            changed.remove("engine.rounds")
    if changed:
        raise FedapmError(
            f"{out} was run with other settings ({', '.join(changed)}); resume it with the same ones "
            f"(fedapm run {config} --out {out} --resume) or use another folder."
        )
    resumed = loop.engine.load(out / CHECKPOINTS, loop.state)
    last = resumed.state.round if resumed is not None else -1
    rounds = JsonLines(out / ROUNDS)
    rounds.rewind(last)
    JsonLines(out / TIMINGS).rewind(last)
    history.records.extend(cast(Iterable[RoundRecord], rounds))
    if len(history.records) != last + 1:
        raise FedapmError(
            f"{rounds.path} lacks rounds that the checkpoint of round {last} has; start again in another folder."
        )
    write_atomic(config, tomli_w.dumps(plan.settings))
    return resumed
