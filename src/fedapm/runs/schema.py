"""What the files of a run may hold, so that a reader gets what it expects or one line that says what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import (
    Annotated,
    Any,
    NotRequired,  # pydantic wants this one before Python 3.12
)

from annotated_types import Ge, Len
from pydantic import AllowInfNan, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from fedapm.errors import FedapmError
from fedapm.runs.files import first_line, read_json

Count = Annotated[int, Ge(0)]
Numbers = dict[str, float | None]
Statistics = dict[str, float | list[float | None] | None]
"""Of a metric: mean, std, worst10 and clients. Of ``per_client``: each metric's value for every client."""
Evaluations = dict[str, dict[str, Statistics]]
"""By view, then by metric."""


class RoundLine(TypedDict):
    """A line of rounds.jsonl; ``fedapm.core.record.RoundRecord`` says what it means."""

    round: Count
    selected: NotRequired[list[Count]]
    dropped: NotRequired[list[Count]]
    bytes_up: NotRequired[Count]
    bytes_down: NotRequired[Count]
    total_bytes_up: NotRequired[Count]
    total_bytes_down: NotRequired[Count]
    drift: NotRequired[float | None]
    local: NotRequired[Numbers | None]
    server: NotRequired[Numbers | None]
    abstaining: NotRequired[list[Count]]
    stationarity: NotRequired[Numbers | None]
    theory: NotRequired[Numbers | None]
    evaluations: NotRequired[Evaluations | None]
    closing: NotRequired[ClosingPhase]


class WholeRoundLine(RoundLine):
    """What a line must hold where a whole history is made of it."""

    selected: list[Count]  # type: ignore[misc]
    dropped: list[Count]  # type: ignore[misc]
    bytes_up: Count  # type: ignore[misc]
    bytes_down: Count  # type: ignore[misc]
    total_bytes_up: Count  # type: ignore[misc]
    total_bytes_down: Count  # type: ignore[misc]
    drift: float | None  # type: ignore[misc]
    local: Numbers | None  # type: ignore[misc]
    evaluations: Evaluations | None  # type: ignore[misc]


class ClosingPhase(TypedDict):
    """What a closing phase adds to the last line."""

    epochs: Count
    bytes_down: Count
    before: Evaluations | None


class TimingLine(TypedDict):
    """A line of timings.jsonl."""

    round: Count
    seconds: NotRequired[Annotated[float, AllowInfNan(False)]]
    processor_seconds: NotRequired[Annotated[float, AllowInfNan(False)]]


class ClientInfo(TypedDict):
    """A client in run.json."""

    id: str | int
    train: NotRequired[Count]
    test: NotRequired[Count]
    classes: NotRequired[Count]
    position: NotRequired[Count]


class UnseenClient(TypedDict):
    """A client in unseen.json."""

    id: str
    train: Count
    start: str
    epochs: Count
    before: Numbers
    after: Numbers


class UnseenInfo(TypedDict):
    """unseen.json."""

    clients: list[UnseenClient]


class SpentBySite(TypedDict):
    """A client in privacy.json."""

    id: str
    samples: Count
    steps: Count
    epsilon: float


class PrivacyInfo(TypedDict):
    """privacy.json: what each client has spent after a round, where single samples are protected."""

    round: Count
    clients: list[SpentBySite]


class ClassCounts(TypedDict):
    """classes.json: by view and client, the right class, the class it was taken for, and how often."""

    round: Count
    views: dict[str, list[list[Annotated[list[Count], Len(3, 3)]]]]


class RunInfo(TypedDict):
    """run.json."""

    method: str
    seed: int
    status: str
    clients: list[ClientInfo]
    population: NotRequired[Count]
    mean_batches: NotRequired[float]
    label: NotRequired[str]
    views: NotRequired[list[str]]
    metrics: NotRequired[list[dict[str, Any]] | None]
    rounds: NotRequired[Count]
    finished: NotRequired[Count]
    stopped: NotRequired[str]
    data: NotRequired[str | None]
    classes: NotRequired[Count]
    seen_classes: NotRequired[list[int] | None]
    input_shapes: NotRequired[list[list[Count]]]
    transform: NotRequired[dict[str, Any] | None]
    model: NotRequired[str | None]
    parameters: NotRequired[dict[str, Count | list[Count]] | None]
    split: NotRequired[dict[str, list[str]]]
    environment: NotRequired[dict[str, str] | None]
    digests: NotRequired[dict[str, str]]


class EngineInfo(TypedDict):
    """engine.json: how clients were run, and on Flower the settings of the deployment."""

    engine: str
    why: NotRequired[str]
    flower: NotRequired[dict[str, Any]]


class TunedMethod(TypedDict):
    """What a search found for a method."""

    label: str
    trials: Count
    best: float | None
    default: float | None
    settings: dict[str, Any]
    pruned: NotRequired[Count]
    diverged: NotRequired[Count]


class TuneInfo(TypedDict):
    """tune.json."""

    status: str
    arguments: dict[str, Any]
    settings: dict[str, dict[str, Any]]
    spaces: dict[str, dict[str, str]]
    workers: NotRequired[Count]
    methods: NotRequired[dict[str, TunedMethod]]


class MetricInfo(TypedDict):
    """A metric, as a search names it."""

    title: str


class SplitArguments(TypedDict):
    """What a search of the split was asked for."""

    metric: MetricInfo


class SplitChoice(TypedDict):
    """The split that was chosen."""

    personal: NotRequired[list[str]]
    shared: NotRequired[list[str]]


class SplitInfo(TypedDict):
    """split.json of a search that is complete."""

    arguments: SplitArguments
    chosen: NotRequired[SplitChoice]
    advice: list[str]
    settings: dict[str, Any]
    rows: list[dict[str, Any]]


_READERS: dict[Any, TypeAdapter[Any]] = {}
"""Making one takes longer than reading many lines with it."""


def check(kind: Any, content: object, where: str) -> None:
    """Refuse content of another form.

    Args:
        kind: One of the forms above.
        content: What was read.
        where: The file, and its line, for the message.
    """
    if kind not in _READERS:
        _READERS[kind] = TypeAdapter(kind)
    try:
        _READERS[kind].validate_python(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "it"
        said = first_line(str(first["msg"]).removeprefix("Input "))
        raise FedapmError(f"{where} is damaged: {field}: {said[0].lower()}{said[1:]}.") from None
    except RecursionError:
        raise FedapmError(f"{where} is damaged: it is nested too deeply.") from None


def read(kind: Any, path: Path) -> dict[str, Any]:
    """Read a JSON object of one of the forms above.

    Args:
        kind: The form.
        path: The file.

    Returns:
        What it holds.

    Raises:
        FedapmError: Where it is missing, or is not of this form; in one line.
    """
    content = read_json(path)
    check(kind, content, str(path))
    return content
