"""The templates of all pages, and how they are filled in."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup


def fill(name: str, **values: Any) -> str:
    """A page, with the style that all pages have."""
    made = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=FunctionLoader(_text)
    )
    return made.get_template(name).render(css=Markup(_text("page.css")), **values)


def _text(name: str) -> str:
    return files("fedapm.report").joinpath("templates", name).read_text(encoding="utf-8")
