"""What the commands of the command line share: options, and what becomes of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedapm.errors import FedapmError

if TYPE_CHECKING:
    from fedapm.experiments.settings import Tables

CONFIG = "Experiment file (TOML): data, model, method and training; fedapm init writes one to start from."
"""What every command says about its experiment file."""
ConfigFile = Annotated[Path | None, typer.Argument(help=f"{CONFIG} Defaults without it.", show_default=False)]
Data = Annotated[
    str | None,
    typer.Option("--data", help="Data set (see: fedapm list data), or a data file of your own (.npz, .csv, .parquet)."),
]
DataRoot = Annotated[Path | None, typer.Option("--data-root", help="Folder with the data set's files.")]
ImageEncoder = Annotated[
    str | None,
    typer.Option("--image-encoder", help="What turns pictures into features: efficientnet-lite0 or mobilenet-v2."),
]
TextEncoder = Annotated[
    str | None, typer.Option("--text-encoder", help="What turns text into features: minilm or mobilebert.")
]
Methods = Annotated[str, typer.Option("--methods", help="Methods, separated by commas, or all.")]
Seeds = Annotated[str, typer.Option("--seeds", help="Seeds, separated by commas.")]
Rounds = Annotated[int | None, typer.Option("--rounds", help="Number of rounds.")]
EngineName = Annotated[
    str | None, typer.Option("--engine", help="How clients are run: auto, sequential, vectorized, processes or ray.")
]
Workers = Annotated[int | None, typer.Option("--workers", help="Worker processes.")]
RunsAtOnce = Annotated[
    int | None, typer.Option("--workers", help="Runs at a time; as many as processors and memory allow if not given.")
]
Device = Annotated[str | None, typer.Option("--device", help="Where to compute: cpu, cuda, …")]
TunedPath = Annotated[
    Path | None, typer.Option("--tuned", help="Settings found by fedapm tune: its folder, or a tuned.toml.")
]
Log = Annotated[list[str] | None, typer.Option("--log", help="Also log to tensorboard or mlflow; may be repeated.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for the results.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting, as table.key=value; may be repeated.")
]
ModelFormat = Annotated[
    str | None,
    typer.Option("--format", help="safetensors, onnx, torchscript, merged or peft; by the file's ending if not given."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

SIX = "fedapm,fedalt,fedsim,fedavg,fedprox,local"
"""The methods that are compared where none are named."""


def common(
    data: str | None,
    root: Path | None,
    image_encoder: str | None,
    text_encoder: str | None,
    rounds: int | None,
    engine: str | None,
    workers: int | None,
    device: str | None,
) -> Tables:
    """The settings that options of their own stand for."""
    return {
        "data": {
            **named_data(data),
            "root": root and str(root),
            "image_encoder": image_encoder,
            "text_encoder": text_encoder,
        },
        "engine": {"rounds": rounds, "engine": engine, "workers": workers, "device": device},
    }


def layers(config: Path | None, assign: list[str] | None, *options: Tables) -> list[Tables]:
    """The experiment file, then the options that were given, then what --set says."""
    from fedapm.experiments.settings import read_toml

    given = [{name: _given(table) for name, table in layer.items() if _given(table)} for layer in options]
    return [*([read_toml(config)] if config is not None else []), *given, *assignments(assign)]


def assignments(assign: list[str] | None) -> list[Tables]:
    """What --set says; files and modules of the user's own are looked for in the working folder."""
    from fedapm.experiments.settings import in_folder, parse_assignment

    return [in_folder(parse_assignment(text), Path.cwd()) for text in assign or []]


def named_data(data: str | None) -> dict[str, Any]:
    """The settings for what --data names: a data set, or a file of the user's own."""
    from fedapm.data.own import is_data_file

    if data is None or not is_data_file(data):
        return {"name": data}
    return {"file": data, "folder": str(Path.cwd())}


def names(text: str) -> list[str]:
    """Methods as they are given to --methods."""
    from fedapm.algorithms import METHODS

    return list(METHODS) if text == "all" else _parts(text)


def numbers(text: str) -> list[int]:
    """Seeds as they are given to --seeds."""
    try:
        return [int(part) for part in _parts(text)]
    except ValueError:
        raise FedapmError(f"--seeds takes whole numbers separated by commas, not {text!r}.") from None


def console(width: int = 140) -> Console:
    """Where results are printed; a pipe has no width, and tables should not be folded to 80 columns there."""
    return Console(width=None if sys.stdout.isatty() else width)


def print_line(message: str) -> None:
    """One line about the result."""
    console().print(message, highlight=False, soft_wrap=True, markup=False)


def _given(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
