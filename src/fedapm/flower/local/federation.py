"""A federation on this machine, for trying things out: a SuperLink with TLS and nodes with keys, all on loopback."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedapm.errors import FedapmError
from fedapm.flower.local.certificates import write_certificates, write_key
from fedapm.flower.local.flower_cli import FlowerCli, environment, program
from fedapm.flower.local.processes import Process, at_home, start, stop
from fedapm.runs.files import read_json, write_atomic, write_json

FEDERATION, DATABASE, NAME, HOST = "federation.json", "superlink.db", "local", "127.0.0.1"
PATIENCE = 120.0
"""Seconds until the programs must be up; a busy machine starts them slowly."""
POLL = 2.0
"""Seconds between two calls to the SuperLink; a call costs as much CPU time as starting a node."""

ProgressCallback = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and the total."""


@dataclass(frozen=True)
class LocalFederation:
    """The programs of a federation, and its folder."""

    folder: Path
    port: int
    processes: list[Process]

    @classmethod
    def read(cls, folder: Path) -> LocalFederation:
        """The federation in a folder, whether it is up or not."""
        path = folder / FEDERATION
        if not path.is_file():
            raise FedapmError(f"{folder} holds no federation; start one with: fedapm flower up --folder {folder}.")
        fields = read_json(path)
        try:
            return cls(folder, int(fields["port"]), [Process.from_json(p) for p in fields["processes"]])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FedapmError(f"{path} does not describe a federation ({error}).") from None

    def write(self) -> None:
        """Write the description that later commands read."""
        write_json(self.folder / FEDERATION, {"port": self.port, "processes": [p.to_json() for p in self.processes]})

    @property
    def nodes(self) -> int:
        """How many nodes it was started with."""
        return sum(p.name.startswith("node-") for p in self.processes)

    @property
    def flower(self) -> FlowerCli:
        """Flower's command line for its SuperLink."""
        return FlowerCli(NAME, self.folder / "flower")

    @property
    def authority(self) -> Path:
        """The certificate of its authority."""
        return self.folder / "certificates" / "ca.crt"


def up(folder: Path, nodes: int, progress: ProgressCallback) -> LocalFederation:
    """Start a SuperLink and nodes, and wait until all of them are online.

    Args:
        folder: Where certificates, keys, states and logs go.
        nodes: How many nodes to start.
        progress: Called as nodes are registered and come online.

    Raises:
        FedapmError: If the folder cannot be used or a program does not start; nothing is left running then.
    """
    if os.name != "posix":
        raise FedapmError(
            "fedapm flower up needs a POSIX system; on Windows use WSL, or start Flower's programs yourself."
        )
    if nodes < 1:
        raise FedapmError(f"--nodes {nodes}: a federation needs at least one node.")
    folder = folder.resolve()
    if (folder / FEDERATION).is_file() and any(p.alive for p in LocalFederation.read(folder).processes):
        raise FedapmError(
            f"the federation in {folder} is up already; stop it with: fedapm flower down --folder {folder}."
        )
    _create(folder)
    federation = LocalFederation(folder, _free_port(), [])
    try:
        _start(federation, nodes, progress)
    except BaseException:
        stop(federation.processes)
        stop(at_home(folder))
        raise
    return federation


def down(folder: Path) -> int:
    """Stop everything that a federation started; returns how many of its programs were running."""
    federation = LocalFederation.read(folder.resolve())
    running = sum(process.alive for process in federation.processes)
    stop(federation.processes)
    stop(at_home(federation.folder))
    return running


def node_config(k: int, state: Path, key: Path) -> str:
    """The ``--node-config`` of a node."""
    if '"' in f"{state}{key}":
        raise FedapmError(f"{state}: Flower's node configuration cannot hold a path with a quotation mark.")
    return f'partition-id={k} state-dir="{state}" node-key="{key}"'


def start_node(
    federation: LocalFederation,
    k: int,
    key: Path | None = None,
    authority: Path | None = None,
    nodes: int | None = None,
) -> Process:
    """Start one node.

    Args:
        federation: Whose node it is.
        k: Its number.
        key: Its private key, if not the one made for it.
        authority: The certificate it trusts, if not the federation's.
        nodes: How many nodes the federation will have, if not as many as it has.
    """
    folder = federation.folder / "nodes" / str(k)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = key or node_key(federation.folder, k)
    command = [
        program("flower-supernode"),
        *("--superlink", f"{HOST}:{federation.port}"),
        *("--root-certificates", str(authority or federation.authority)),
        *("--auth-supernode-private-key", str(key)),
        *("--node-config", node_config(k, folder / "state", key)),
        *("--host", HOST, "--port", str(_free_port()), "--isolation", "subprocess"),
    ]
    variables = environment(folder / "flower", nodes or federation.nodes)
    return start(f"node-{k}", command, log_file(federation.folder, f"node-{k}"), variables)


def start_superlink(federation: LocalFederation) -> Process:
    """Start the SuperLink, with the database it had before if that exists."""
    folder = federation.folder
    command = [
        program("flower-superlink"),
        *("--ssl-ca-certfile", str(federation.authority)),
        *("--ssl-certfile", str(federation.authority.with_name("server.pem"))),
        *("--ssl-keyfile", str(federation.authority.with_name("server.key"))),
        *("--host", HOST, "--port", str(federation.port), "--enable-supernode-auth", "--isolation", "subprocess"),
        *("--database", str(folder / DATABASE)),
    ]
    return start("superlink", command, log_file(folder, "superlink"), environment(folder / "superlink-home"))


def node_key(folder: Path, k: int) -> Path:
    """The path of a node's private key."""
    return folder / "keys" / f"node-{k}"


def log_file(folder: Path, name: str) -> Path:
    """The path of a program's log."""
    return folder / "logs" / f"{name}.log"


def superlink_log(folder: Path) -> Path:
    """The path of the SuperLink's log, in which the server's app logs too."""
    return log_file(folder, "superlink")


def online(federation: LocalFederation) -> int:
    """How many nodes are online, as the SuperLink reports."""
    return sum(node.get("status") == "online" for node in federation.flower.nodes())


def wait_for_superlink(federation: LocalFederation) -> None:
    """Wait until the SuperLink accepts connections, with a certificate of the federation's authority."""
    context = ssl.create_default_context(cafile=str(federation.authority))
    end = time.monotonic() + PATIENCE
    while True:
        with (
            suppress(OSError),
            socket.create_connection((HOST, federation.port), timeout=5) as connection,
            context.wrap_socket(connection, server_hostname=HOST),
        ):
            return
        _check_alive(federation)
        if time.monotonic() > end:
            log = log_file(federation.folder, "superlink")
            raise FedapmError(f"the SuperLink does not answer on port {federation.port}; see {log}.")
        time.sleep(0.2)


def _start(federation: LocalFederation, nodes: int, progress: ProgressCallback) -> None:
    folder = federation.folder
    if not federation.authority.is_file():
        write_certificates(federation.authority.parent)
    connection = {"address": f"{HOST}:{federation.port}", "root-certificates": str(federation.authority)}
    config: dict[str, Any] = {"superlink": {"default": NAME, NAME: connection}}
    write_atomic(folder / "flower" / "config.toml", tomli_w.dumps(config))
    # with the database of one that was killed it would take its nodes for connected, and refuse them for a minute
    for path in folder.glob(f"{DATABASE}*"):
        path.unlink()
    federation.processes.append(start_superlink(federation))
    federation.write()
    wait_for_superlink(federation)
    for k in range(nodes):
        key = node_key(folder, k)
        if not key.is_file():
            write_key(key)
        progress("registering nodes", k, nodes)
        federation.flower.register(key.with_name(f"{key.name}.pub"))
        federation.processes.append(start_node(federation, k, nodes=nodes))
        federation.write()
    end = time.monotonic() + PATIENCE
    while (count := online(federation)) < nodes:
        progress("nodes online", count, nodes)
        _check_alive(federation)
        if time.monotonic() > end:
            raise FedapmError(f"only {count} of {nodes} nodes came online; see {folder / 'logs'}.")
        time.sleep(POLL)
    _check_alive(federation)
    progress("nodes online", nodes, nodes)


def _check_alive(federation: LocalFederation) -> None:
    for process in federation.processes:
        if not process.alive:
            log = log_file(federation.folder, process.name)
            lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise FedapmError(f"{process.name} has exited ({lines[-1] if lines else 'its log is empty'}); see {log}.")


def _create(folder: Path) -> None:
    """Create a federation's folder, or check that it is one; only its owner may read it."""
    if folder.exists() and not folder.is_dir():
        raise FedapmError(f"{folder} is a file; give a folder for the federation.")
    known = (folder / FEDERATION).is_file() or (folder / "keys").is_dir()
    if folder.is_dir() and any(folder.iterdir()) and not known:
        raise FedapmError(f"{folder} holds something else; give a folder for the federation alone.")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        port: int = sock.getsockname()[1]
        return port
