"""Where the command line begins and ends: signals, exit codes, and one line for what a person can mend.

Nothing but the standard library is imported before Ctrl-C is answered.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from fedapm.errors import FedapmError, Interrupted, did_you_mean, in_words
from fedapm.version import __version__

if TYPE_CHECKING:
    import click

INTERRUPTED = 130

CODES = {
    getattr(signal, name): code
    for name, code in (("SIGINT", INTERRUPTED), ("SIGTERM", 143), ("SIGHUP", 129))
    if hasattr(signal, name)
}
"""Signals that end a command, with what the system expects a process to end with then."""


def main() -> None:
    """Run the command line; what a person can mend is one line and exit code 2."""
    received: list[int] = []
    try:
        with _ending_orderly(received):
            message, code = _outcome(received)
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
            from fedapm.core.messages import plain_line

            print(f"fedapm: {plain_line(message)}", file=sys.stderr)
        raise SystemExit(code)


def _outcome(received: list[int]) -> tuple[str, int]:
    """Do what the command line asks for; what to say at the end, and the exit code.

    Args:
        received: The exit codes of the signals that came so far.
    """
    if sys.argv[1:] == ["--version"]:
        print(f"fedapm {__version__}")
        return "", 0
    try:
        return _command(received)
    except Exception:
        # a Ctrl-C in the middle of an import may come out as any error
        if received:
            return "interrupted.", INTERRUPTED
        raise


def _command(received: list[int]) -> tuple[str, int]:
    import click

    from fedapm.cli.app import app
    from fedapm.loggers.console import configure

    try:
        configure()
        # typer turns a Ctrl-C into a code that it returns
        code = app(sys.argv[1:] or ["--help"], prog_name="fedapm", standalone_mode=False, obj=received)
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
    """Let every signal that ends a process do so as Ctrl-C does: with a checkpoint and one line.

    Args:
        received: Gets the exit codes of such signals.
    """

    def end(number: int, frame: FrameType | None) -> None:
        received.append(CODES[signal.Signals(number)])
        if _comes_from(frame, ignored.__code__):
            come_again()
            return
        answer = signal.getsignal(signal.SIGINT)
        if number != signal.SIGINT and callable(answer):
            answer(signal.SIGINT, frame)
        else:
            raise KeyboardInterrupt

    def ignored(unraisable: Any) -> None:
        """Python drops an exception in a destructor; a Ctrl-C that came just then comes again."""
        if unraisable.exc_type is not None and issubclass(unraisable.exc_type, KeyboardInterrupt):
            come_again()
        else:
            shown(unraisable)

    def come_again() -> None:
        again = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        again.start()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    shown, sys.unraisablehook = sys.unraisablehook, ignored
    # nohup has a hangup ignored, and it stays so
    before = {number: answer for number in CODES if (answer := signal.getsignal(number)) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        sys.unraisablehook = shown
        for number, answer in before.items():
            signal.signal(number, answer)


def _comes_from(frame: FrameType | None, code: CodeType) -> bool:
    """Whether a function is on the way to a frame."""
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def _usage(error: click.ClickException) -> str:
    """What is wrong with a command line; click's own suggestions are in the order of the alphabet, and there twice."""
    import click

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
