"""The templates of reports and cards, and how they are filled in."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedapm.report.numbers import counted, listed, plural


def fill(template: str, **context: Any) -> str:
    """Render a template of this package; only HTML is escaped.

    Args:
        template: Its file name, such as ``page.html.j2``.
        context: What the template may use.
    """
    return _environment().get_template(template).render(**context)


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
    environment.filters["code"] = "`{}`".format
    environment.globals |= {"counted": counted, "listed": listed, "plural": plural}
    return environment
