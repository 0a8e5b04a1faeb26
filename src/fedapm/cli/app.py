"""The command line. A command is a module with a typer ``app``, named in :data:`COMMANDS`."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click
import typer

from fedapm.errors import FedapmError, Interrupted
from fedapm.loggers.console import configure
from fedapm.version import __version__

COMMANDS = (
    "run",
    "compare",
    "sweep",
    "tune",
    "split",
    "paper",
    "theory",
    "report",
    "export",
    "personalize",
    "list",
    "data",
    "flower",
)
"""The modules beside this one that hold commands, in the order in which --help lists them."""

app = typer.Typer(
    help="Personalised federated learning that does not drift.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _name in COMMANDS:
    app.add_typer(import_module(f"fedapm.cli.{_name}").app)


def main() -> None:
    """Run the command line; what a person can mend is one line and exit code 2."""
    if sys.argv[1:] == ["--version"]:
        print(f"fedapm {__version__}")
        return
    # one thread a process: more only spin-wait on models of this size unless the user asks for them
    if "OMP_NUM_THREADS" not in os.environ:
        import torch

        torch.set_num_threads(1)
    configure()
    try:
        app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except Interrupted as stop:
        _fail(str(stop), 130)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted.", 130)
    except FedapmError as error:
        _fail(str(error), 2)
    except click.ClickException as error:
        _fail(error.format_message(), 2)
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror or error}.", 2)


def _fail(message: str, code: int) -> None:
    print(f"fedapm: {message}", file=sys.stderr)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
