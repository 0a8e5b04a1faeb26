"""The command line for Flower: a federation on this machine for trying, and runs on it or on a real one."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedapm.core.extras import require
from fedapm.errors import FedapmError, Interrupted
from fedapm.experiments.settings import Tables, merged, parse_assignment, read_toml
from fedapm.loggers.console import ProgressDisplay, RoundProgress

if TYPE_CHECKING:
    from fedapm.flower.local.flower_cli import FlowerCli
    from fedapm.flower.settings import Deployment
    from fedapm.runs.records import Run

app = typer.Typer(help="Flower: the same experiment on machines of their own.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option("--folder", help="Folder of the federation on this machine.")]
HERE = Path("runs/federation")


@app.command()
def up(
    nodes: Annotated[int, typer.Option("--nodes", help="How many nodes, one client each.")] = 3, folder: Folder = HERE
) -> None:
    """Start a federation on this machine: TLS, a key for every node, loopback only."""
    _need()
    from fedapm.flower.local import federation as local

    with ProgressDisplay() as tell:
        try:
            made = local.up(folder, nodes, tell)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; what was started is stopped.") from None
    _say(f"A SuperLink on port {made.port} and {nodes} nodes are up. Certificates, keys, states, logs: {made.folder}")
    where = "" if folder == HERE else f" --folder {folder}"
    _say(f"Next: fedapm flower run examples/digits-flower.toml{where}")


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="Experiment file (TOML).", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="Folder for the results, on the server.")] = Path("runs/flower"),
    folder: Folder = HERE,
    superlink: Annotated[
        str | None, typer.Option("--superlink", help="A connection in Flower's own configuration, instead of --folder.")
    ] = None,
    assign: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting, as table.key=value; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run an experiment; the same command goes on with a run that was cut off."""
    _need()
    from fedapm.flower.local.app_folder import write_app
    from fedapm.flower.local.follow import finished, follow, submit
    from fedapm.flower.settings import deployment
    from fedapm.report import write_report
    from fedapm.runs.records import load_run

    tables = _absolute(merged(read_toml(config), *map(parse_assignment, assign or [])))
    plan, target = deployment(tables), out.resolve()
    rounds = plan.experiment.engine.rounds
    if not finished(target, rounds):
        flower, place = _flower(plan, folder, superlink, target)
        id = submit(flower, write_app(place, tables, target), target)
        progress = _progress(plan)
        try:
            follow(flower, id, target, rounds, progress.show)
        except KeyboardInterrupt:
            with suppress(FedapmError):
                flower.stop(id)
            raise Interrupted("interrupted. The same command goes on from there.") from None
        finally:
            progress.close()
    if not finished(target, rounds):
        _say(f"The run is complete; its folder {target} is on the server.")
        return
    report = write_report(target)
    found = load_run(target)
    if as_json:
        print(json.dumps({"report": str(report), "clients": _per_client(found)}, indent=2))
        return
    Console(width=None if sys.stdout.isatty() else 140).print(_table(found))
    _say(f"Report: {report}")


@app.command()
def status(
    folder: Folder = HERE, as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False
) -> None:
    """Say which programs of the federation on this machine are running, and which nodes it sees."""
    _need()
    from fedapm.flower.local import federation as local

    made = local.LocalFederation.read(folder.resolve())
    rows = [(p.name, p.pid, p.alive, local.log_file(made.folder, p.name)) for p in made.processes]
    running = any(alive for name, _, alive, _ in rows if name == "superlink")
    seen = local.online(made) if running else 0
    if as_json:
        programs = [{"name": name, "pid": pid, "running": alive, "log": str(log)} for name, pid, alive, log in rows]
        print(json.dumps({"port": made.port, "programs": programs, "nodes_online": seen}, indent=2))
        return
    table = Table("program", "process", "state", "log", box=None, pad_edge=False)
    for name, pid, alive, log in rows:
        table.add_row(name, str(pid), "running" if alive else "ended", str(log))
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    _say(f"{seen} of {made.nodes} nodes online, port {made.port}")


@app.command()
def down(folder: Folder = HERE) -> None:
    """Stop the federation on this machine and all it started; states, keys and logs stay."""
    _need()
    from fedapm.flower.local import federation as local

    running = local.down(folder.resolve())
    _say(f"{running} programs stopped." if running else "Nothing was running.")


@app.command()
def readmit(
    client: Annotated[str, typer.Argument(help="The id of a client that lost its state.")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the run, on the server.")] = Path("runs/flower"),
) -> None:
    """Let a client that lost its state begin anew: what it had sent is no longer counted."""
    from fedapm.flower.server.readmission import request

    _say(request(out, client))


def _progress(plan: Deployment) -> RoundProgress:
    engine = plan.experiment.engine
    label = f"{plan.experiment.algorithm.label} on {len(plan.clients)} nodes, seed {engine.seed}"
    return RoundProgress(label, engine.rounds)


def _flower(plan: Deployment, folder: Path, superlink: str | None, out: Path) -> tuple[FlowerCli, Path]:
    """The SuperLink to ask, and where the app folder is put."""
    from fedapm.flower.local import federation as local
    from fedapm.flower.local.flower_cli import FlowerCli

    if superlink is not None:
        return FlowerCli(superlink), out.with_name(f"{out.name}-app")
    made = local.LocalFederation.read(folder.resolve())
    dead = [p.name for p in made.processes if not p.alive]
    if dead:
        raise FedapmError(f"the federation in {folder} is not up ({', '.join(dead)}); start it with: fedapm flower up.")
    if made.nodes != len(plan.clients):
        raise FedapmError(
            f"the experiment has {len(plan.clients)} clients, the federation {made.nodes} nodes; set data.clients = "
            f"{made.nodes}, or start it with --nodes {len(plan.clients)}."
        )
    return made.flower, made.folder / "fedapm-app"


def _absolute(tables: Tables) -> Tables:
    """The same settings for programs that run elsewhere on this machine."""
    data = tables.get("data", {})
    if not isinstance(data, Mapping):
        return tables
    places: dict[str, Any] = {
        key: str(Path(data[key]).expanduser().resolve()) for key in ("root", "cache") if key in data
    }
    return {**tables, "data": {**data, **places}} if places else tables


def _per_client(found: Run) -> list[dict[str, Any]]:
    last = found.evaluated[-1]["evaluations"]
    rows = []
    for k, client in enumerate(found.info["clients"]):
        scores = {
            name if len(last) == 1 else f"{view}.{name}": values[k]
            for view, evaluation in last.items()
            for name, values in evaluation["per_client"].items()
        }
        rows.append({"client": client["id"], "train": client["train"], "test": client["test"], **scores})
    return rows


def _table(found: Run) -> Table:
    rows = _per_client(found)
    kind = "validation" if "validation = 0.0" not in found.config and "validation" in found.config else "test"
    table = Table(title=f"{found.label} after round {found.rounds[-1]['round']}, {kind} scores", title_justify="left")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="left" if name == "client" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*("–" if v is None else f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()))
    return table


def _need() -> None:
    from fedapm.flower import EXTRA, PURPOSE

    for package in ("flwr", "psutil", "trustme"):
        require(package, EXTRA, PURPOSE)


def _say(text: str) -> None:
    Console(soft_wrap=True).print(text, highlight=False, markup=False)
