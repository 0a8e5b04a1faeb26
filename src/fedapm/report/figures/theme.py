"""Colors of figures that follow the page from light to dark: each is a variable of the page's style sheet."""

from __future__ import annotations

import re

VARIABLES = {
    "#1a1a1a": "--ink",
    "#333333": "--ink",
    "#ffffff": "--card",
    "#8a8f94": "--axis",
    "#e6e8ea": "--grid",
    "#cfd4d9": "--axis",
    "#6b7075": "--soft",
    "#9aa0a6": "--soft",
    "#0072b2": "--blue",
    "#d55e00": "--orange",
    "#009e73": "--green",
    "#b5529a": "--purple",
    "#c98a00": "--ochre",
    "#3fa3dc": "--sky",
}
"""What a color of a figure is called in page.css, which says what it is in the dark."""
_HEX = re.compile(r"#[0-9a-f]{6}\b")


def themed(color: str) -> str:
    """A color as CSS; one without a name of its own, as those of a scale, becomes lighter in the dark.

    Args:
        color: As ``#0072b2``.
    """
    name = VARIABLES.get(color)
    return f"var({name}, {color})" if name is not None else f"color-mix(in srgb, {color} var(--keep, 100%), #fff)"


def themed_styles(svg: str) -> str:
    """A drawing with all its colors themed; only a style may name a variable, so attributes become styles."""
    svg = re.sub(r' (fill|stroke)="(#[0-9a-f]{6})"', r' style="\1: \2"', svg)
    return re.sub(
        r'style="[^"]*"', lambda style: _HEX.sub(lambda color: themed(color[0]), style[0]), svg, flags=re.DOTALL
    )
