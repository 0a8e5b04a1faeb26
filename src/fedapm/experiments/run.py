"""Execution: one run from start to end, in memory or in a folder, and what comes out of it."""

from __future__ import annotations

import platform
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
import torch
from torch import Tensor, nn

from fedapm.core.algorithm import Algorithm
from fedapm.data.federation import Federation
from fedapm.errors import FedapmError
from fedapm.experiments.settings import Tables, differences
from fedapm.runs.files import remove_leftovers, write_atomic, write_json, write_tensors
from fedapm.runs.records import (
    CHECKPOINTS,
    CONFIG,
    ENGINE,
    MODELS,
    ROUNDS,
    TIMINGS,
    WITHOUT_EFFECT,
    JsonLines,
    is_run,
    write_info,
)
from fedapm.simulation import checkpoint
from fedapm.simulation.callbacks import Memory, ProgressDisplay, RecordWriter, Remarks
from fedapm.simulation.engines import auto
from fedapm.simulation.engines.base import Engine
from fedapm.simulation.engines.sequential import load_model
from fedapm.simulation.engines.vectorized import VectorizedEngine
from fedapm.simulation.loop import Callback, Loop, Progress, Record, Schedule, client_starts
from fedapm.simulation.problem import Problem
from fedapm.simulation.stores import disk
from fedapm.simulation.stores.base import InitClient, MemoryStore, Store
from fedapm.simulation.stores.table import TableStore
from fedapm.version import __version__

if TYPE_CHECKING:
    import pandas as pd

Warn = Callable[[str], None]


@dataclass(frozen=True)
class RunSpec:
    """A run that is ready to start."""

    problem: Problem
    algorithm: Algorithm
    schedule: Schedule
    settings: Tables
    """What is written to the run folder's config.toml."""
    checkpoint_every: int = 10
    save_models: bool = True
    engine: auto.EngineName = "auto"
    workers: int | None = None
    store: disk.Kind = "auto"

    def choose(self) -> auto.EngineChoice:
        """The engine that runs it."""
        cohort = self.schedule.sampling.draw(len(self.problem), self.problem.seed, 1)
        start = MemoryStore(client_starts(self.problem, self.algorithm))
        return auto.engine(self.engine, self.problem, self.algorithm, start, cohort, self.workers)

    def make_store(self, engine: Engine, folder: Path | None) -> Callable[[InitClient], Store]:
        """What makes the place where clients' states are kept."""
        population = len(self.problem)
        usual = disk.store_maker(self.store, folder, population, self.problem.device)

        def make(begin: InitClient) -> Store:
            made = usual(begin)
            rows = isinstance(engine, VectorizedEngine) and not self.problem.per_client
            return TableStore(begin, population) if rows and isinstance(made, MemoryStore) else made

        return make

    def info(self) -> dict[str, Any]:
        """What run.json says."""
        network = self.problem.network(0)
        personal = [self.problem.start(k).v0.numel for k in range(len(self.problem))]
        return {
            "fedapm": __version__,
            "method": self.algorithm.name,
            "label": self.algorithm.label,
            "seed": self.problem.seed,
            "views": list(self.algorithm.views),
            "rounds": self.schedule.rounds,
            "data": self.problem.federation.name,
            "model": type(network.module).__name__,
            "clients": [
                {"id": c.id, "train": len(c.train), "test": len(c.test), "classes": c.classes}
                for c in self.problem.federation.clients
            ],
            "parameters": {
                "shared": self.problem.u0.numel,
                "personal": personal if len(set(personal)) > 1 else personal[:1],
                "frozen": network.read(network.split.frozen).numel,
            },
            "split": {
                "shared": list(network.split.shared),
                "personal": list(network.split.personal),
                "frozen": list(network.split.frozen),
            },
            "environment": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "platform": platform.system(),
            },
        }


CallbackFactory = Callable[[RunSpec, Path | None, int], Callback]
"""Makes an observer of a run from its plan, its folder and the last round that is there already (-1: none)."""


@dataclass
class Result:
    """A finished run: its history and every client's model."""

    plan: RunSpec
    progress: Progress
    records: list[Record]
    _modules: dict[int, nn.Module] = field(default_factory=dict, repr=False)

    @property
    def federation(self) -> Federation:
        """The clients it was trained on."""
        return self.plan.problem.federation

    @property
    def history(self) -> pd.DataFrame:
        """One row a round: client means of each score, the worst tenth, drift and bytes."""
        import pandas as pd

        return pd.DataFrame([_row(record) for record in self.records]).set_index("round")

    @property
    def per_client(self) -> pd.DataFrame:
        """The last evaluation, one row a client."""
        import pandas as pd

        last = next(r for r in reversed(self.records) if r["evaluations"])
        frames = []
        for view, found in last["evaluations"].items():
            frame = pd.DataFrame(found["per_client"], index=[c.id for c in self.federation.clients])
            frames.append(frame if len(last["evaluations"]) == 1 else frame.add_prefix(f"{view}."))
        return pd.concat(frames, axis=1).rename_axis("client")

    def state_dict(self, client: int | str, view: str | None = None) -> dict[str, Tensor]:
        """A client's whole model as a plain state dict: shared, personal and frozen parameters and buffers."""
        return self.state_at(self.federation.position(client), view)

    def state_at(self, position: int, view: str | None = None) -> dict[str, Tensor]:
        """The state dict of the client at a position, whatever its id."""
        problem, algorithm = self.plan.problem, self.plan.algorithm
        down = algorithm.broadcast(self.progress.server)
        kept = self.progress.store.get(position)
        load_model(problem, algorithm, position, down, kept, view or algorithm.views[0])
        module = problem.network(position).module
        return {n: t.detach().cpu().clone() for n, t in module.state_dict().items()}

    def model(self, client: int | str, view: str | None = None) -> nn.Module:
        """A client's model as a plain module of its own, ready for prediction."""
        state = self.state_dict(client, view)
        module = deepcopy(self.plan.problem.network(self.federation.position(client)).module).cpu()
        for parameter in module.parameters():
            parameter.requires_grad_(True)
        module.load_state_dict(state)
        return module.eval()

    def save(self, folder: str | Path) -> Path:
        """Write a run folder, as if the run had been given it from the start."""
        path = Path(folder)
        _refuse_to_overwrite(path)
        write_atomic(path / CONFIG, tomli_w.dumps(self.plan.settings))
        rounds = JsonLines(path / ROUNDS)
        for record in self.records:
            rounds.append(record)
        checkpoint.save(path / CHECKPOINTS, self.progress)
        write_models(path, self)
        write_info(path, self.plan.info() | {"status": "complete", "finished": self.progress.round})
        return path

    def report(self, path: str | Path) -> Path:
        """Write the report as one HTML file."""
        from fedapm.report import write_report

        with tempfile.TemporaryDirectory() as folder:
            return write_report(self.save(Path(folder) / "run"), Path(path))


def execute(
    plan: RunSpec,
    out: Path | None = None,
    *,
    resume: bool = False,
    show: bool = True,
    warn: Warn | None = None,
    tell: Warn | None = None,
    callbacks: Sequence[CallbackFactory] = (),
) -> Result:
    """Run a plan to its end. With a folder everything is written there as it happens.

    ``warn`` hears of what went wrong and was mended, ``tell`` of how the run is computed. ``observers`` make whatever
    else is to follow the run.
    """
    if out is not None and not (resume and is_run(out)):
        _refuse_to_overwrite(out)
    chosen = plan.choose()
    try:
        return _execute(plan, chosen, out, resume, show, warn or (lambda _: None), tell or (lambda _: None), callbacks)
    finally:
        chosen.engine.close()


def _execute(
    plan: RunSpec,
    chosen: auto.EngineChoice,
    out: Path | None,
    resume: bool,
    show: bool,
    warn: Warn,
    tell: Warn,
    follow: Sequence[CallbackFactory],
) -> Result:
    memory = Memory()
    callbacks: list[Callback] = [memory]
    progress: Progress | None = None
    folder: RecordWriter | None = None
    engine = chosen.engine
    rows = out / CHECKPOINTS / disk.ROWS if out is not None else None
    loop = Loop(plan.problem, plan.algorithm, plan.schedule, callbacks, engine, plan.make_store(engine, rows))
    if out is not None and resume and is_run(out):
        progress = _resume(out, plan, loop, memory, warn)
    # before the first file of a new run, so that a log that cannot be opened leaves no folder behind
    extra = [make(plan, out, progress.round if progress is not None else -1) for make in follow]
    if out is not None:
        if progress is None:
            write_atomic(out / CONFIG, tomli_w.dumps(plan.settings))
        write_json(out / ENGINE, {"engine": engine.name, "why": chosen.why})
        folder = RecordWriter(out, plan.info())
        callbacks.append(folder)
    # a log is ahead of the checkpoint, never behind: what is logged twice can be told, what is missing cannot
    callbacks.extend(extra)
    if out is not None:
        callbacks.append(checkpoint.Checkpointer(out / CHECKPOINTS, plan.checkpoint_every, plan.schedule.rounds))
    if show:
        label = f"{plan.algorithm.label}, seed {plan.problem.seed}"
        callbacks.append(ProgressDisplay(label, plan.schedule.rounds))
    tell(f"engine: {engine.name} ({chosen.why})")
    callbacks.append(Remarks(engine, tell))
    result = Result(plan, loop.run(progress), memory.records)
    if folder is not None:
        if plan.save_models:
            write_models(folder.folder, result)
        folder.finish(result.progress, "complete")
    return result


def write_models(folder: Path, result: Result) -> None:
    """Every client's model as a safetensors state dict."""
    views = result.plan.algorithm.views
    for position, client in enumerate(result.federation.clients):
        for view in views:
            suffix = "" if len(views) == 1 else f"-{view}"
            path = folder / MODELS / f"client-{position:04d}{suffix}.safetensors"
            about = {"client": client.id, "method": result.plan.algorithm.name, "round": result.progress.round}
            write_tensors(path, result.state_at(position, view), about)


def _resume(out: Path, plan: RunSpec, loop: Loop, memory: Memory, warn: Warn) -> Progress | None:
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
    progress = checkpoint.load_latest(out / CHECKPOINTS, loop.progress, plan.problem.device, warn)
    last = progress.round if progress is not None else -1
    rounds = JsonLines(out / ROUNDS)
    rounds.rewind(last)
    JsonLines(out / TIMINGS).rewind(last)
    memory.records.extend(rounds)
    if len(memory.records) != last + 1:
        raise FedapmError(
            f"{rounds.path} lacks rounds that the checkpoint of round {last} has; start again in another folder."
        )
    write_atomic(config, tomli_w.dumps(plan.settings))
    return progress


def _refuse_to_overwrite(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise FedapmError(f"{folder} is a file; give a folder for the run.")
    if folder.is_dir() and any(folder.iterdir()):
        what = "already holds a run; continue it with --resume or" if is_run(folder) else "is not empty;"
        raise FedapmError(f"{folder} {what} choose another folder.")


def _row(record: Record) -> dict[str, Any]:
    row: dict[str, Any] = {"round": record["round"]}
    evaluations = record["evaluations"] or {}
    for view, found in evaluations.items():
        prefix = "" if len(evaluations) == 1 else f"{view}."
        for name, summary in found.items():
            if name != "per_client":
                row[prefix + name] = summary["mean"]
        if "accuracy" in found:
            row[f"{prefix}accuracy_worst10"] = found["accuracy"]["worst10"]
    row["drift"] = record["drift"]
    row |= {k: record[k] for k in ("bytes_up", "bytes_down", "total_bytes_up", "total_bytes_down")}
    row |= {f"local.{k}": v for k, v in (record["local"] or {}).items()}
    row |= {f"stationarity.{k}": v for k, v in (record.get("stationarity") or {}).items()}
    row["selected"], row["dropped"] = len(record["selected"]), len(record["dropped"])
    return row
