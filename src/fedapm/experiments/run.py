"""Execution: one run from start to end, in memory or in a folder, and what comes out of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from fedapm.core.record import RoundRecord
from fedapm.errors import FedapmError, Interrupted
from fedapm.experiments.new_client import Options
from fedapm.experiments.newcomer import personalize_client
from fedapm.experiments.result import Result, write_classes, write_models, write_spending, write_transform, write_unseen
from fedapm.loggers.console import ProgressDisplay
from fedapm.loggers.rounds import RoundProgress
from fedapm.loggers.series import Turn
from fedapm.runs.config import write_config
from fedapm.runs.files import remove_leftovers, write_json
from fedapm.runs.folder import (
    check_same_run,
    check_settings,
    clear_beginning,
    is_nothing_yet,
    locked,
    records_until,
    refuse_to_overwrite,
    rewind,
)
from fedapm.runs.layout import CHECKPOINTS, CONFIG, ENGINE, ROUNDS, SPLIT
from fedapm.runs.records import chained, is_run, load_run
from fedapm.simulation.callbacks import Checkpointer, History, RecordWriter
from fedapm.simulation.engines import auto
from fedapm.simulation.engines.base import Resumed
from fedapm.simulation.loop import Callback, Loop
from fedapm.simulation.spec import CallbackFactory, RunSpec
from fedapm.simulation.stores import disk
from fedapm.simulation.threads import suitable_threads

logger = logging.getLogger(__name__)


def execute(
    plan: RunSpec,
    out: Path | None = None,
    *,
    resume: bool = False,
    progress: bool = True,
    callbacks: Sequence[CallbackFactory] = (),
    turn: Turn | None = None,
) -> Result:
    """Run to the last round. With a folder everything is written there as it happens.

    Args:
        plan: The run.
        out: Its folder; None keeps everything in memory.
        resume: Whether to go on with a run that the folder holds.
        progress: Whether to show on the terminal how far it is.
        callbacks: What makes further callbacks of the run.
        turn: Its place in a series of runs.

    Returns:
        The history and every client's model.
    """
    with suitable_threads(plan.problem), locked(out) if out is not None else nullcontext():
        if out is not None and not (resume and is_run(out) and not is_nothing_yet(out, {SPLIT})):
            refuse_to_overwrite(out, searched=True)
            clear_beginning(out)
        chosen = plan.open_engine(out / CHECKPOINTS / disk.ROWS if out is not None else None)
        try:
            return _execute(plan, chosen, out, resume, progress, callbacks, turn)
        finally:
            chosen.engine.close()


def _execute(
    plan: RunSpec,
    chosen: auto.EngineChoice,
    out: Path | None,
    resume: bool,
    show_progress: bool,
    factories: Sequence[CallbackFactory],
    turn: Turn | None,
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
        # run.json first: beside it, the rest is known to be the beginning of a run
        folder = RecordWriter(out, plan.identity())
        if resumed is None:
            write_config(out, plan.settings)
            write_transform(out, plan.problem.federation.transform)
        write_json(out / ENGINE, {"engine": engine.name, "why": chosen.why})
        callbacks.append(folder)
    # a log is ahead of the checkpoint, never behind: what is logged twice can be told, what is missing cannot
    callbacks.extend(extra)
    if out is not None:
        rounds = plan.schedule.rounds
        callbacks.append(Checkpointer(engine, out / CHECKPOINTS, plan.checkpoint_every, rounds, history.records))
    if show_progress:
        which = f"{turn.number}: " if turn is not None else ""
        label = f"{which}{plan.algorithm.label}, seed {plan.problem.seed}"
        callbacks.append(RoundProgress(label, plan.schedule.rounds, turn=turn))
    logger.info("engine: %s (%s)", engine.name, chosen.why)
    try:
        state = loop.run(resumed, history.records)
    except Interrupted as stop:
        if out is None and history.records:
            partial = Result(plan, loop.state, history.records, engine)
            raise Interrupted(f"{stop} What was trained until then is in the error's result.", partial) from None
        raise
    result = Result(plan, state, history.records, engine)
    if plan.problem.federation.unseen:
        result.unseen_clients = _unseen(result, show_progress)
    if folder is not None:
        if result.unseen_clients:
            write_unseen(folder.folder, result.unseen_clients)
        write_spending(folder.folder, result)
        if plan.save_models:
            write_models(folder.folder, result)
            write_classes(folder.folder, result)
        folder.finish(result.state, "complete")
    return result


def _unseen(result: Result, show_progress: bool) -> list[dict[str, Any]]:
    """Personalise and score the clients that did not take part."""
    run, clients, rows = result.trained_run(), result.federation.unseen, []
    try:
        with ProgressDisplay() if show_progress else nullcontext() as display:
            for done, client in enumerate(clients, start=1):
                rows.append(personalize_client(run, client, Options()).as_dict())
                if display is not None:
                    line = f"clients that did not take part: {done}" if done == len(clients) else None
                    display.update("clients that did not take part", done, len(clients), line=line)
    except KeyboardInterrupt:
        raise Interrupted("interrupted while clients that did not take part were personalised.") from None
    return rows


def _resume(out: Path, plan: RunSpec, loop: Loop, history: History) -> Resumed | None:
    own = "name" in plan.settings.get("data", {}) and "partition" not in plan.settings["data"]
    command = f"fedapm run {out / CONFIG} --out {out} --resume"
    how = "train(…, resume=True) with the same data and arguments" if own else command
    advice = f"resume it with the same ones ({how}) or use another folder"
    check_settings(out, plan.settings, advice, more_rounds=True)
    check_same_run(out, plan.identity(), advice)
    info = load_run(out).info
    resumed = loop.engine.load(out / CHECKPOINTS, loop.state)
    last = resumed.state.round if resumed is not None else -1
    # nothing is touched before it is known that the run can go on
    records = records_until(out, last)
    if len(records) != last + 1:
        raise FedapmError(
            f"{out / ROUNDS} lacks rounds that the checkpoint of round {last} has; start again in another folder."
        )
    if resumed is not None and resumed.state.records not in ("", chained("", records)):
        raise FedapmError(
            f"{out / ROUNDS} does not hold what was recorded when the checkpoint of round {last} was written; start "
            "again in another folder."
        )
    remove_leftovers(out)
    history.records.extend(cast(list[RoundRecord], rewind(out, last)))
    write_config(out, plan.settings)
    if resumed is not None and info.get("stopped") and info.get("finished") == last:
        logger.info("%s was stopped early after round %d (%s) and is not continued.", out, last, info["stopped"])
        return Resumed(replace(resumed.state, stopped=str(info["stopped"])))
    return resumed
