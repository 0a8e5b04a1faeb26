"""Texts from elsewhere: nothing in them moves a terminal's cursor, and none fills it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedapm.core.messages import LONGEST, plain_line
from tests.helpers.unit import few


def test_colors_titles_and_line_ends_are_taken_out() -> None:
    assert plain_line("\x1b[31mred\x1b[0m and \x1b]0;title\x07this\r\nthat\x08\x00") == "red and this that"
    assert plain_line("a\u202eb\u2028c") == "a b c"
    assert plain_line("ρ ≤ 0.5, ‖u‖") == "ρ ≤ 0.5, ‖u‖"


def test_a_long_text_is_cut_and_says_how_long_it_was() -> None:
    shown = plain_line("x" * 10_000_000)
    assert len(shown) < LONGEST + 50
    assert shown.endswith("(10,000,000 characters)")


@few
@given(st.text(st.characters(min_codepoint=0, max_codepoint=0x2100)))
def test_no_control_is_left(text: str) -> None:
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in plain_line(text))
