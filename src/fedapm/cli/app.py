"""The command line. A command is a module with a typer ``app``, named in :data:`COMMANDS`."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType
from typing import Any

import click
import typer

from fedapm.core.messages import plain_line
from fedapm.errors import FedapmError, Interrupted, did_you_mean, in_words
from fedapm.loggers.console import configure
from fedapm.version import __version__

COMMANDS = (
    "init",
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

INTERRUPTED = 130

app = typer.Typer(
    help="Personalised federated learning that does not drift.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _name in COMMANDS:
    app.add_typer(import_module(f"fedapm.cli.{_name}").app)


ENDING = {getattr(signal, name): code for name, code in (("SIGTERM", 143), ("SIGHUP", 129)) if hasattr(signal, name)}
"""Signals that end a command as Ctrl-C does, with what the system expects a process to end with then."""


def main() -> None:
    """Run the command line; what a person can mend is one line and exit code 2."""
    if sys.argv[1:] == ["--version"]:
        print(f"fedapm {__version__}")
        return
    received: list[int] = []
    try:
        with _ending_orderly(received):
            message, code = _outcome()
    except KeyboardInterrupt:
        # between two lines that are ready for it
        message, code = "interrupted.", INTERRUPTED
    if code == INTERRUPTED and received:
        code = received[0]
    if code:
        # a second Ctrl-C has nothing left to end
        with suppress(ValueError):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        if message:
            print(f"fedapm: {plain_line(message)}", file=sys.stderr)
        raise SystemExit(code)


def _outcome() -> tuple[str, int]:
    """Do what the command line asks for; what to say at the end, and the exit code."""
    try:
        # one thread a process: more only spin-wait on models of this size unless the user asks for them
        if "OMP_NUM_THREADS" not in os.environ:
            import torch

            torch.set_num_threads(1)
        configure()
        # typer turns a Ctrl-C into a code that it returns
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
        return ("interrupted.", code) if code == INTERRUPTED else ("", code if isinstance(code, int) else 0)
    except Interrupted as stop:
        return str(stop), INTERRUPTED
    except (KeyboardInterrupt, click.Abort):
        return "interrupted.", INTERRUPTED
    except FedapmError as error:
        return str(error), 2
    except click.ClickException as error:
        return _usage(error), 2
    except (OSError, MemoryError) as error:
        return in_words(error), 2


@contextmanager
def _ending_orderly(received: list[int]) -> Iterator[None]:
    """Let signals that end a process do so as Ctrl-C does: with a checkpoint and one line.

    Args:
        received: Gets the exit code of such a signal.
    """

    def end(number: int, frame: FrameType | None) -> None:
        received.append(ENDING[signal.Signals(number)])
        answer = signal.getsignal(signal.SIGINT)
        if callable(answer):
            answer(signal.SIGINT, frame)
        else:
            raise KeyboardInterrupt

    def ignored(unraisable: Any) -> None:
        """Python drops an exception in a destructor; a Ctrl-C that came just then comes again."""
        if unraisable.exc_type is not None and issubclass(unraisable.exc_type, KeyboardInterrupt):
            again = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT))
            again.daemon = True
            again.start()
        else:
            shown(unraisable)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    shown, sys.unraisablehook = sys.unraisablehook, ignored
    # nohup has a hangup ignored, and it stays so
    before = {number: answer for number in ENDING if (answer := signal.getsignal(number)) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        sys.unraisablehook = shown
        for number, answer in before.items():
            signal.signal(number, answer)


def _usage(error: click.ClickException) -> str:
    """What is wrong with a command line; click's own suggestions are in the order of the alphabet, and there twice."""
    context = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption) and context is not None:
        known = [option for parameter in context.command.params for option in parameter.opts if option[:2] == "--"]
        return f"No such option '{error.option_name}'; {did_you_mean(error.option_name, known)}"
    message = error.format_message()
    found = re.match(r"No such command '([^']*)'", message)
    if found is not None and context is not None and isinstance(context.command, click.Group):
        return f"{found[0]}; {did_you_mean(found[1], context.command.list_commands(context))}"
    return message


if __name__ == "__main__":
    main()
