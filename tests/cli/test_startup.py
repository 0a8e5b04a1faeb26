"""Nobody waits for torch who does not need it, and Ctrl-C is answered from the first moment on."""

from __future__ import annotations

import ast
import inspect
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

import fedapm
from tests.helpers.cli import cli

HEAVY = ["torch", "pandas", "matplotlib", "sklearn", "scipy", "numpy", "flwr", "pydantic"]
MAIN = "import sys; sys.argv = {argv}; from fedapm.cli.main import main; main()"


def imported(code: str) -> list[str]:
    """The heavy packages that a fresh process has after some code."""
    after = f"\nfinally:\n    print('HEAVY', *[n for n in {HEAVY} if n in sys.modules], file=sys.stderr)"
    whole = f"import sys\ntry:\n    {code}{after}"
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=False)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("HEAVY")]
    return line.split()[1:]


def commands(group: click.Group, before: tuple[str, ...] = ()) -> dict[tuple[str, ...], click.Command]:
    """Every command by the words that call it."""
    found: dict[tuple[str, ...], click.Command] = {}
    for name, command in group.commands.items():
        words = (*before, name)
        found |= commands(command, words) if isinstance(command, click.Group) else {words: command}
    return found


def program() -> click.Group:
    from typer.main import get_command

    group = get_command(cli.app)
    assert isinstance(group, click.Group)
    return group


def all_commands() -> dict[tuple[str, ...], click.Command]:
    return commands(program())


@pytest.mark.parametrize("code", ["import fedapm", "import fedapm.flower", "import fedapm; fedapm.FedapmError"])
def test_importing_the_package_imports_nothing_heavy(code: str) -> None:
    assert imported(code) == []


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["compare", "--help"], ["flower", "run", "--help"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    assert imported(MAIN.format(argv=["fedapm", *words])) == []


def test_completion_imports_nothing_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"": "complete_bash", "COMP_WORDS": "fedapm ex", "COMP_CWORD": "1"}.items():
        monkeypatch.setenv(name or "_FEDAPM_COMPLETE", value)
    assert imported(MAIN.format(argv=["fedapm"])) == []


def test_starting_a_project_needs_no_torch(tmp_path: Path) -> None:
    assert "torch" not in imported(MAIN.format(argv=["fedapm", "init", str(tmp_path / "p")]))
    assert (tmp_path / "p" / "experiment.toml").is_file()


def test_the_modules_of_the_commands_import_nothing_heavy() -> None:
    """So that the help of every command is as quick as the three above."""
    assert imported("import fedapm.cli.app") == []


def test_every_public_name_is_what_type_checkers_see() -> None:
    tree = ast.parse(inspect.getsource(fedapm))
    (block,) = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    seen = {a.name: n.module for n in block.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert seen == fedapm._HOME
    assert sorted({*seen, "__version__"}) == sorted(fedapm.__all__)
    for name in fedapm.__all__:
        assert getattr(fedapm, name) is not None
    assert set(fedapm.__all__) <= set(dir(fedapm))


def test_sub_packages_are_there_and_other_names_are_not() -> None:
    assert imported("import fedapm; fedapm.data.Federation; fedapm.algorithms.FedAPM")[0] == "torch"
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        fedapm.trian  # noqa: B018
    with pytest.raises(ImportError):
        from fedapm import trian  # noqa: F401


@pytest.mark.parametrize("words", [" ".join(words) for words in all_commands()])
def test_the_help_of_every_command_describes_its_arguments_and_options(words: str) -> None:
    command = all_commands()[tuple(words.split())]
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{parameter.name} is not described"


def test_the_version_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.app(["--version"])
    assert capsys.readouterr().out == f"fedapm {fedapm.__version__}\n"
    assert any("--version" in parameter.opts for parameter in program().params)


def test_commands_are_listed_in_the_order_in_which_people_use_them() -> None:
    group = program()
    named = [name for names in cli.COMMANDS.values() for name in names]
    assert group.list_commands(click.Context(group)) == named
    assert named[:5] == ["init", "data", "list", "run", "compare"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_torch_is_imported_is_one_line(tmp_path: Path, number: int) -> None:
    """A stand-in for torch says that its import has begun, and takes its time."""
    torch = tmp_path / "torch"
    torch.mkdir()
    flag = tmp_path / "importing"
    (torch / "__init__.py").write_text(f"import pathlib, time\npathlib.Path({str(flag)!r}).touch()\ntime.sleep(60)\n")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    process = subprocess.Popen(
        [sys.executable, "-m", "fedapm", "run", "--out", str(tmp_path / "run")],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    end = time.monotonic() + 60
    while not flag.exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == ({signal.SIGINT: 130, signal.SIGTERM: 143}[number], "fedapm: interrupted.\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("answer", ["pass", "raise ImportError('cannot be initialized')"])
def test_a_ctrl_c_that_an_import_swallows_or_renames_still_ends_the_command(tmp_path: Path, answer: str) -> None:
    torch = tmp_path / "torch"
    torch.mkdir()
    send = "    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(5)\n"
    (torch / "__init__.py").write_text(f"import os, signal, time\ntry:\n{send}except BaseException:\n    {answer}\n")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "fedapm", "run", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path}, timeout=60
    )
    assert (done.returncode, done.stderr) == (130, "fedapm: interrupted.\n")
