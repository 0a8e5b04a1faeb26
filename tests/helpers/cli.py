"""The command line in this process, for every test that uses it."""

from __future__ import annotations

import io
import logging
import signal
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from typing import NamedTuple

import pytest
import typer.main

# typer puts all commands together at every call, which takes it a seventh of a second
typer.main.get_command = cache(typer.main.get_command)

with warnings.catch_warnings():
    # typer 0.20 asks click 8.5 for a name that click means to drop
    warnings.simplefilter("ignore", DeprecationWarning)
    from fedapm.cli import app as cli
    from fedapm.loggers.console import RUN_DETAILS

QUICK = ["--set", "data.clients=4", "--set", "engine.fraction=0.5"]


class Outcome(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


def fedapm(*arguments: object) -> Outcome:
    """Run the command line with these arguments."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["fedapm", *map(str, arguments)])
        patch.setenv("OMP_NUM_THREADS", "1")
        logger = logging.getLogger("fedapm")
        before = logger.handlers, logger.propagate, logger.level
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        finally:
            logger.handlers, logger.propagate, level = before
            logger.setLevel(level)
            # a command that has failed ignores a second Ctrl-C; this process goes on
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for name in RUN_DETAILS:
                logging.getLogger(name).setLevel(logging.NOTSET)
    return Outcome(code, out.getvalue(), err.getvalue())


def assert_refused(outcome: Outcome, *mentions: str) -> None:
    """Exit code 2, exactly one line on stderr that begins with the program's name, nothing else."""
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    lines = outcome.err.splitlines()
    assert len(lines) == 1, outcome.err
    assert lines[0].startswith("fedapm: ")
    for word in mentions:
        assert word in lines[0], f"{word!r} is not in: {lines[0]}"
