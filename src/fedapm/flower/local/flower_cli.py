"""Flower's own command line, with its answers as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapm.errors import FedapmError

POLL = 0.05
"""Seconds between two questions of all nodes of a machine together whether there is work."""


def environment(home: Path | None, nodes: int = 1) -> dict[str, str]:
    """The environment variables of Flower's programs: their home, and no telemetry, update checks or installations.

    Args:
        home: Flower's folder; None for the user's own.
        nodes: How many nodes share this machine.
    """
    scripts = sysconfig.get_path("scripts")
    variables = os.environ | {
        # otherwise every run asks a package index for the app's dependencies, which are installed already
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        # each node's helper asks for work this often: together they must leave the processors to the training
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": f"{max(0.1, nodes * POLL):g}",
        # Flower's programs start each other by name
        "PATH": os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)]),
    }
    if home is not None:
        variables |= {"FLWR_HOME": str(home), "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
    return variables


def program(name: str) -> str:
    """The path of one of Flower's programs in this Python environment."""
    path = Path(sysconfig.get_path("scripts")) / name
    if not path.is_file():
        raise FedapmError(f"{path} is missing; install it with: pip install 'fedapm[flower]'.")
    return str(path)


@dataclass(frozen=True)
class RunStatus:
    """A run's status, as the SuperLink reports it."""

    id: str
    status: str
    details: str

    @property
    def finished(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.status.startswith("finished")

    @property
    def completed(self) -> bool:
        """Whether it has ended without an error."""
        return self.status == "finished:completed"


@dataclass(frozen=True)
class FlowerCli:
    """Runs ``flwr`` commands on one SuperLink.

    Attributes:
        superlink: The name of its connection in Flower's configuration.
        home: The FLWR_HOME that has this configuration; Flower's default if None.
    """

    superlink: str
    home: Path | None = None

    def call(self, *arguments: str) -> dict[str, Any]:
        """Run a ``flwr`` command.

        Returns:
            Its JSON answer.

        Raises:
            FedapmError: If it fails, with the reason in one line.
        """
        command = [sys.executable, "-m", "flwr.cli.app", *arguments, "--format", "json"]
        process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(self.home))
        try:
            answer = json.loads(process.stdout)
        except ValueError:
            answer = {}
        if not isinstance(answer, dict) or not answer.get("success"):
            message = answer.get("error-message") if isinstance(answer, dict) else None
            text = str(message or process.stderr or process.stdout)
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            reason = lines[-1] if lines else f"exit code {process.returncode}"
            raise FedapmError(f"flwr {arguments[0]} failed: {reason}")
        return answer

    def run(self, app: Path) -> str:
        """Submit an app; returns the id of its run."""
        return str(self.call("run", str(app), self.superlink)["run-id"])

    def status(self, id: str) -> RunStatus:
        """The status of a run."""
        (run,) = self.call("list", self.superlink, "--run-id", id)["runs"]
        return RunStatus(id, str(run["status"]), str(run.get("status-details") or ""))

    def stop(self, id: str) -> None:
        """Stop a run."""
        self.call("stop", id, self.superlink)

    def nodes(self) -> list[dict[str, Any]]:
        """The registered SuperNodes."""
        nodes: list[dict[str, Any]] = self.call("supernode", "list", self.superlink)["nodes"]
        return nodes

    def register(self, key: Path) -> None:
        """Register a SuperNode's public key; one that is registered already is fine."""
        try:
            self.call("supernode", "register", str(key), self.superlink)
        except FedapmError as error:
            if "already in use" not in str(error).lower():
                raise
