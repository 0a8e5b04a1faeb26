"""Write docs/reference/configuration.md and docs/methods.md from the code, so that they list what there is.

Keys, types and defaults come from the dataclasses that check an experiment file, meanings from the strings below
their fields, papers from the heads of the methods' files. Bytes are measured: one client's round is run.

    python docs/generate.py            write the pages
    python docs/generate.py --check    exit with 1 if a page is not what would be written
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tomli_w

from fedapm.adapters import LoraSettings
from fedapm.algorithms import METHODS, PRESETS, rows_of
from fedapm.core.algorithm import Algorithm
from fedapm.core.solver import SGDConfig
from fedapm.core.split import Preset, SplitRule
from fedapm.data import DATA_SETS, Federation
from fedapm.experiments.settings import DataSettings, EngineSettings, ModelSettings
from fedapm.flower.settings import FlowerSettings
from fedapm.models import CNN, MODELS
from fedapm.privacy import PrivacySettings
from fedapm.simulation.problem import Problem
from fedapm.uploads import UploadSettings

DOCS = Path(__file__).parent
NAMED = METHODS | PRESETS

INTRODUCTION = """\
# Configuration

<!-- Written by docs/generate.py from the code. Change the docstrings there, not this page. -->

An experiment is one TOML file of seven tables: `[data]`, `[model]`, `[algorithm]`, `[solver]`, `[engine]`, `[upload]`
and `[privacy]`. Every table and every key may be left out. Unknown tables and keys are errors that name the nearest
known one.

Where a setting is given more than once, the later of these wins:

1. the defaults on this page,
2. the [defaults of the data set](#defaults-of-the-data-sets),
3. the experiment file,
4. the options of the command line, such as `--rounds`,
5. `--set table.key=value`, in the order given. The value is TOML, or else a plain string.

A change of `algorithm.name` in a later layer leaves the hyperparameters of the earlier method behind. A `preset`,
`personal`, `shared`, `split` or `name` in `[model]` takes the place of the data set's own preset; with a `name` alone,
everything is shared. A preset, patterns and `split` in different layers do not mix either: the last layer wins.

`fedapm compare` also reads one table for each method, such as `[fedapm]` or `[fedprox]`, with hyperparameters of that
method alone. Keys in `[algorithm]` go to every compared method that has them. `mu`, `lam` and `eta` mean different
things in different methods, so put them in the method's own table. `fedapm run` knows only the seven tables.

One more, [`[flower]`](#flower), says how rounds are run over a network. `fedapm flower run` reads it; every other
command ignores it, so one file serves for a simulation and for a deployment.

In Python the keys of `[solver]` and `[engine]` are keyword arguments of `fedapm.train`, the keys `personal`, `shared`,
`frozen` and `preset` of `[model]` are too, and so are hyperparameters: `train("digits", rho=0.1)`, or
`algorithm=FedAPM(rho=0.1)`. `[upload]` and `[privacy]` are one argument each:
`train("digits", upload={"round_to": "int8"})`.
"""


METHODS_INTRODUCTION = """\
# Methods

<!-- Written by docs/generate.py from the code. Change the docstrings there, not this page. -->

Names are those given to `--algorithm`, to `--methods` and to `train(algorithm=…)`. Rows are what a report calls the
method: one for each model that is evaluated. [The methods](explanation/methods.md) explains them in words.

Bytes are those of one client in one round, up (what it sends) and down (what it receives): in thousands of bytes, and
in brackets as a multiple of FedAvg's. They are measured, by one client's round on the network `cnn` for ten classes
with `preset = "output"`: the two fully connected layers are personal, the convolutions are shared. Where little is
shared, little is sent; another split gives other numbers. The last three names have a split of their own and do not
follow the experiment's.
"""


def configuration() -> str:
    """The page of settings."""
    parts = [INTRODUCTION]
    parts += section("[data]", DataSettings)
    parts += section("[model]", ModelSettings)
    parts += section("[model.lora]", LoraSettings)
    parts += options()
    parts += methods()
    parts += section("[solver]", SGDConfig)
    parts += section("[engine]", EngineSettings)
    parts += section("[upload]", UploadSettings)
    parts += section("[privacy]", PrivacySettings)
    parts += section("[flower]", FlowerSettings)
    parts += data_sets()
    return joined(parts)


def method_page() -> str:
    """The page of methods: one table of all, then a section for each."""
    base = traffic(METHODS["fedavg"])
    lines = []
    for name, kind in NAMED.items():
        up, down = (relative(size, whole) for size, whole in zip(traffic(kind), base, strict=True))
        personal = kind.personal + (f", the {kind.preset} stage" if kind.preset else "")
        label = f"[{', '.join(rows_of(kind))}](#{kind.label.lower().replace(' ', '-')})"
        lines.append((name, label, short(paper(kind)), personal, kind.sends, up, down, kind.evaluates))
    head = ("name", "rows in a report", "paper", "personal", "a client sends", "kB up", "kB down", "evaluated")
    parts = [METHODS_INTRODUCTION, table(lines, head)]
    for name, kind in NAMED.items():
        found = [(key, given, about) for key, _, given, about in rows(kind)]
        parts += [f"## {kind.label}", f"`{name}`. {' '.join((inspect.getdoc(kind) or '').split())}", paper(kind)]
        parts += [f"Use it when: {kind.suits}."] if kind.suits else []
        own = table(found, ("hyperparameter", "default", "meaning"))
        parts.append(own if found else "It has no hyperparameters of its own.")
    return joined(part for part in parts if part)


def paper(kind: type[Algorithm]) -> str:
    """The citation at the head of a method's file; where the file cites several, the one after the method's name."""
    cited = (inspect.getmodule(kind).__doc__ or "").partition("\n\n")[2].strip()
    if kind.name in PRESETS:
        labels = "|".join(re.escape(other.label) for other in PRESETS.values())
        (cited,) = re.findall(rf"^{re.escape(kind.label)}: (.+?)(?=^(?:{labels}): |\Z)", cited, re.M | re.S)
    return " ".join(cited.split())


def short(cited: str) -> str:
    """First author, venue and year of a citation."""
    if not cited:
        return "none"
    authors = cited.partition(":")[0].split(", ")
    others = {1: "", 2: f" and {authors[-1]}"}.get(len(authors), " et al.")
    return f"{authors[0]}{others}, {cited.rstrip('.').rpartition('. ')[2]}"


def relative(size: int, whole: int) -> str:
    """Bytes in thousands, and their ratio to others to two digits."""
    ratio = size / whole
    return f"{size / 1e3:.1f} ({ratio:.2f})" if ratio >= 0.01 else f"{size / 1e3:.1f} ({ratio:.2g})"


def traffic(kind: type[Algorithm]) -> tuple[int, int]:
    """Bytes one client sends and receives in a round, measured on a round with a few random pictures."""
    stream = np.random.default_rng(0)
    pictures = stream.standard_normal((8, 3, 32, 32)), np.arange(8)
    method, rule, solver = kind(), SplitRule(preset="output"), SGDConfig(epochs=1, batch_size=4)
    problem = Problem(Federation.from_clients([pictures]), CNN, rule, adapt=method.adapt, solver=solver)
    down = method.broadcast(method.server_init(problem.u0))
    reply = method.client_update(down, method.client_init(problem.u0, problem.start(0).v0), problem.task(0, 1))
    return reply.upload.nbytes, down.nbytes


def joined(parts: Iterable[str]) -> str:
    """Paragraphs as one text."""
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def section(title: str, kind: type) -> list[str]:
    """One table of the experiment file."""
    return [f"## {title}", first_line(kind), table(rows(kind))]


def methods() -> list[str]:
    """The hyperparameters of each method."""
    listed = ", ".join(f"`{name}`" for name in NAMED)
    name = [("name", "string", '`"fedapm"`', f"The method: {listed}.")]
    parts = ["## [algorithm]", "Which method, and its hyperparameters. [Methods](../methods.md) cites the papers."]
    parts.append(table(name))
    for key, kind in NAMED.items():
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
        known_presets = typing.get_args(Preset)
        stages = ", ".join(f"`{stage}`" for stage in getattr(kind, "stages", {}) if stage in known_presets)
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
        for version in known.feature_versions():
            tables = {table: dict(settings) for table, settings in version.defaults.items()}
            about = f'`{name}` with `data.features = "{version.features_name}"`:'
            parts += [about, f"```toml\n{tomli_w.dumps(tables).strip()}\n```"]
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
    if origin is list:
        return "list of " + " or ".join(f"{type_name(a)}s" for a in typing.get_args(arguments[0]) or arguments)
    if origin is dict:
        return "table"
    if is_dataclass(kind):
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
    # a list on one line, as a row of a table is
    parts = list(given) if isinstance(given, tuple | list) else [given]
    written = ", ".join(tomli_w.dumps({"x": part}).strip().removeprefix("x = ") for part in parts)
    return f"`[{written}]`" if isinstance(given, tuple | list) else f"`{written}`"


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
    """Write or check the pages."""
    pages = {DOCS / "reference" / "configuration.md": configuration(), DOCS / "methods.md": method_page()}
    if "--check" in arguments:
        stale = [p.name for p, made in pages.items() if not p.is_file() or p.read_text(encoding="utf-8") != made]
        for name in stale:
            print(f"{name} is stale; run: python docs/generate.py", file=sys.stderr)
        return 1 if stale else 0
    for path, made in pages.items():
        path.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
