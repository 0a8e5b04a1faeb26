"""Flower's own command line, asked for JSON."""

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


def environment(home: Path | None) -> dict[str, str]:
    """What Flower's programs must know: where they live, and that they are to leave the network alone."""
    scripts = sysconfig.get_path("scripts")
    made = os.environ | {
        # else every run asks a package index for the app's dependencies, which are here already
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        # Flower's programs start each other by name
        "PATH": os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)]),
    }
    if home is not None:
        made |= {"FLWR_HOME": str(home), "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
    return made


def program(name: str) -> str:
    """One of Flower's programs in this environment."""
    path = Path(sysconfig.get_path("scripts")) / name
    if not path.is_file():
        raise FedapmError(f"{path} is missing; install it with: pip install 'fedapm[flower]'.")
    return str(path)


@dataclass(frozen=True)
class Run:
    """A run as the SuperLink knows it."""

    id: str
    status: str
    details: str

    @property
    def over(self) -> bool:
        """Whether it has ended, however."""
        return self.status.startswith("finished")

    @property
    def completed(self) -> bool:
        """Whether it has ended well."""
        return self.status == "finished:completed"


@dataclass(frozen=True)
class Flower:
    """A SuperLink by the name of its connection, and the Flower home in which that name is known."""

    superlink: str
    home: Path | None = None

    def ask(self, *arguments: str) -> dict[str, Any]:
        """The answer to a command of Flower's, or the reason why there is none, in one line."""
        command = [sys.executable, "-m", "flwr.cli.app", *arguments, "--format", "json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(self.home))
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            answer = {}
        if not isinstance(answer, dict) or not answer.get("success"):
            said = str(answer.get("error-message") or done.stderr or done.stdout) if isinstance(answer, dict) else ""
            lines = [line.strip() for line in said.splitlines() if line.strip()]
            reason = lines[-1] if lines else f"exit code {done.returncode}"
            raise FedapmError(f"flwr {arguments[0]} failed: {reason}")
        return answer

    def start(self, app: Path) -> str:
        """Submit an app; gives the id of its run."""
        return str(self.ask("run", str(app), self.superlink)["run-id"])

    def run(self, id: str) -> Run:
        """Where a run stands."""
        (found,) = self.ask("list", self.superlink, "--run-id", id)["runs"]
        return Run(id, str(found["status"]), str(found.get("status-details") or ""))

    def stop(self, id: str) -> None:
        """End a run."""
        self.ask("stop", id, self.superlink)

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes that are registered."""
        found: list[dict[str, Any]] = self.ask("supernode", "list", self.superlink)["nodes"]
        return found

    def register(self, key: Path) -> None:
        """Let the owner of a key take part."""
        try:
            self.ask("supernode", "register", str(key), self.superlink)
        except FedapmError as error:
            if "already in use" not in str(error).lower():
                raise
