"""fedapm run: train personal models with one method."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedapm.cli import options as opt
from fedapm.experiments.settings import Tables
from fedapm.runs.layout import REPORT

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
    spec = build.plan(build.resolve(*opt.layers(config, assign, options, own)))
    with recorded(out, advice="Continue with --resume.", run_details=True):
        execute(spec, out, resume=resume, callbacks=callbacks)
    print_summary(out, out / REPORT, as_json)
