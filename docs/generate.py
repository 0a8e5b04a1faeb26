"""Write docs/reference/configuration.md from the code, so that it lists every setting and no other.

Keys, types and defaults come from the dataclasses that check an experiment file, meanings from the strings below
their fields.

    python docs/generate.py            write the page
    python docs/generate.py --check    exit with 1 if the page is not what would be written
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import tomli_w

from fedapm.algorithms import METHODS
from fedapm.data import DATA_SETS
from fedapm.models import MODELS
from fedapm.settings import DataSettings, EngineSettings, ModelSettings
from fedapm.solver import Solver

PAGE = Path(__file__).parent / "reference" / "configuration.md"

INTRODUCTION = """\
# Configuration

<!-- Written by docs/generate.py from the code. Change the docstrings there, not this page. -->

An experiment is one TOML file of five tables: `[data]`, `[model]`, `[algorithm]`, `[solver]` and `[engine]`. Every
table and every key may be left out. Unknown tables and keys are errors that name the nearest known one.

Where a setting is given more than once, the later of these wins:

1. the defaults on this page,
2. the [defaults of the data set](#defaults-of-the-data-sets),
3. the experiment file,
4. the options of the command line, such as `--rounds`,
5. `--set table.key=value`, in the order given. The value is TOML, or else a plain string.

A change of `algorithm.name` in a later layer leaves the hyperparameters of the earlier method behind. A `preset`,
`personal`, `shared` or `name` in `[model]` takes the place of the data set's own preset; with a `name` alone,
everything is shared.

`fedapm compare` also reads one table for each method, such as `[fedapm]` or `[fedprox]`, with hyperparameters of that
method alone. Keys in `[algorithm]` go to every compared method that has them; `mu` is two different things in FedAPM
and in FedProx, so put it in the method's own table. `fedapm run` knows only the five tables.

In Python the keys of `[solver]` and `[engine]` are keyword arguments of `fedapm.train`, the keys `personal`, `shared`,
`frozen` and `preset` of `[model]` are too, and hyperparameters are arguments of the method: `FedAPM(rho=0.1)`.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    parts += section("[data]", DataSettings)
    parts += section("[model]", ModelSettings)
    parts += options()
    parts += methods()
    parts += section("[solver]", Solver)
    parts += section("[engine]", EngineSettings)
    parts += data_sets()
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def section(title: str, kind: type) -> list[str]:
    """One table of the experiment file."""
    return [f"## {title}", first_line(kind), table(rows(kind))]


def methods() -> list[str]:
    """The hyperparameters of each method."""
    listed = ", ".join(f"`{name}`" for name in METHODS)
    name = [("name", "string", '`"fedapm"`', f"The method: {listed}.")]
    parts = ["## [algorithm]", "Which method, and its hyperparameters.", table(name)]
    for key, kind in METHODS.items():
        found = list(rows(kind))
        parts += [f"### {key}", f"{kind.label}: {first_line(kind)}"]
        parts.append(table(found) if found else "It has no hyperparameters of its own.")
    return parts


def options() -> list[str]:
    """The arguments of each network."""
    parts = ["### [model.options]", "Arguments of the network. The number of classes is taken from the data."]
    for name, kind in MODELS.items():
        known = [
            (p.name, type_name(hint(kind.__init__, p.name)), value(p.default))
            for p in inspect.signature(kind).parameters.values()
            if p.name != "classes"
        ]
        stages = ", ".join(f"`{stage}`" for stage in getattr(kind, "stages", {}))
        about = f"`{name}` ({first_line(kind).rstrip('.')}; presets: {stages or 'none'}):"
        parts += [about, table(known, ("key", "type", "default"))]
    return parts


def data_sets() -> list[str]:
    """What each data set sets by itself."""
    parts = [
        "## Defaults of the data sets",
        "A named data set brings settings that suit it. They apply wherever the experiment is silent.",
    ]
    for name, known in DATA_SETS.items():
        tables = {table: dict(settings) for table, settings in known.defaults.items()}
        parts += [f"`{name}`: {known.about}.", f"```toml\n{tomli_w.dumps(tables).strip()}\n```"]
    return parts


def rows(kind: type) -> Iterator[tuple[str, str, str, str]]:
    """Key, type, default and meaning of each field."""
    hints, meanings = typing.get_type_hints(kind), docstrings(kind)
    for field in fields(kind):
        if field.name not in meanings:
            raise SystemExit(f"{kind.__name__}.{field.name} has no docstring below it.")
        yield field.name, type_name(hints[field.name]), default(field), meanings[field.name]


def docstrings(kind: type) -> dict[str, str]:
    """The string below each field, in a class and in those it inherits from."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        if base.__module__.split(".")[0] != "fedapm":
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for field, below in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
                text = getattr(below.value, "value", None)
                if isinstance(text, str):
                    found[field.target.id] = " ".join(text.split())
    return found


def type_name(kind: Any) -> str:
    """A type as a person who writes TOML would say it."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(type_name(a) for a in arguments if a is not type(None))
    if origin is Literal:
        return ", ".join(f'`"{a}"`' for a in arguments)
    if origin is tuple:
        return f"list of {type_name(arguments[0])}s"
    if origin is dict:
        return "table"
    return {str: "string", int: "integer", float: "number", bool: "true or false"}[kind]


def default(field: Field[Any]) -> str:
    """A default as TOML writes it."""
    return value(field.default_factory()) if field.default_factory is not MISSING else value(field.default)


def value(given: Any) -> str:
    """A value as TOML writes it."""
    if given is None:
        return "not set"
    if given is MISSING or given is inspect.Parameter.empty:
        return "required"
    if isinstance(given, Mapping):
        return "empty"
    plain = list(given) if isinstance(given, tuple) else given
    return f"`{tomli_w.dumps({'x': plain}).strip().removeprefix('x = ')}`"


def hint(function: Any, name: str) -> Any:
    """The type of one argument."""
    return typing.get_type_hints(function)[name]


def first_line(kind: type) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(kind) or "").splitlines()[0]


def table(found: Any, head: Sequence[str] = ("key", "type", "default", "meaning")) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head)]
    for key, *others in found:
        lines.append([f"`{key}`", *others])
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def main(arguments: Sequence[str]) -> int:
    """Write or check the page."""
    made = page()
    if "--check" in arguments:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == made:
            return 0
        print(f"{PAGE.name} is stale; run: python docs/generate.py", file=sys.stderr)
        return 1
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
