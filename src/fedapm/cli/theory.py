"""fedapm theory: what the paper's analysis says about a run or an experiment."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.table import Table

from fedapm.cli import options as opt
from fedapm.errors import FedapmError

if TYPE_CHECKING:
    from fedapm.theory.study import Progress, Study

app = typer.Typer()


@app.command()
def theory(
    what: Annotated[Path, typer.Argument(metavar="RUN|CONFIG", help="A run folder, or an experiment file (TOML).")],
    after: Annotated[int, typer.Option("--after", min=0, help="Experiment file: train so many rounds first.")] = 0,
    clients: Annotated[int, typer.Option("--clients", min=1, help="Estimate the curvature of so many clients.")] = 5,
    samples: Annotated[
        int, typer.Option("--samples", min=0, help="Use at most so many samples of a client for it; 0: all.")
    ] = 1000,
    data_root: opt.DataRoot = None,
    assign: opt.Assignments = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show what the paper's analysis says of a run.

    Curvature, the bounds on ρ and σ, how much clients disagree, and observed rates.
    """
    from fedapm.experiments import build
    from fedapm.experiments.theory import theory_of_experiment, theory_of_run
    from fedapm.report import write_report
    from fedapm.runs.folder import locked
    from fedapm.runs.layout import REPORT

    is_run = what.is_dir()
    if is_run and (after or assign):
        raise FedapmError("--after and --set are for an experiment file; a run is measured as it is.")
    with ExitStack() as stack:
        progress = _progress(stack)
        if is_run:
            found = theory_of_run(what, data_root=data_root, clients=clients, samples=samples, progress=progress)
        else:
            root = {"data": {"root": data_root and str(data_root)}}
            spec = build.plan(build.resolve(*opt.layers(what, assign, root)))
            found = theory_of_experiment(spec, after=after, clients=clients, samples=samples, progress=progress)
    written = None
    if is_run:
        with locked(what):
            written = found.write(what)
            if (what / REPORT).is_file():
                write_report(what)
    if as_json:
        print(json.dumps(found.as_dict(), indent=2, ensure_ascii=False))
        return
    for table in _tables(found.study):
        opt.console().print(table)
        opt.print_line("")
    for sentence in found.sentences:
        opt.print_line(f"• {sentence}")
    if written is not None:
        opt.print_line(f"Written to {written}; the report of the run shows it.")


def _progress(stack: ExitStack) -> Progress:
    """Show how many clients are done, from the first on: rounds that come before have a display of their own."""
    from fedapm.loggers.console import ProgressDisplay

    shown: list[ProgressDisplay] = []

    def progress(done: int, total: int) -> None:
        if not shown:
            shown.append(stack.enter_context(ProgressDisplay()))
        shown[0]("Curvature of clients", done, total)

    return progress


def _tables(study: Study) -> Iterator[Table]:
    from fedapm.theory.sentences import number

    opt.print_line(f"{study.label} on {study.data}, seed {study.seed}, after round {study.round}")
    if study.constants:
        partly = sum(c.samples < c.available for c in study.constants)
        most = f", at most {max(c.samples for c in study.constants):,} samples each" if partly else ""
        of = f"{len(study.constants)} of {study.clients} clients{most}"
        table = _table(f"Curvature, {of}", "median", "smallest", "largest")
        for name, block in (("u", "uu"), ("v", "vv"), ("uv", "uv")):
            values = [value for c in study.constants if (value := getattr(c, name)) is not None]
            if values:
                spread = (statistics.median(values), min(values), max(values))
                table.add_row(f"L_{name} = ‖∇²_{block} f_i‖", *map(number, spread))
        if not all(c.converged for c in study.constants):
            table.caption = "the iteration did not come to rest everywhere: true values may be larger"
        yield table
    if study.in_use is not None and study.demanded is not None:
        table = _table("Penalties", "in use", "demanded", "")
        used, least = study.in_use, study.demanded
        table.add_row("ρ", number(used.rho), number(least.rho), "3 α_i max(L_u, L_uv)")
        table.add_row("σ", number(used.sigma), number(least.sigma), "8/15 ρ, and α_i L_v")
        yield table
    table = _table("Where it stands", "value")
    for name, value in _standing(study):
        table.add_row(name, number(value))
    yield table


def _standing(study: Study) -> Iterator[tuple[str, float]]:
    """What was measured over all clients, as far as the method has it."""
    measured = {
        "augmented Lagrangian": study.lagrangian,
        "Lyapunov function": study.lyapunov,
        "primal residual ‖u_i − ū‖, root mean square": study.primal,
    }
    names = {
        "u": "‖α_i ∇_u f_i + π_i + ρ(u_i − ū)‖",
        "v": "‖∇_v f_i‖",
        "consensus": "‖u_i − ū‖, all clients stacked",
        "dual": "‖Σ π_i‖",
    }
    measured |= {text: (study.stationarity or {}).get(name) for name, text in names.items()}
    measured["disagreement at ū"] = study.disagreement
    yield from ((name, value) for name, value in measured.items() if value is not None)


def _table(title: str, *columns: str) -> Table:
    """A table of names and numbers; a column without a heading is text."""
    table = Table(box=SIMPLE, caption_justify="left", pad_edge=False, show_edge=False)
    table.add_column(title, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    return table
