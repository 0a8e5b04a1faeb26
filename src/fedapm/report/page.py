"""A report page: a heading and sections, each with a template of its own; and the templates of cards."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedapm.report.numbers import counted, listed, lower_first, plural


@dataclass(frozen=True)
class Figure:
    """A drawing and its caption."""

    title: str
    svg: Markup


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading of its own."""

    id: str
    title: str
    template: str
    context: Mapping[str, Any]
    link: str = ""
    """What the table of contents calls it, if not by its title."""

    @property
    def body(self) -> Markup:
        """Everything below the heading."""
        return Markup(fill(self.template, **self.context))


@dataclass(frozen=True)
class Page:
    """A whole report."""

    title: str
    facts: Sequence[str]
    """One line under the title."""
    headline: Sequence[str]
    """The main result, a paragraph each."""
    sections: Iterable[Section]
    warnings: Sequence[str] = ()
    """What went wrong; the heading points to the section that lists it."""
    notice: str = ""
    """What a reader must know before the result."""
    axes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The settings that were varied, with their values."""
    footer: str = ""
    """A last line, as HTML."""

    def render(self) -> str:
        """The page as one HTML file that needs nothing beside it."""
        return fill("page.html.j2", page=self)


def fill(template: str, **context: Any) -> str:
    """Render a template of this package; only HTML is escaped.

    Args:
        template: Its file name, such as ``page.html.j2``.
        context: What the template may use.
    """
    return _environment().get_template(template).render(**context)


def escape_markdown(text: Any) -> str:
    """A name as Markdown shows it, on one line: none of its characters means anything else."""
    return re.sub(r"([\\`*\[\]<>|~]|(?<!\w)_|_(?!\w)|^#)", r"\\\1", " ".join(str(text).split()))


def _code(text: Any) -> str:
    return f"`{' '.join(str(text).split()).replace('`', chr(39))}`"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("fedapm.report"),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"code": _code, "escape_markdown": escape_markdown, "lower_first": lower_first}
    environment.globals |= {"counted": counted, "listed": listed, "plural": plural}
    return environment
