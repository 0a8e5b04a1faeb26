"""fedapm compare: several methods and seeds on the same clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedapm.cli.options import (
    SIX,
    AsJson,
    Assignments,
    ConfigFile,
    Data,
    DataRoot,
    Device,
    EngineName,
    ImageEncoder,
    Log,
    Methods,
    Out,
    Rounds,
    Seeds,
    TextEncoder,
    TunedPath,
    Workers,
    common,
    layers,
    names,
    numbers,
)
from fedapm.experiments.settings import parse_assignment
from fedapm.runs.layout import REPORT

app = typer.Typer()


@app.command()
def compare(
    config: ConfigFile = None,
    data: Data = None,
    data_root: DataRoot = None,
    methods: Methods = SIX,
    seeds: Seeds = "0,1,2",
    image_encoder: ImageEncoder = None,
    text_encoder: TextEncoder = None,
    rounds: Rounds = None,
    engine: EngineName = None,
    workers: Workers = None,
    device: Device = None,
    tuned: TunedPath = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", help="A level to reach, as accuracy=0.62 or train_loss=0.5; may be repeated."),
    ] = None,
    log: Log = None,
    out: Out = Path("runs/compare"),
    assign: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Train with several methods and seeds on the same clients; runs that are there already are kept."""
    from fedapm.cli.session import print_summary, recorded
    from fedapm.experiments import compare as comparison
    from fedapm.loggers import log_callbacks
    from fedapm.tuning import tuned_layer

    options = common(data, data_root, image_encoder, text_encoder, rounds, engine, workers, device)
    chosen, repeats = names(methods), numbers(seeds)
    targets = comparison.parse_targets(target or [])
    best, origin = tuned_layer(tuned, chosen) if tuned is not None else ({}, None)
    explicit = comparison.laid(*map(parse_assignment, assign or []))
    experiments = comparison.plans(chosen, repeats, *layers(config, None, options), best, explicit)
    about = comparison.About(chosen, repeats, targets, origin)
    callbacks = log_callbacks(log, out)
    with recorded(out):
        comparison.run_all(experiments, out, callbacks=callbacks, about=about)
    print_summary(out, out / REPORT, as_json)
