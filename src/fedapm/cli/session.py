"""What commands that train have in common: time spent, report, card, and the result on the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from fedapm.cli.options import console, print_line
from fedapm.cli.tables import split_table, summary
from fedapm.errors import Interrupted
from fedapm.loggers.console import configure
from fedapm.report import summary_table, write_report
from fedapm.report.card import write_card
from fedapm.report.split.search import read_search
from fedapm.report.study import words
from fedapm.report.study.lines import read_lines
from fedapm.report.study.tables import tables
from fedapm.runs.folder import entered
from fedapm.runs.layout import SPLIT_PICTURE, SUMMARY
from fedapm.runs.provenance import command_line, timed
from fedapm.runs.records import find_runs

SAME_COMMAND = "The same command goes on from there."


@contextmanager
def recorded(
    out: Path,
    *,
    report: Callable[[Path], Path] | None = write_report,
    card: bool = True,
    advice: str = SAME_COMMAND,
    run_details: bool = False,
) -> Iterator[None]:
    """Do the work of a command, then write the report and the card of its folder.

    Args:
        out: The folder of the results.
        report: What writes the report; None for a command without one.
        card: Whether to write one; not for a command that does it on the way.
        advice: How to go on, for the message of a command that is interrupted.
        run_details: Whether messages that concern a single run are shown.
    """
    configure(run_details)
    # from the first file to the card: two commands at once would each report on half of the other's work
    with entered(out):
        try:
            with timed(out):
                yield
        except Interrupted as stop:
            known = advice.casefold() in str(stop).casefold()
            raise Interrupted(str(stop) if known else f"{stop} {advice}") from None
        try:
            if report is not None:
                report(out)
            if card:
                write_card(out, command_line(sys.argv[1:]))
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted while the report was written; the runs in {out} are complete.") from None


def print_summary(folder: Path, report: Path, as_json: bool = False) -> None:
    """Print the numbers of every run in a folder, and where the report is."""
    rows = summary_table(find_runs(folder))
    if as_json:
        print(json.dumps({"report": str(report), "rows": [row.as_dict() for row in rows]}, indent=2))
        return
    console().print(summary(rows))
    print_line(f"Report: {report}")


def print_study(folder: Path, report: Path, as_json: bool = False) -> None:
    """Print what every table of a study says, and where its summary and its report are."""
    lines = read_lines(folder / SUMMARY)
    if as_json:
        print(json.dumps({"report": str(report), "rows": [asdict(line) for line in lines]}, indent=2))
        return
    for table in tables(lines):
        print_line(f"{table.name}, {table.split} split: {words.sentence(table)}")
    print_line(f"Summary: {folder / SUMMARY}")
    print_line(f"Report: {report}")


def print_search(folder: Path, report: Path, as_json: bool = False, command: str | None = None) -> None:
    """Print what a search of the split found, and where its report is.

    Args:
        folder: The folder of the search.
        report: Its report.
        as_json: Whether to print it for a program.
        command: The command that trains with it, if it is known.
    """
    search = read_search(folder)
    picture = folder / SPLIT_PICTURE
    if as_json:
        found = {"chosen": search.chosen.patterns, "advice": list(search.advice), "command": command}
        files = {"report": str(report), "picture": str(picture)}
        print(json.dumps(found | files | {"rows": [asdict(row) for row in search.rows]}, indent=2))
        return
    console().print(split_table(search))
    for sentence in search.advice:
        print_line(sentence)
    if command is not None:
        print_line(f"Run it: {command}")
    print_line(f"Report: {report}, picture: {picture}")
