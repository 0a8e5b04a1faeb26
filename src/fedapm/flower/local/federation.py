"""A federation on this machine, for trying: a SuperLink with TLS and nodes with keys, all on loopback."""

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
from fedapm.flower.local.flower_cli import Flower, environment, program
from fedapm.flower.local.processes import Process, at_home, start, stop
from fedapm.runs.files import read_json, write_atomic, write_json

ABOUT, DATABASE, NAME, HOST = "federation.json", "superlink.db", "local", "127.0.0.1"
PATIENCE = 120.0
"""Seconds until the programs must be up; a busy machine takes its time."""
AGAIN = 2.0
"""Seconds between two questions; asking takes as much of a processor as starting a node."""
Tell = Callable[[str, int, int], None]


@dataclass(frozen=True)
class LocalFederation:
    """The programs of a federation, and where they are."""

    folder: Path
    port: int
    processes: list[Process]

    @classmethod
    def read(cls, folder: Path) -> LocalFederation:
        """The federation in a folder, whether it is up or not."""
        path = folder / ABOUT
        if not path.is_file():
            raise FedapmError(f"{folder} holds no federation; start one with: fedapm flower up --folder {folder}.")
        note = read_json(path)
        try:
            return cls(folder, int(note["port"]), [Process.from_json(p) for p in note["processes"]])
        except (KeyError, TypeError, ValueError) as error:
            raise FedapmError(f"{path} does not describe a federation ({error}).") from None

    def write(self) -> None:
        """Put the description where the next command finds it."""
        write_json(self.folder / ABOUT, {"port": self.port, "processes": [p.to_json() for p in self.processes]})

    @property
    def nodes(self) -> int:
        """How many nodes it was started with."""
        return sum(p.name.startswith("node-") for p in self.processes)

    @property
    def flower(self) -> Flower:
        """How to ask it something."""
        return Flower(NAME, self.folder / "flower")


def up(folder: Path, nodes: int, tell: Tell) -> LocalFederation:
    """Start a SuperLink and so many nodes, and wait until all of them are there."""
    if os.name != "posix":
        raise FedapmError(
            "fedapm flower up needs a POSIX system; on Windows use WSL, or start Flower's programs yourself."
        )
    if nodes < 1:
        raise FedapmError(f"--nodes {nodes}: a federation needs at least one node.")
    folder = folder.resolve()
    if (folder / ABOUT).is_file() and any(p.alive for p in LocalFederation.read(folder).processes):
        raise FedapmError(
            f"the federation in {folder} is up already; stop it with: fedapm flower down --folder {folder}."
        )
    _private(folder)
    made = LocalFederation(folder, _free_port(), [])
    try:
        _start(made, nodes, tell)
    except BaseException:
        stop(made.processes)
        stop(at_home(folder))
        raise
    return made


def down(folder: Path) -> int:
    """Stop everything that a federation started; gives how many of its programs were running."""
    found = LocalFederation.read(folder.resolve())
    running = sum(process.alive for process in found.processes)
    stop(found.processes)
    stop(at_home(found.folder))
    return running


def node_config(k: int, state: Path) -> str:
    """What a node is told of the client it is."""
    if '"' in str(state):
        raise FedapmError(f"{state}: Flower's node configuration cannot hold a path with a quotation mark.")
    return f'partition-id={k} state-dir="{state}"'


def start_node(made: LocalFederation, k: int, key: Path | None = None, authority: Path | None = None) -> Process:
    """Start one node; another key or authority than its own is for trying what happens then."""
    place = made.folder / "nodes" / str(k)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = [
        program("flower-supernode"),
        *("--superlink", f"{HOST}:{made.port}"),
        *("--root-certificates", str(authority or made.folder / "certificates" / "ca.crt")),
        *("--auth-supernode-private-key", str(key or node_key(made.folder, k))),
        *("--node-config", node_config(k, place / "state")),
        *("--host", HOST, "--port", str(_free_port()), "--isolation", "subprocess"),
    ]
    return start(f"node-{k}", command, log_of(made.folder, f"node-{k}"), environment(place / "flower"))


def start_superlink(made: LocalFederation) -> Process:
    """Start the SuperLink; what it knew before, it knows again."""
    certificates = made.folder / "certificates"
    command = [
        program("flower-superlink"),
        *("--ssl-ca-certfile", str(certificates / "ca.crt")),
        *("--ssl-certfile", str(certificates / "server.pem")),
        *("--ssl-keyfile", str(certificates / "server.key")),
        *("--host", HOST, "--port", str(made.port), "--enable-supernode-auth", "--isolation", "subprocess"),
        *("--database", str(made.folder / DATABASE)),
    ]
    return start("superlink", command, log_of(made.folder, "superlink"), environment(made.folder / "superlink-home"))


def node_key(folder: Path, k: int) -> Path:
    """A node's private key."""
    return folder / "keys" / f"node-{k}"


def log_of(folder: Path, name: str) -> Path:
    """Where a program's output is."""
    return folder / "logs" / f"{name}.log"


def online(made: LocalFederation) -> int:
    """How many nodes the SuperLink sees."""
    return sum(node.get("status") == "online" for node in made.flower.nodes())


def _start(made: LocalFederation, nodes: int, tell: Tell) -> None:
    folder = made.folder
    if not (folder / "certificates" / "ca.crt").is_file():
        write_certificates(folder / "certificates")
    connection = {"address": f"{HOST}:{made.port}", "root-certificates": str(folder / "certificates" / "ca.crt")}
    config: dict[str, Any] = {"superlink": {"default": NAME, NAME: connection}}
    write_atomic(folder / "flower" / "config.toml", tomli_w.dumps(config))
    # one that was killed would take its nodes for still connected, and send them away for a minute
    for path in folder.glob(f"{DATABASE}*"):
        path.unlink()
    made.processes.append(start_superlink(made))
    made.write()
    wait_for_superlink(made)
    for k in range(nodes):
        key = node_key(folder, k)
        if not key.is_file():
            write_key(key)
        tell("registering nodes", k, nodes)
        made.flower.register(key.with_name(f"{key.name}.pub"))
        made.processes.append(start_node(made, k))
        made.write()
    end = time.monotonic() + PATIENCE
    while (there := online(made)) < nodes:
        tell("nodes online", there, nodes)
        _check_alive(made)
        if time.monotonic() > end:
            raise FedapmError(f"only {there} of {nodes} nodes came up; see {folder / 'logs'}.")
        time.sleep(AGAIN)
    _check_alive(made)
    tell("nodes online", nodes, nodes)


def wait_for_superlink(made: LocalFederation) -> None:
    """Wait until the SuperLink answers with a certificate of its authority's."""
    context = ssl.create_default_context(cafile=str(made.folder / "certificates" / "ca.crt"))
    end = time.monotonic() + PATIENCE
    while True:
        with (
            suppress(OSError),
            socket.create_connection((HOST, made.port), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname=HOST),
        ):
            return
        _check_alive(made)
        if time.monotonic() > end:
            raise FedapmError(
                f"the SuperLink does not answer on port {made.port}; see {log_of(made.folder, 'superlink')}."
            )
        time.sleep(0.2)


def _check_alive(made: LocalFederation) -> None:
    for process in made.processes:
        if not process.alive:
            log = log_of(made.folder, process.name)
            lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise FedapmError(f"{process.name} has ended ({lines[-1] if lines else 'it said nothing'}); see {log}.")


def _private(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise FedapmError(f"{folder} is a file; give a folder for the federation.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / ABOUT).is_file() and not (folder / "keys").is_dir():
        raise FedapmError(f"{folder} holds something else; give a folder for the federation alone.")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port
