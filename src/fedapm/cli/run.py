"""fedapm run: train personal models with one method."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedapm.cli.options import (
    AsJson,
    Assignments,
    ConfigFile,
    Data,
    DataRoot,
    Device,
    EngineName,
    ImageEncoder,
    Log,
    Out,
    Rounds,
    TextEncoder,
    Workers,
    common,
    layers,
)
from fedapm.experiments.settings import Tables
from fedapm.runs.layout import REPORT

app = typer.Typer()


@app.command()
def run(
    config: ConfigFile = None,
    data: Data = None,
    data_root: DataRoot = None,
    algorithm: Annotated[str | None, typer.Option("--algorithm", help="Method (see: fedapm list methods).")] = None,
    image_encoder: ImageEncoder = None,
    text_encoder: TextEncoder = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the run.")] = None,
    engine: EngineName = None,
    workers: Workers = None,
    device: Device = None,
    log: Log = None,
    out: Out = Path("runs/run"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    assign: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Train personal models with one method."""
    from fedapm.cli.session import print_summary, recorded
    from fedapm.experiments import build
    from fedapm.experiments.run import execute
    from fedapm.loggers import log_callbacks

    options = common(data, data_root, image_encoder, text_encoder, rounds, engine, workers, device)
    own: Tables = {"algorithm": {"name": algorithm}, "engine": {"seed": seed}}
    callbacks = log_callbacks(log, out)
    spec = build.plan(build.resolve(*layers(config, assign, options, own)))
    with recorded(out, advice="Continue with --resume.", run_details=True):
        execute(spec, out, resume=resume, callbacks=callbacks)
    print_summary(out, out / REPORT, as_json)
