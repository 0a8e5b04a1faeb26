"""Execution: one run from start to end, in memory or in a folder, and what comes out of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from fedapm.errors import FedapmError
from fedapm.experiments.result import Result, write_models
from fedapm.loggers.console import RoundProgress
from fedapm.runs.config import write_config
from fedapm.runs.files import remove_leftovers, write_json
from fedapm.runs.folder import check_settings, locked, refuse_to_overwrite, rewind
from fedapm.runs.layout import CHECKPOINTS, CONFIG, ENGINE, ROUNDS
from fedapm.runs.records import is_run, load_run
from fedapm.simulation import checkpoint
from fedapm.simulation.callbacks import Memory, RecordWriter, Remarks
from fedapm.simulation.engines import auto
from fedapm.simulation.loop import Callback, Loop, Progress
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
    with locked(out) if out is not None else nullcontext():
        if out is not None and not (resume and is_run(out)):
            refuse_to_overwrite(out)
        chosen = plan.choose()
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
    memory = Memory()
    callbacks: list[Callback] = [memory]
    progress: Progress | None = None
    folder: RecordWriter | None = None
    engine = chosen.engine
    rows = out / CHECKPOINTS / disk.ROWS if out is not None else None
    loop = Loop(plan.problem, plan.algorithm, plan.schedule, callbacks, engine, plan.make_store(engine, rows))
    if out is not None and resume and is_run(out):
        progress = _resume(out, plan, loop, memory)
    # before the first file of a new run, so that a log that cannot be opened leaves no folder behind
    extra = [make(plan, out, progress.round if progress is not None else -1) for make in factories]
    if out is not None:
        if progress is None:
            write_config(out, plan.settings)
        write_json(out / ENGINE, {"engine": engine.name, "why": chosen.why})
        folder = RecordWriter(out, plan.info())
        callbacks.append(folder)
    # a log is ahead of the checkpoint, never behind: what is logged twice can be told, what is missing cannot
    callbacks.extend(extra)
    if out is not None:
        callbacks.append(checkpoint.Checkpointer(out / CHECKPOINTS, plan.checkpoint_every, plan.schedule.rounds))
    if show_progress:
        label = f"{plan.algorithm.label}, seed {plan.problem.seed}"
        callbacks.append(RoundProgress(label, plan.schedule.rounds))
    logger.info("engine: %s (%s)", engine.name, chosen.why)
    callbacks.append(Remarks(engine))
    result = Result(plan, loop.run(progress, memory.records), memory.records)
    if folder is not None:
        if plan.save_models:
            write_models(folder.folder, result)
        folder.finish(result.progress, "complete")
    return result


def _resume(out: Path, plan: RunSpec, loop: Loop, memory: Memory) -> Progress | None:
    advice = f"resume it with the same ones (fedapm run {out / CONFIG} --out {out} --resume) or use another folder"
    check_settings(out, plan.settings, advice, more_rounds=True)
    remove_leftovers(out)
    progress = checkpoint.load_latest(out / CHECKPOINTS, loop.progress, plan.problem.device)
    last = progress.round if progress is not None else -1
    memory.records.extend(rewind(out, last))
    if len(memory.records) != last + 1:
        raise FedapmError(
            f"{out / ROUNDS} lacks rounds that the checkpoint of round {last} has; start again in another folder."
        )
    write_config(out, plan.settings)
    info = load_run(out).info
    if progress is not None and info.get("stopped") and info.get("finished") == last:
        logger.info("%s was stopped early after round %d (%s) and is not continued.", out, last, info["stopped"])
        return replace(progress, stopped=str(info["stopped"]))
    return progress
