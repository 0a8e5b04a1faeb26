"""``fedapm tune``: good settings for every method, chosen on validation data."""

from __future__ import annotations

import json
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
    ImageEncoder,
    Methods,
    Out,
    TextEncoder,
    assignments,
    common,
    console,
    layers,
    names,
    numbers,
    print_line,
)  # fmt: skip

app = typer.Typer()


@app.command()
def tune(
    config: ConfigFile = None,
    data: Data = None,
    data_root: DataRoot = None,
    methods: Methods = SIX,
    trials: Annotated[int, typer.Option("--trials", help="Trials of each method.")] = 20,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Number of rounds of a trial.")] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds, separated by commas; their mean counts.")] = "0",
    space: Annotated[
        str | None, typer.Option("--space", help="What is searched: wide, paper or client; wide if not given.")
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option("--search", help="A space of your own, as solver.lr=0.1,0.2 or algorithm.rho=log:0.001:1."),
    ] = None,
    sampler: Annotated[str | None, typer.Option("--sampler", help="grid, random or tpe.")] = None,
    pruner: Annotated[
        str, typer.Option("--pruner", help="What ends a trial early: none, median or halving.")
    ] = "median",
    metric: Annotated[
        str, typer.Option("--metric", help="What counts on validation data: accuracy, f1, auc or test_loss.")
    ] = "accuracy",
    select: Annotated[str, typer.Option("--select", help="At the last round, or at the best one.")] = "last",
    image_encoder: ImageEncoder = None,
    text_encoder: TextEncoder = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="How clients are run in a trial: sequential, vectorized or auto.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", help="Trials at a time; as many as there is room for if not given."),
    ] = None,
    device: Device = None,
    out: Out = Path("runs/tune"),
    assign: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Search good settings for every method.

    Each has the same number of trials. An interrupted search is continued.
    """
    from fedapm import tuning
    from fedapm.cli.session import recorded
    from fedapm.experiments import compare
    from fedapm.runs.provenance import command_line
    from fedapm.tuning.display import results_table

    options = tuning.Options(
        trials, rounds, tuple(numbers(seeds)), space, tuple(search or ()), sampler, pruner, metric, select
    )
    from_options = common(data, data_root, image_encoder, text_encoder, None, engine, None, device)
    assigned = compare.overlay(*assignments(assign))
    settings = [*layers(config, None, from_options), assigned]
    with recorded(out, report=None):
        tuned = tuning.tune(names(methods), out, *settings, options=options, workers=workers)
    if as_json:
        results = {result.name: result.as_dict() for result in tuned.methods}
        print(json.dumps({"tuned": str(tuned.path), "methods": results}, indent=2))
        return
    console().print(results_table(tuned.methods, tuned.options))
    print_line(f"Tuned settings: {tuned.path}")
    what = ([str(config)] if config is not None else []) + (["--data", data] if data is not None else [])
    what += ["--data-root", str(data_root)] if data_root is not None else []
    # compare has methods of its own where none are named, and refuses those that were not tuned
    what += ["--methods", methods] if methods != SIX else []
    what += [word for setting in assign or [] for word in ("--set", setting)]
    print_line(f"Next: {command_line(['compare', *what, '--tuned', str(out)])}")
