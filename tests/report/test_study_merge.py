"""Parts of a study that were run apart: which lines, plans and cards a whole one has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedapm.report.study.about import origins
from fedapm.report.study.card import together
from fedapm.report.study.lines import Line, write_lines
from fedapm.report.study.merge import StudySummary, merge, read_summary, write_summary
from tests.helpers.unit import refused

CASES = ("digits", "waves", "voices")


def line(case: str, cohort: float, accuracy: float, seed: int = 0) -> Line:
    base = Line.without_numbers(case, case.title(), cohort, "chosen", "fedapm", "FedAPM", seed)
    return replace(base, status="complete", rounds=5, accuracy=accuracy)


def part(folder: Path, *lines: Line, trials: int = 8, command: str = "fedapm study") -> StudySummary:
    """A part as fedapm study leaves it: every case of the file is planned, some were run."""
    folder.mkdir()
    write_lines(folder / "summary.csv", lines)
    cases = {name: {"title": name.title(), "plan": {"trials": trials}} for name in CASES}
    (folder / "study.json").write_text(json.dumps({"title": "A study", "cases": cases}))
    (folder / "card.json").write_text(json.dumps({"kind": "study", "command": command}))
    return read_summary(folder)


def ran(summary: StudySummary) -> list[tuple[str, float, float | None]]:
    return [(line.case, line.cohort, line.accuracy) for line in summary.lines]


def test_parts_stand_in_the_order_of_the_study(tmp_path: Path) -> None:
    late = part(tmp_path / "a", line("voices", 0.3, 0.7), line("digits", 0.1, 0.8))
    early = part(tmp_path / "b", line("digits", 0.3, 0.9, seed=1), line("digits", 0.3, 0.95, seed=0))
    assert ran(merge([late, early])) == [
        ("digits", 0.3, 0.9),
        ("digits", 0.3, 0.95),
        ("digits", 0.1, 0.8),
        ("voices", 0.3, 0.7),
    ]


def test_what_was_run_again_takes_the_place_of_all_that_it_was(tmp_path: Path) -> None:
    old = part(tmp_path / "a", line("digits", 0.3, 0.1), line("digits", 0.3, 0.2, seed=1), line("waves", 0.3, 0.3))
    new = part(tmp_path / "b", line("digits", 0.3, 0.9), trials=16, command="again")
    whole = merge([old, new])
    assert ran(whole) == [("digits", 0.3, 0.9), ("waves", 0.3, 0.3)]
    assert {name: whole.info["cases"][name]["plan"]["trials"] for name in CASES} == {
        "digits": 16,
        "waves": 8,
        "voices": 16,
    }
    assert [(card["command"], card["cells"]) for card in whole.cards] == [
        ("fedapm study", [["waves", 0.3]]),
        ("again", [["digits", 0.3]]),
    ]


def test_a_part_of_which_nothing_is_left_has_no_card(tmp_path: Path) -> None:
    whole = merge([part(tmp_path / "a", line("digits", 0.3, 0.1)), part(tmp_path / "b", line("digits", 0.3, 0.2))])
    assert len(whole.cards) == 1


def test_cohorts_of_one_case_have_one_plan(tmp_path: Path) -> None:
    old = part(tmp_path / "a", line("digits", 0.3, 0.1))
    new = part(tmp_path / "b", line("digits", 0.1, 0.2), trials=16)
    with refused("digits", "different plans"):
        merge([old, new])


def test_a_whole_is_a_part_of_a_larger_whole(tmp_path: Path) -> None:
    first = merge([part(tmp_path / "a", line("digits", 0.3, 0.1)), part(tmp_path / "b", line("waves", 0.3, 0.2))])
    write_summary(tmp_path / "first", first)
    again = read_summary(tmp_path / "first")
    assert (again.lines, again.info, again.cards) == (first.lines, first.info, first.cards)
    whole = merge([again, part(tmp_path / "c", line("voices", 0.1, 0.3))])
    assert [card["cells"] for card in whole.cards] == [[["digits", 0.3]], [["waves", 0.3]], [["voices", 0.1]]]


def test_parts_of_one_command_have_one_card_and_those_of_others_stay_apart() -> None:
    def card(command: str, hours: float, *cells: tuple[str, float], python: str = "3.12") -> dict[str, Any]:
        spent = {"hours": hours, "processor_hours": 2 * hours}
        return {"command": command, "versions": {"python": python}, **spent, "cells": [list(cell) for cell in cells]}

    cards = [
        card("one", 0.5, ("digits", 0.3)),
        card("two", 1, ("waves", 0.3)),
        card("one", 0.25, ("digits", 0.1)),
        card("one", 2, ("voices", 0.3), python="3.13"),
    ]
    kept = json.dumps(cards)
    assert together(cards) == [
        card("one", 0.75, ("digits", 0.3), ("digits", 0.1)),
        card("two", 1, ("waves", 0.3)),
        card("one", 2, ("voices", 0.3), python="3.13"),
    ]
    assert json.dumps(cards) == kept, "what was given is as it was"


HARDWARE = {"processor": "A processor", "cores": 2}
ELSEWHERE = {"hardware": HARDWARE, "hours": 1, "fedapm": "0.1.0", "versions": {"python": "3.12"}}


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ({}, [("", "")]),
        ({"command": "fedapm study x.toml"}, [("", "fedapm study x.toml")]),
        (
            {
                "parts": [
                    {"cells": [["digits", 0.3], ["waves", 0.3], ["waves", 0.1]], "command": "one"},
                    {
                        "cells": [["voices", 0.3]],
                        "hardware": HARDWARE,
                        "hours": 1,
                        "fedapm": "0.1.0",
                        "versions": {"python": "3.12"},
                    },
                ]
            },
            [
                ("Digits and Waves with 30% of clients; Waves with 10% of clients.", "one"),
                (
                    "Voices with 30% of clients. It took 1.00 hours, 0.00 hours of processor time, on A processor "
                    "(2 cores); fedapm 0.1.0, python 3.12.",
                    "",
                ),
            ],
        ),
    ],
)
def test_the_page_says_which_command_ran_what(card: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert origins(card, {name: {"title": name.title()} for name in CASES}) == expected
