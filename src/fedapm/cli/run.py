"""fedapm run: train personal models with one method."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedapm.cli import options as opt
from fedapm.runs.layout import REPORT, SPLIT, SPLIT_INFO

if TYPE_CHECKING:
    from fedapm.experiments.settings import Experiment, Tables
    from fedapm.simulation.spec import RunSpec

app = typer.Typer()


@app.command()
def run(
    config: opt.ConfigFile = None,
    data: opt.Data = None,
    data_root: opt.DataRoot = None,
    algorithm: Annotated[str | None, typer.Option("--algorithm", help="Method (see: fedapm list methods).")] = None,
    image_encoder: opt.ImageEncoder = None,
    text_encoder: opt.TextEncoder = None,
    rounds: opt.Rounds = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the run.")] = None,
    engine: opt.EngineName = None,
    workers: opt.Workers = None,
    device: opt.Device = None,
    log: opt.Log = None,
    out: opt.Out = Path("runs/run"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    assign: opt.Assignments = None,
    as_json: opt.AsJson = False,
) -> None:
    """Train personal models with one method."""
    from fedapm.cli.session import print_summary, recorded
    from fedapm.experiments import build
    from fedapm.experiments.run import execute
    from fedapm.loggers import log_callbacks

    options = opt.common(data, data_root, image_encoder, text_encoder, rounds, engine, workers, device)
    own: Tables = {"algorithm": {"name": algorithm}, "engine": {"seed": seed}}
    callbacks = log_callbacks(log, out)
    experiment = build.resolve(*opt.layers(config, assign, options, own))
    spec = build.remark_on_split(build.plan(experiment)) if experiment.model.split is None else None
    with recorded(out, advice="Continue with --resume.", run_details=True):
        execute(spec or _searched(experiment, out, resume), out, resume=resume, callbacks=callbacks)
    print_summary(out, out / REPORT, as_json)


def _searched(experiment: Experiment, out: Path, resume: bool) -> RunSpec:
    """The run with the split that a search on validation data finds first."""
    from fedapm.experiments import build
    from fedapm.loggers.console import configure
    from fedapm.report import write_report
    from fedapm.tuning.split import with_split

    clients = build.federation(experiment.data)
    # the search has many runs of its own, whose engines nobody asks for
    configure(run_details=False)
    experiment = with_split(experiment, clients, out, resume=resume)
    configure(run_details=True)
    if (out / SPLIT / SPLIT_INFO).is_file():
        write_report(out / SPLIT)
    return build.plan(experiment, clients)
