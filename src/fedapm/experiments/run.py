"""Execution: one run from start to end, in memory or in a folder, and what comes out of it."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import tomli_w

from fedapm.core.record import RoundRecord
from fedapm.errors import FedapmError
from fedapm.experiments.result import Result, write_models
from fedapm.experiments.settings import differences
from fedapm.loggers.console import RoundProgress
from fedapm.runs.files import remove_leftovers, write_atomic, write_json
from fedapm.runs.folder import MAY_CHANGE_ON_RESUME, refuse_to_overwrite
from fedapm.runs.layout import CHECKPOINTS, CONFIG, ENGINE, ROUNDS, TIMINGS
from fedapm.runs.records import JsonLines, is_run, load_run
from fedapm.simulation.callbacks import Checkpointer, History, RecordWriter
from fedapm.simulation.engines import auto
from fedapm.simulation.engines.base import Resumed
from fedapm.simulation.loop import Callback, Loop
from fedapm.simulation.spec import CallbackFactory, RunSpec
from fedapm.simulation.stores import disk

logger = logging.getLogger(__name__)


def execute(
    plan: RunSpec,
    out: Path | None = None,
    *,
    resume: bool = False,
    progress: bool = True,
    callbacks: Sequence[CallbackFactory] = (),
) -> Result:
    """Run to the last round. With a folder everything is written there as it happens.

    Args:
        plan: The run.
        out: Its folder; None keeps everything in memory.
        resume: Whether to go on with a run that the folder holds.
        progress: Whether to show on the terminal how far it is.
        callbacks: What makes further callbacks of the run.

    Returns:
        The history and every client's model.
    """
    if out is not None and not (resume and is_run(out)):
        refuse_to_overwrite(out)
    chosen = plan.open_engine(out / CHECKPOINTS / disk.ROWS if out is not None else None)
    try:
        return _execute(plan, chosen, out, resume, progress, callbacks)
    finally:
        chosen.engine.close()


def _execute(
    plan: RunSpec,
    chosen: auto.EngineChoice,
    out: Path | None,
    resume: bool,
    show_progress: bool,
    factories: Sequence[CallbackFactory],
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
    extra = [make(plan, out, resumed.state.round if resumed is not None else -1) for make in factories]
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
    if show_progress:
        label = f"{plan.algorithm.label}, seed {plan.problem.seed}"
        callbacks.append(RoundProgress(label, plan.schedule.rounds))
    logger.info("engine: %s (%s)", engine.name, chosen.why)
    result = Result(plan, loop.run(resumed, history.records), history.records, engine)
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
    changed = [setting for setting in differences(old, plan.settings) if setting not in MAY_CHANGE_ON_RESUME]
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
    info = load_run(out).info
    if resumed is not None and info.get("stopped") and info.get("finished") == last:
        logger.info("%s was stopped early after round %d (%s) and is not continued.", out, last, info["stopped"])
        return Resumed(replace(resumed.state, stopped=str(info["stopped"])))
    return resumed
