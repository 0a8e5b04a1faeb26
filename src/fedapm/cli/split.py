"""fedapm split: which part of the network should be personal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedapm.cli import options as opt
from fedapm.runs.layout import REPORT

if TYPE_CHECKING:
    from fedapm.experiments.settings import Tables

app = typer.Typer()

OF_THE_SEARCH = ("--budget", "--seeds", "--metric", "--choose", "--out")
"""Options that a run does not have, or has for itself."""


@app.command()
def split(
    config: opt.ConfigFile = None,
    data: opt.Data = None,
    data_root: opt.DataRoot = None,
    algorithm: Annotated[str | None, typer.Option("--algorithm", help="Method that the split is for.")] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Rounds of the run that the split is for.")] = None,
    budget: Annotated[
        int | None, typer.Option("--budget", help="Rounds of the whole search; four times --rounds if not given.")
    ] = None,
    seeds: Annotated[
        str, typer.Option("--seeds", help="Seeds: the first for all candidates, all of them for the last few.")
    ] = "0,1",
    metric: Annotated[
        str | None, typer.Option("--metric", help="What counts on validation data: accuracy, f1, auc or test_loss.")
    ] = None,
    choose: Annotated[
        str,
        typer.Option(
            "--choose",
            help="The fewest personal parameters of those that are as good as the best: simplest (by a 95% interval) "
            "or one-se (within one standard error).",
        ),
    ] = "simplest",
    image_encoder: opt.ImageEncoder = None,
    text_encoder: opt.TextEncoder = None,
    engine: opt.EngineName = None,
    workers: opt.Workers = None,
    device: opt.Device = None,
    out: opt.Out = Path("runs/split"),
    assign: opt.Assignments = None,
    as_json: opt.AsJson = False,
) -> None:
    """Search which part of the network should be personal.

    An interrupted search is continued.
    """
    from fedapm.cli.session import print_search, recorded
    from fedapm.experiments import build
    from fedapm.tuning.split import SplitOptions, find_split

    options = opt.common(data, data_root, image_encoder, text_encoder, rounds, engine, workers, device)
    own: Tables = {"algorithm": {"name": algorithm}}
    experiment = build.resolve(*opt.layers(config, assign, options, own))
    share = experiment.data.validation or SplitOptions.validation
    how = SplitOptions(budget, tuple(opt.numbers(seeds)), metric, share, choose)
    with recorded(out):
        # the share for validation is that of the search, which takes it off the training data itself
        clients = build.federation(replace(experiment.data, validation=0.0))
        search = find_split(experiment, clients, out, options=how)
    print_search(out, out / REPORT, as_json, run_command(sys.argv[1:], search.assignment))


def run_command(arguments: Sequence[str], assignment: str) -> str:
    """The command that trains with the split that was found.

    Args:
        arguments: Those of the search, its name first.
        assignment: The split, as ``--set`` takes it.
    """
    from fedapm.runs.provenance import command_line

    kept = ["run"]
    words = iter(arguments[1:])
    for word in words:
        name, equals, _ = word.partition("=")
        if name in OF_THE_SEARCH:
            if not equals:
                next(words, None)
        elif word != "--json":
            kept.append(word)
    return command_line([*kept, "--set", assignment])
