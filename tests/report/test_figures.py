"""Figures follow the page from light to dark, and tell exact values to a pointer."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from fedapm.report import write_report
from fedapm.report.figures.style import COLORS
from fedapm.report.figures.theme import VARIABLES, themed, themed_styles
from tests.report.fake_runs import COMPARISON, write_comparison

CSS = (Path(__file__).parents[2] / "src/fedapm/report/templates/page.css").read_text("utf-8")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(write_comparison(tmp_path_factory.mktemp("runs"), COMPARISON)).read_text("utf-8")


def test_every_variable_has_a_color_in_light_dark_and_print() -> None:
    for name in {*VARIABLES.values(), "--keep"}:
        assert len(re.findall(rf"{name}: ", CSS)) == 3, name
    assert set(COLORS) <= set(VARIABLES)


def test_no_color_of_a_figure_is_fixed(page: str) -> None:
    drawings = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(drawings) > 10
    for drawing in drawings:
        left = re.sub(r"var\(--[\w-]+, #[0-9a-f]{6}\)|color-mix\([^)]*\)[^)]*\)", "", drawing)
        assert not re.findall(r"(?:fill|stroke)[:=]\W*#[0-9a-f]{6}", left)


def test_a_color_of_a_scale_becomes_lighter_in_the_dark() -> None:
    assert themed("#440154") == "color-mix(in srgb, #440154 var(--keep, 100%), #fff)"
    assert themed_styles('<rect fill="#ffffff"/>') == '<rect style="fill: var(--card, #ffffff)"/>'


def test_the_last_point_of_every_curve_tells_its_value(page: str) -> None:
    drawing = page[page.index("accuracy-rounds-") :]
    drawing = drawing[: drawing.index("</svg>")]
    titles = [html.unescape(title) for title in re.findall(r"<title>(.*?)</title>", drawing)]
    for method in ("FedAPM", "FedAvg", "Local"):
        (last,) = [title for title in titles if title.startswith(f"{method}, round 12:")]
        assert re.search(r"round 12: \d+\.\d{2,}", last)


def test_tips_lie_where_their_values_are_drawn(page: str) -> None:
    drawing = page[page.index('aria-label="Accuracy in per cent against rounds') :]
    drawing = drawing[: drawing.index("</svg>")]
    places = {
        title: (float(x), float(y))
        for title, x, y in re.findall(r'<title>([^<]*)</title><circle cx="([\d.]+)" cy="([\d.]+)"', drawing)
    }
    line = re.search(r'<path d="(M[^"]*)"[^>]*style="[^"]*stroke: var\(--blue', drawing)
    assert line is not None
    ends = [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) ([\d.]+)", line[1])]
    (last,) = [place for title, place in places.items() if title.startswith("FedAPM, round 12")]
    assert last == pytest.approx(ends[-1], abs=0.2)


def test_cells_of_tables_tell_every_seed(page: str) -> None:
    assert re.search(r'title="Accuracy, %; seed 1: \d+\.\d{4,}', page)
