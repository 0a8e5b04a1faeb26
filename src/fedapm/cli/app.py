"""The commands. Each is a module beside this one with a typer ``app``, named in :data:`COMMANDS`."""

from __future__ import annotations

import inspect
import os
from importlib import import_module
from typing import Annotated, Any, get_type_hints

import click
import typer
from typer.core import TyperArgument, TyperCommand
from typer.models import ArgumentInfo

from fedapm.cli.main import main
from fedapm.version import __version__

COMMANDS = {
    "Start": ("init", "data", "list"),
    "Train and compare": ("run", "compare", "report"),
    "Choose settings": ("split", "tune", "sweep", "theory"),
    "Use the models": ("export", "personalize"),
    "More": ("flower", "paper", "study"),
}
"""The modules that hold commands, in the order in which people come to use them; --help has a panel for each part."""

WITHOUT_TORCH = ("init", "flower")
"""Those that do not compute in this process."""


class Command(TyperCommand):
    """A command whose help describes its arguments."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.callback is None:
            return
        # click 8.5 gives arguments a help of their own, which wipes out what typer has set before
        for name, kind in get_type_hints(inspect.unwrap(self.callback), include_extras=True).items():
            told = [part.help for part in getattr(kind, "__metadata__", ()) if isinstance(part, ArgumentInfo)]
            for parameter in self.params:
                if told and parameter.name == name and isinstance(parameter, TyperArgument):
                    parameter.help = told[0]


class TorchCommand(Command):
    """A command that computes. It imports torch when it runs, so that its help need not wait for that."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command with one thread: more only spin-wait on models of this size unless the user asks for them."""
        import torch

        # some modules that torch imports swallow every exception, also that of a Ctrl-C
        if ctx.obj:
            raise KeyboardInterrupt
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)
        return super().invoke(ctx)


app = typer.Typer(
    help="Personalised federated learning that does not drift.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _panel, _names in COMMANDS.items():
    for _name in _names:
        _part: typer.Typer = import_module(f"fedapm.cli.{_name}").app
        for _command in _part.registered_commands:
            _command.cls = Command if _name in WITHOUT_TORCH else TorchCommand
            # a module with a name of its own is one line in the panel, another gives it its command
            if not _part.info.name:
                _command.rich_help_panel = _panel
        app.add_typer(_part, rich_help_panel=_panel)


def _version(asked: bool) -> None:
    if asked:
        print(f"fedapm {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Personalised federated learning that does not drift."""
    del version


__all__ = ["COMMANDS", "app", "main"]
