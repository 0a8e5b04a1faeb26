"""The image and the federation of containers: checked as files, run without Docker, and run by Docker where it is."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import tomllib
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedapm.runs.records import load_run

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SCRIPT = ROOT / "docker" / "federation"
NODES = ["node-0", "node-1", "node-2"]


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions and their arguments, in order."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text("utf-8"), flags=re.M)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines if line)]


def last_stage() -> list[tuple[str, str]]:
    """The instructions of the image that is kept."""
    found = instructions()
    return found[max(k for k, (name, _) in enumerate(found) if name == "FROM") :]


def environment() -> dict[str, str]:
    """The variables that the image sets."""
    words = [word for name, rest in last_stage() if name == "ENV" for word in shlex.split(rest)]
    return dict(word.split("=", 1) for word in words)


def copied() -> list[str]:
    """Files and folders of this repository that the image is made of."""
    lines = [shlex.split(rest) for name, rest in instructions() if name == "COPY" and "--from" not in rest]
    return [word for words in lines for word in words[:-1] if not word.startswith("--")]


def volumes(service: str) -> dict[str, str]:
    """A service's volumes, by where they are mounted."""
    return {target: name for name, target in (mount.split(":") for mount in SERVICES[service]["volumes"])}


def test_the_image_runs_fedapm_as_a_user_without_rights() -> None:
    last = dict(last_stage())
    assert json.loads(last["ENTRYPOINT"]) == ["fedapm"]
    assert int(last["USER"]) > 0
    assert all(rest.split()[0].endswith("-slim") for name, rest in instructions() if name == "FROM")
    pip = next(rest for name, rest in instructions() if name == "RUN" and "pip install" in rest)
    assert "--constraint constraints.txt" in pip
    assert any("whl/cpu" in rest for name, rest in instructions() if name == "ENV")


def test_what_the_image_is_made_of_is_there_and_not_ignored() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    kept = [line[1:] for line in lines if line.startswith("!")]
    assert copied()
    for path in copied():
        assert (ROOT / path).exists(), path
        assert any(fnmatch(path, rule) or path.startswith(f"{rule}/") for rule in kept), path
    needed = {"README.md", "LICENSE", "hatch_build.py", "pyproject.toml", "src"}  # by the build of the wheel
    assert needed <= set(copied())


def test_the_image_has_the_environment_that_the_how_to_names() -> None:
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text("utf-8")
    (block,) = [text for text in re.findall(r"```text\n(.*?)```", page, re.S) if "FLWR_HOME" in text]
    named = dict(line.split("=", 1) for line in block.split())
    assert {**named, "PATH": None} == {**{k: environment().get(k) for k in named}, "PATH": None}


def test_the_python_of_the_image_is_one_the_package_is_made_for() -> None:
    (image,) = {rest.split()[0] for name, rest in instructions() if name == "FROM"}
    version = image.removeprefix("python:").removesuffix("-slim")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]


def test_there_are_a_superlink_three_nodes_and_a_run() -> None:
    assert set(SERVICES) == {"superlink", "run", *NODES}
    clients = tomllib.loads((ROOT / "examples" / "digits-flower.toml").read_text("utf-8"))["data"]["clients"]
    assert clients == len(NODES)
    assert SERVICES["run"]["environment"]["FEDAPM_NODES"].split() == [name.removeprefix("node-") for name in NODES]
    for name, service in SERVICES.items():
        assert service["environment"]["FEDAPM_SUPERLINK"] == "superlink:9500", name
        assert name == "superlink" or service["depends_on"] == {"superlink": {"condition": "service_healthy"}}
        assert set(volumes(name).values()) <= set(COMPOSE["volumes"])
        assert "privileged" not in service
        assert service["cap_drop"] == ["ALL"]


def test_keys_and_states_are_in_a_volume_of_their_own() -> None:
    own = [volumes(name)["/var/lib/fedapm"] for name in SERVICES]
    assert len(set(own)) == len(SERVICES)
    assert {volumes(name)["/exchange"] for name in SERVICES} == {"exchange"}
    assert [name for name in SERVICES if "/runs" in volumes(name)] == ["superlink", "run"]
    made = next(rest for name, rest in last_stage() if name == "RUN")
    # what does not exist in the image would belong to root
    assert all(target in made for name in SERVICES for target in volumes(name))


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("hadolint", ["Dockerfile"]),
        ("shellcheck", ["docker/federation", ".ci/run"]),
        ("yamllint", ["--strict", "compose.yaml", ".github"]),
        ("check-jsonschema", ["--builtin-schema", "vendor.compose-spec", "compose.yaml"]),
    ],
)
def test_linters_find_nothing(tool: str, arguments: list[str]) -> None:
    program = shutil.which(tool, path=f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip(f"{tool} is not installed; it is in the extra 'lint'")
    done = subprocess.run([program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_script_says_which_parts_there_are() -> None:
    variables = {"PATH": os.environ["PATH"], "FEDAPM_SUPERLINK": "hub:1"}
    done = subprocess.run([SCRIPT, "nodes"], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "federation: give a part: superlink, node NUMBER, or run [OPTIONS].\n"


def commands(folder: Path, free_port: Callable[[], int]) -> dict[str, tuple[list[str], dict[str, str]]]:
    """What the services would run, and their environments, with folders below one in place of volumes."""
    scripts, port, found = sysconfig.get_path("scripts"), free_port(), {}
    for name, service in SERVICES.items():
        mounted = {target: folder / volume for target, volume in volumes(name).items()}
        for path in mounted.values():
            path.mkdir(exist_ok=True)
        home = mounted["/var/lib/fedapm"]
        variables = os.environ | environment() | service["environment"]
        variables |= {
            "FEDAPM_EXCHANGE": str(mounted["/exchange"]),
            "FEDAPM_HOME": str(home),
            "FEDAPM_NODE_PORT": str(free_port()),
            "FEDAPM_SUPERLINK": f"127.0.0.1:{port}",
            "FLWR_HOME": str(home / "flower"),
            "NO_PROXY": "127.0.0.1,localhost",
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        }
        program, *words = [*service["entrypoint"], *service.get("command", [])]
        assert program == "federation"
        words = [word.replace("/runs/", f"{mounted.get('/runs')}/") for word in words]
        words = [word.replace("/etc/fedapm/experiment.toml", f"{ROOT}/examples/digits-flower.toml") for word in words]
        found[name] = ([str(SCRIPT), *words], variables)
    return found


@pytest.mark.slow
@pytest.mark.deployment
def test_what_the_containers_run_is_a_federation(tmp_path: Path) -> None:
    """The services' own commands as processes of this machine: all but Docker itself."""
    pytest.importorskip("flwr")
    from fedapm.flower.local.federation import _free_port
    from fedapm.flower.local.processes import at_home, start, stop

    parts = commands(tmp_path, _free_port)
    words, variables = parts.pop("run")
    started = [start(name, line, tmp_path / f"{name}.log", env) for name, (line, env) in parts.items()]
    try:
        words += ["--set", "engine.rounds=2"]
        done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False, timeout=600)
    finally:
        stop(started)
        stop(at_home(tmp_path))
    assert done.returncode == 0, done.stderr
    run = load_run(tmp_path / "runs" / "digits")
    assert [record["round"] for record in run.rounds] == [0, 1, 2]
    assert len(run.info["clients"]) == len(NODES)
    # nothing secret was exchanged, and every node kept its own key and state
    shared = {path.name for path in (tmp_path / "exchange").iterdir()}
    assert shared == {"ca.crt", *(f"{name}.pub" for name in NODES), *(f"{name}.registered" for name in NODES)}
    assert len({(tmp_path / name / "node").read_bytes() for name in NODES}) == len(NODES)
    assert all(any((tmp_path / name / "state").rglob("*.safetensors")) for name in NODES)


@pytest.mark.slow
@pytest.mark.deployment
def test_docker_starts_the_federation() -> None:
    for words in (["docker", "info"], ["docker", "compose", "version"]):
        done = None if shutil.which("docker") is None else subprocess.run(words, capture_output=True, check=False)
        if done is None or done.returncode:
            pytest.skip(f"{' '.join(words)} does not work here")
    compose = ["docker", "compose", "--file", str(ROOT / "compose.yaml"), "--project-name", "fedapm-test"]
    try:
        up = [*compose, "up", "--build", "--exit-code-from", "run"]
        done = subprocess.run(up, capture_output=True, text=True, check=False, timeout=3600)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
        read = [*compose, "run", "--rm", "--no-deps", "--entrypoint", "cat", "run", "/runs/digits/rounds.jsonl"]
        records = subprocess.run(read, capture_output=True, text=True, check=True).stdout.splitlines()
        assert json.loads(records[-1])["round"] == 10
    finally:
        subprocess.run([*compose, "down", "--volumes"], check=False, capture_output=True)
