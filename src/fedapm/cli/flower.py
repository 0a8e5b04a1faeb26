"""The command line for Flower: a federation on this machine for trying things out, and runs on it or on a real one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedapm.cli.options import CONFIG, AsJson, Assignments, Log, console, layers, print_line
from fedapm.core.extras import require
from fedapm.errors import FedapmError, Interrupted

if TYPE_CHECKING:
    from fedapm.experiments.settings import Tables
    from fedapm.flower.local.flower_cli import FlowerCli
    from fedapm.flower.settings import Deployment
    from fedapm.runs.records import Run

app = typer.Typer(name="flower", help="Run the same experiment on several machines.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option("--folder", help="Folder of the federation on this machine.")]
DEFAULT_FOLDER = Path("runs/federation")
AT_ONCE = 3 * (os.cpu_count() or 1)
"""Messages under way at a time to nodes on this machine. Each starts a process, and Flower gives it up after 30 s."""


@app.command()
def up(
    nodes: Annotated[int, typer.Option("--nodes", help="How many nodes, one client each.")] = 3,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Start a federation on this machine: TLS, a key for every node, loopback only."""
    _require_extra()
    from fedapm.flower.local import federation as local
    from fedapm.loggers.console import ProgressDisplay

    with ProgressDisplay() as progress:
        try:
            federation = local.up(folder, nodes, progress)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; what was started is stopped.") from None
    print_line(
        f"A SuperLink on port {federation.port} and {nodes} nodes are up. Certificates, keys, states, logs: "
        f"{federation.folder}"
    )
    option = "" if folder == DEFAULT_FOLDER else f" --folder {folder}"
    print_line(f"Next: fedapm flower run examples/digits-flower.toml{option}")


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help=CONFIG, show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="Folder for the results, on the server.")] = Path("runs/flower"),
    folder: Folder = DEFAULT_FOLDER,
    superlink: Annotated[
        str | None, typer.Option("--superlink", help="A connection in Flower's own configuration, instead of --folder.")
    ] = None,
    log: Log = None,
    assign: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Run an experiment; the same command goes on with a run that was interrupted."""
    _require_extra()
    from fedapm.experiments.settings import merged
    from fedapm.flower.local.app_folder import write_app
    from fedapm.flower.local.federation import superlink_log
    from fedapm.flower.local.follow import finished, follow, submit
    from fedapm.flower.settings import TABLE, deployment
    from fedapm.loggers import check_folder_logs, log_folder
    from fedapm.loggers.rounds import RoundProgress
    from fedapm.report import write_report
    from fedapm.report.card import write_card
    from fedapm.runs.folder import locked
    from fedapm.runs.provenance import command_line
    from fedapm.runs.records import load_run

    given = merged({TABLE: {"at_once": AT_ONCE}} if superlink is None else {}, *layers(config, assign))
    tables = _own_data(_absolute(given))
    plan, target = deployment(tables), out.resolve()
    logs = check_folder_logs(log)
    rounds = plan.experiment.engine.rounds
    if not finished(target, rounds):
        flower, app_folder = _superlink(plan, folder, superlink, target)
        id = submit(flower, write_app(app_folder, tables, target), target)
        label = f"{plan.experiment.algorithm.label} on {len(plan.clients)} nodes, seed {plan.experiment.engine.seed}"
        with closing(RoundProgress(label, rounds)) as progress:
            try:
                log_file = None if superlink is not None else superlink_log(folder.resolve())
                follow(flower, id, target, rounds, progress.show, progress.note, log_file)
            except KeyboardInterrupt:
                with suppress(FedapmError):
                    flower.stop(id)
                raise Interrupted("interrupted. The same command goes on from there.") from None
    if not finished(target, rounds):
        print_line(f"The run is complete; its folder {target} is on the server.")
        return
    with locked(target):
        log_folder(logs, target)
        report = write_report(target)
        write_card(target, command_line(sys.argv[1:]))
    result = load_run(target)
    if as_json:
        print(json.dumps({"report": str(report), "clients": _client_rows(result)}, indent=2))
        return
    console().print(_client_table(result))
    print_line(f"Report: {report}")


@app.command()
def status(folder: Folder = DEFAULT_FOLDER, as_json: AsJson = False) -> None:
    """List the programs of the federation on this machine, and how many nodes are online."""
    _require_extra()
    from fedapm.flower.local import federation as local

    federation = local.LocalFederation.read(folder.resolve())
    rows = [(p.name, p.pid, p.alive, local.log_file(federation.folder, p.name)) for p in federation.processes]
    running = any(alive for name, _, alive, _ in rows if name == "superlink")
    online = local.online(federation) if running else 0
    if as_json:
        programs = [{"name": name, "pid": pid, "running": alive, "log": str(log)} for name, pid, alive, log in rows]
        print(json.dumps({"port": federation.port, "programs": programs, "nodes_online": online}, indent=2))
        return
    table = Table("program", "process", "state", "log", box=None, pad_edge=False)
    for name, pid, alive, log in rows:
        table.add_row(name, str(pid), "running" if alive else "ended", str(log))
    console(200).print(table)
    print_line(f"{online} of {federation.nodes} nodes online, port {federation.port}")


@app.command()
def down(folder: Folder = DEFAULT_FOLDER) -> None:
    """Stop the federation on this machine and all it started; states, keys and logs stay."""
    _require_extra()
    from fedapm.flower.local import federation as local

    running = local.down(folder.resolve())
    print_line(f"{running} programs stopped." if running else "Nothing was running.")


@app.command()
def readmit(
    client: Annotated[str, typer.Argument(help="The id of a client that lost its state.")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the run, on the server.")] = Path("runs/flower"),
) -> None:
    """Let a client that lost its state begin anew: what it had sent is no longer counted."""
    from fedapm.flower.server.readmission import request

    print_line(request(out, client))


def _superlink(plan: Deployment, folder: Path, superlink: str | None, out: Path) -> tuple[FlowerCli, Path]:
    """The SuperLink to submit to, and where to put the app folder."""
    from fedapm.flower.local import federation as local
    from fedapm.flower.local.flower_cli import FlowerCli

    if superlink is not None:
        return FlowerCli(superlink), out.with_name(f"{out.name}-app")
    federation = local.LocalFederation.read(folder.resolve())
    ended = [p.name for p in federation.processes if not p.alive]
    if ended:
        raise FedapmError(
            f"the federation in {folder} is not up ({', '.join(ended)}); start it with: fedapm flower up."
        )
    if federation.nodes != len(plan.clients):
        raise FedapmError(
            f"the experiment has {len(plan.clients)} clients, the federation {federation.nodes} nodes; set "
            f"data.clients = {federation.nodes}, or start it with --nodes {len(plan.clients)}."
        )
    return federation.flower, federation.folder / "fedapm-app"


def _absolute(tables: Tables) -> Tables:
    """The same settings with absolute paths, for programs with another working folder."""
    absolute = dict(tables)
    for name, keys in (("data", ("root", "cache")), ("flower", ("registry",))):
        table = tables.get(name, {})
        if isinstance(table, Mapping):
            paths = {
                key: str(Path(table[key]).expanduser().resolve()) for key in keys if isinstance(table.get(key), str)
            }
            absolute |= {name: {**table, **paths}} if paths else {}
    return absolute


def _own_data(tables: Tables) -> Tables:
    """The same settings with the digest of a data file of one's own, and the ids of the clients in it."""
    from fedapm.experiments import build
    from fedapm.experiments.settings import OWN_KEYS

    data, flower = tables.get("data", {}), tables.get(build.NETWORK_TABLE, {})
    if not isinstance(data, Mapping) or not any(data.get(key) is not None for key in OWN_KEYS):
        return tables
    settings = build.resolve(tables).data
    found = {"name": settings.name} | ({"digest": settings.digest} if settings.digest is not None else {})
    tables = {**tables, "data": {**data, **found}}
    if isinstance(flower, Mapping) and "clients" not in flower and settings.partition == "natural":
        ids = list(build.counted(settings).ids)
        tables[build.NETWORK_TABLE] = {**flower, "clients": ids}
    return tables


def _client_rows(run: Run) -> list[dict[str, Any]]:
    last = run.evaluated[-1]["evaluations"]
    rows = []
    for k, client in enumerate(run.info["clients"]):
        scores = {
            name if len(last) == 1 else f"{view}.{name}": values[k]
            for view, evaluation in last.items()
            for name, values in evaluation["per_client"].items()
        }
        rows.append({"client": client["id"], "train": client["train"], "test": client["test"], **scores})
    return rows


def _client_table(run: Run) -> Table:
    from fedapm.report.evaluated_on import evaluated_on

    rows = _client_rows(run)
    title = f"{run.label} after round {run.rounds[-1]['round']}, {evaluated_on([run])} scores"
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="left" if name == "client" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*("–" if v is None else f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()))
    return table


def _require_extra() -> None:
    from fedapm.flower import EXTRA, PURPOSE

    for package in ("flwr", "psutil", "trustme"):
        require(package, EXTRA, PURPOSE)
