"""Fuzzing: settings, mini-languages and every file of a run folder, mangled in all ways; each answer is one sentence.

hypothesis makes the inputs. Where atheris is installed, a coverage-guided run over the decoders comes on top.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from attacks._child import command, prepare, run, workshop
from attacks._commands import ONE_FILE, TINY
from attacks.registry import attack
from attacks.tally import Outcome, Tally

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
JSON = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
ODD = st.sampled_from(
    [
        0,
        -1,
        10**400,
        1e300,
        -1e300,
        float("nan"),
        float("inf"),
        "",
        "auto",
        "meta",
        "\x00",
        "\x1b[31m",
        [],
        {},
        [[]],
        True,
    ]
)
SIGNS = tuple(".,=:[]{}\"'\\#\n\t\x00\x1b*?ρ01a")
NAMES = ("solver.lr", "algorithm.rho", "data.clients", "engine.seed", "model.personal", "accuracy", "fedapm", "head")
VALUES = ("log:", "int:", "-1", "0.1", "1e300", "nan", "inf", "true", "auto", "**", "..")
WORDS = st.sampled_from((*SIGNS, *NAMES, *VALUES))
LANGUAGE = st.lists(WORDS, max_size=8).map("".join) | st.text(max_size=20)


def fuzzed(strategy: st.SearchStrategy[Any], count: int, body: Callable[[Any], object], tally: Tally) -> None:
    """Give a function so many inputs, and count what became of each.

    Args:
        strategy: Makes inputs.
        count: How many.
        body: The function.
        tally: Where to count.
    """
    left = count
    for part in range(count // 5000 + 1):
        wanted = min(left, 5000)
        left -= wanted
        if not wanted:
            break

        def once(value: Any) -> None:
            tally.add(*_outcome(body, value))

        limits = settings(
            max_examples=wanted,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        seed(1000 * tally.tried + part)(limits(given(strategy)(once)))()


def _outcome(body: Callable[[Any], object], value: Any) -> tuple[Outcome, str]:
    from fedapm.errors import FedapmError

    try:
        body(value)
    except FedapmError as error:
        lines = str(error).splitlines()
        return (Outcome.REFUSED, "") if len(lines) == 1 else (Outcome.TRACEBACK, f"{len(lines)} lines: {value!r:.200}")
    except (Exception, RecursionError) as error:
        return Outcome.TRACEBACK, f"{type(error).__name__}: {str(error)[:200]}: {value!r:.300}"
    return Outcome.SURVIVED, ""


def _quiet() -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")


@attack("fuzzing: settings", "inputs")
def fuzz_settings(tally: Tally, quick: bool) -> None:
    """Tables of settings with known and unknown keys, and values of every kind."""
    from fedapm.algorithms import METHODS, hyperparameters
    from fedapm.core.solver import SGDConfig
    from fedapm.experiments import build
    from fedapm.experiments.settings import DataSettings, EngineSettings, ModelSettings

    _quiet()
    kinds = {"data": DataSettings, "model": ModelSettings, "solver": SGDConfig, "engine": EngineSettings}
    keys = {table: [field.name for field in fields(kind)] for table, kind in kinds.items()}
    keys["algorithm"] = ["name", *{key for method in METHODS.values() for key in hyperparameters(method)}]
    named = {table: st.sampled_from(names) | st.text(max_size=4) for table, names in keys.items()}
    values = JSON | ODD | st.sampled_from([*METHODS, "digits", "cifar10", "mlp"])
    tables = st.fixed_dictionaries(
        {}, optional={table: st.dictionaries(key, values, max_size=3) | ODD for table, key in named.items()}
    )
    fuzzed(tables, 300 if quick else 20_000, lambda given: build.resolve(given).tables(), tally)


@attack("fuzzing: mini-languages", "inputs")
def fuzz_languages(tally: Tally, quick: bool) -> None:
    """--set, --search, --target, --vary, --seeds and patterns of parameters."""
    from torch import nn

    from fedapm.cli.options import numbers
    from fedapm.core.split import SplitRule
    from fedapm.experiments.compare import parse_targets
    from fedapm.experiments.settings import parse_assignment
    from fedapm.experiments.vary import parse_vary
    from fedapm.tuning.space import parse_dimension

    _quiet()
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    parsers: list[Callable[[str], object]] = [
        parse_assignment,
        lambda text: parse_targets([text, text]),
        parse_vary,
        parse_dimension,
        numbers,
        lambda text: SplitRule(personal=(text,), frozen=("1.bias",)).apply(network),
    ]
    prefixes = ("", "solver.lr=", "solver.lr=log:", "accuracy=", "model.personal=")
    texts = st.builds("".join, st.tuples(st.sampled_from(prefixes), LANGUAGE))
    for parser in parsers:
        fuzzed(texts, 60 if quick else 11_000, parser, tally)


@attack("fuzzing: run folders", "inputs")
def fuzz_folders(tally: Tally, quick: bool) -> None:
    """Every file that a reader opens, with bytes or JSON values changed."""
    _quiet()
    prepare()
    with workshop("fuzz") as base:
        files = [(out, path) for out in _folders(base) for path in sorted(out.rglob("*")) if _is_read(path)]
        for folder, path in files:
            whole = path.read_bytes()
            try:
                reader = _reader(folder)
                count = 2 if quick else 600
                if path.suffix in (".json", ".jsonl"):
                    fuzzed(_mangled_json(whole), count, _with(path, reader), tally)
                fuzzed(_mangled_bytes(whole), count, _with(path, reader), tally)
            finally:
                path.write_bytes(whole)


@attack("fuzzing: tensor files", "inputs")
def fuzz_tensors(tally: Tally, quick: bool) -> None:
    """Checkpoints and models with bytes changed, cut off and put in."""
    import torch

    from fedapm.runs.files import read_tensors, write_tensors

    _quiet()
    with workshop("tensors") as base:
        path = base / "a.safetensors"
        stored = {"server/u/w": torch.arange(6.0).reshape(2, 3), "steps": torch.tensor(3)}
        write_tensors(path, stored, {"round": 3, "server": {"vectors": ["u"]}})
        whole = path.read_bytes()

        def read(content: bytes) -> None:
            path.write_bytes(content)
            tensors, about = read_tensors(path)
            same = tensors.keys() == stored.keys() and all(tensors[name].equal(stored[name]) for name in stored)
            if not same or about["round"] != 3:
                raise AssertionError("a changed file was taken for whole")

        fuzzed(_mangled_bytes(whole), 300 if quick else 12_000, read, tally)


@attack("fuzzing: decoders, guided by coverage", "inputs")
def fuzz_decoders(tally: Tally, quick: bool) -> None:
    """The decoders under atheris, where it is installed."""
    try:
        import atheris  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        tally.skipped = "atheris is not installed (pip install atheris)."
        return
    import torch

    from fedapm.runs.files import write_tensors

    runs = 2_000 if quick else 200_000
    with workshop("atheris") as base:
        corpus = base / "corpus"
        corpus.mkdir()
        (corpus / "json").write_text(json.dumps({"round": 1, "selected": [0], "drift": None, "local": {"u": 0.5}}))
        (corpus / "toml").write_text('[solver]\nlr = 0.1\n[model]\npersonal = ["head.*"]\n')
        write_tensors(corpus / "tensors", {"server/u/w": torch.ones(2)}, {"round": 1})
        arguments = [
            sys.executable,
            "-m",
            "attacks._decoders",
            f"-runs={runs}",
            f"-artifact_prefix={base}/",
            str(corpus),
        ]
        ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
        for _ in range(runs if ended.returncode == 0 else 1):
            tally.add(Outcome.SURVIVED if ended.returncode == 0 else Outcome.TRACEBACK, ended.stderr[-500:])


def _folders(base: Path) -> list[Path]:
    """A run, a comparison, a sweep and a search of the split, each as small as can be."""
    short = [*TINY, ONE_FILE, "--rounds=1"]
    commands = {
        "run": [
            "run",
            *TINY,
            "--rounds=1",
            "--set=data.clients=3",
            "--set=data.unseen=0.3",
            "--set=engine.theory=true",
        ],
        "compare": ["compare", *short, "--methods=fedapm", "--seeds=0", "--target=accuracy=0.1"],
        "sweep": ["sweep", *short, "--methods=local", "--seeds=0", "--vary=solver.lr=0.1,0.2"],
        "split": ["split", *short, "--budget=8", "--seeds=0", "--set=data.train_limit=24"],
    }
    for name, arguments in commands.items():
        ended = run(command(*arguments, f"--out={base / name}"), base / "said")
        if ended.code:
            raise RuntimeError(ended.said)
    run(command("theory", str(base / "run"), "--clients=1"), base / "said")
    for extra in (base / "split" / "candidates", base / "run" / "checkpoints", base / "run" / "models"):
        shutil.rmtree(extra, ignore_errors=True)
    return [base / name for name in commands]


def _is_read(path: Path) -> bool:
    return path.suffix in (".json", ".jsonl", ".toml") and path.name != "card.json" and "checkpoints" not in path.parts


def _reader(out: Path) -> Callable[[], None]:
    """Everything that reads a folder of results."""
    from fedapm.experiments.compare import About
    from fedapm.experiments.load import load
    from fedapm.report import summary_table
    from fedapm.report.card import as_markdown, card
    from fedapm.report.comparison.sections.targets import read_targets
    from fedapm.report.split.search import read_search
    from fedapm.report.sweep.runs import read_sweep
    from fedapm.runs.config import changed_settings, read_config
    from fedapm.runs.records import find_runs, unseen_clients
    from fedapm.theory.findings import read_study
    from fedapm.tuning.split.record import recorded_choice

    def read() -> None:
        if out.name == "split":
            _ = read_search(out).chosen, read_search(out).assignment, read_search(out).title
            recorded_choice(out)
            return
        runs = find_runs(out)
        summary_table(runs)
        as_markdown(card(out, "fedapm run"))
        for one in runs:
            unseen_clients(one)
            read_study(one.path)
            changed_settings(read_config(one.path), {})
            loaded = load(one.path)
            _ = loaded.history, loaded.clients, loaded.views, loaded.settings, loaded.unseen
        if out.name == "compare":
            read_targets(out)
            About(["fedapm"], [0]).over(out)
        if out.name == "sweep":
            read_sweep(out).as_rows()

    return read


def _with(path: Path, reader: Callable[[], None]) -> Callable[[bytes], None]:
    def body(content: bytes) -> None:
        path.write_bytes(content)
        reader()

    return body


@st.composite
def _mangled_bytes(draw: st.DrawFn, whole: bytes) -> bytes:
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(len(content) - 1, 0)))
        match draw(st.integers(0, 4)):
            case 0 if content:
                content[place] ^= draw(st.integers(1, 255))
            case 1:
                del content[place:]
            case 2:
                del content[place : place + draw(st.integers(1, 30))]
            case 3:
                content[place:place] = draw(
                    st.binary(max_size=8) | st.sampled_from([b"[" * 5000, b"\xff", b"\x00", b"{"])
                )
            case _:
                content[place:place] = content[place : place + draw(st.integers(1, 60))]
    return bytes(content)


@st.composite
def _mangled_json(draw: st.DrawFn, whole: bytes) -> bytes:
    """One value somewhere in a JSON file, or in a line of it, replaced or taken out."""
    try:
        # one object in a file, or one a line
        rows, indent = [json.loads(whole)], 2
    except ValueError:
        rows, indent = [json.loads(line) for line in whole.splitlines()], None
    place: Any = draw(st.sampled_from(rows)) if rows else {}
    for _ in range(draw(st.integers(0, 6))):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        below = [key for key in keys if isinstance(place[key], dict | list) and place[key]]
        if not below:
            break
        place = place[draw(st.sampled_from(below))]
    keys = list(place) if isinstance(place, dict) else list(range(len(place)))
    if keys:
        key = draw(st.sampled_from(keys))
        if draw(st.integers(0, 3)):
            place[key] = draw(JSON | ODD)
        else:
            del place[key]
    return "\n".join([*(json.dumps(row, indent=indent) for row in rows), ""]).encode("utf-8", "surrogatepass")
