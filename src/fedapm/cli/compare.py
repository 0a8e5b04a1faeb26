"""fedapm compare: several methods and seeds on the same clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedapm.cli import options as opt
from fedapm.runs.layout import REPORT

app = typer.Typer()


@app.command()
def compare(
    config: opt.ConfigFile = None,
    data: opt.Data = None,
    data_root: opt.DataRoot = None,
    methods: opt.Methods = opt.SIX,
    seeds: opt.Seeds = "0,1,2",
    image_encoder: opt.ImageEncoder = None,
    text_encoder: opt.TextEncoder = None,
    rounds: opt.Rounds = None,
    engine: opt.EngineName = None,
    workers: opt.RunsAtOnce = None,
    device: opt.Device = None,
    tuned: opt.TunedPath = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", help="A level to reach, as accuracy=0.62 or train_loss=0.5; may be repeated."),
    ] = None,
    log: opt.Log = None,
    out: opt.Out = Path("runs/compare"),
    assign: opt.Assignments = None,
    as_json: opt.AsJson = False,
) -> None:
    """Train with several methods and seeds on the same clients.

    Runs that are there already are kept.
    """
    from fedapm.cli.session import print_summary, recorded
    from fedapm.experiments import compare as comparison
    from fedapm.loggers import log_callbacks
    from fedapm.tuning import tuned_layer

    options = opt.common(data, data_root, image_encoder, text_encoder, rounds, engine, workers, device)
    chosen, repeats = opt.names(methods), opt.numbers(seeds)
    targets = comparison.parse_targets(target or [])
    best, origin = tuned_layer(tuned, chosen) if tuned is not None else ({}, None)
    explicit = comparison.overlay(*opt.assignments(assign))
    experiments = comparison.plans(chosen, repeats, *opt.layers(config, None, options), best, explicit)
    about = comparison.About(chosen, repeats, targets, origin)
    callbacks = log_callbacks(log, out)
    with recorded(out):
        comparison.run_all(experiments, out, callbacks=callbacks, about=about, workers=workers)
    print_summary(out, out / REPORT, as_json)
