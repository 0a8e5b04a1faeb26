"""fedapm paper: everything the paper shows about one data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedapm.cli import options as opt
from fedapm.runs.layout import PAPER_COMPARE, REPORT

app = typer.Typer()


@app.command()
def paper(
    data: Annotated[str, typer.Option("--data", help="Data set (see: fedapm list data).")] = "digits",
    scale: Annotated[
        str, typer.Option("--scale", help="small: about half an hour on two cores; full: as in the paper.")
    ] = "small",
    data_root: opt.DataRoot = None,
    methods: Annotated[str | None, typer.Option("--methods", help="Methods, separated by commas, or all.")] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help="Seeds, separated by commas.")] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Rounds of the comparison.")] = None,
    trials: Annotated[int | None, typer.Option("--trials", help="Trials of each method in the search.")] = None,
    image_encoder: opt.ImageEncoder = None,
    text_encoder: opt.TextEncoder = None,
    workers: opt.RunsAtOnce = None,
    device: opt.Device = None,
    out: opt.Out = Path("runs/paper"),
    assign: opt.Assignments = None,
) -> None:
    """Tune, compare and sweep as the paper does.

    Everything is for one data set. What was cut off goes on with the same command.
    """
    from fedapm.cli.session import print_summary, recorded
    from fedapm.experiments.paper import Paper, adjusted
    from fedapm.experiments.paper import scale as named_scale
    from fedapm.report.paper.page import write_paper_report

    chosen = adjusted(
        named_scale(scale, data),
        None if methods is None else opt.names(methods),
        None if seeds is None else opt.numbers(seeds),
        rounds,
        trials,
    )
    config = Path(data) if data.endswith(".toml") else None
    options = opt.common(None if config else data, data_root, image_encoder, text_encoder, None, None, workers, device)
    with recorded(out, report=write_paper_report):
        Paper(out, chosen, opt.layers(config, assign, options), workers).run({"data": data, "settings": assign or []})
    print_summary(out / PAPER_COMPARE, out / REPORT)
