"""An experiment in one TOML file: seven tables, every key checked, unknown ones refused by name.

docs/reference/configuration.md lists all of them.
"""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tomli_w
from annotated_types import Ge, Lt
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, TypeAdapter, ValidationError

from fedapm.adapters import LoraSettings
from fedapm.adapters.settings import DEFAULT
from fedapm.algorithms import FedAPM, method
from fedapm.core.algorithm import Algorithm
from fedapm.core.ranges import check_ranges
from fedapm.core.solver import SGDConfig
from fedapm.core.split import Preset, SplitRule
from fedapm.data.own import ARROW, SQLITE
from fedapm.errors import FedapmError, closest, did_you_mean
from fedapm.privacy import PrivacySettings, private
from fedapm.runs import files
from fedapm.runs.config import present_value
from fedapm.runs.files import first_line
from fedapm.simulation.engines.auto import EngineName
from fedapm.simulation.kept_optimizer import kept
from fedapm.simulation.sampling import Sampling
from fedapm.simulation.stores import StoreKind
from fedapm.simulation.workers import PATIENCE
from fedapm.uploads import UploadSettings

logger = logging.getLogger(__name__)
T = TypeVar("T")

_READERS: dict[Any, TypeAdapter[Any]] = {}
"""Making one takes longer than reading a table with it."""
Tables = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class DataSettings:
    """Which data, and how it is dealt out."""

    name: str = "digits"
    """A data set that `fedapm list data` names; with `file` or `factory` what the data is called in reports."""
    file: str | None = None
    """Data of your own: an .npz, .csv, .parquet, .arrow or SQLite file with all samples, or a folder of one file a
    client. The path is relative to the experiment file."""
    lazy: bool = False
    """File: clients are read when they take part, and only those of a round are in memory. For folders and `.parquet`
    files; `.arrow`, `.feather` and SQLite files are always read so."""
    table: str | None = None
    """File: the table of a SQLite file, where it has several."""
    memory: PositiveInt = 256
    """File, where clients are read when they take part: MiB of their data that are kept in memory."""
    columns: dict[str, str | list[str]] = field(default_factory=dict)
    """File: the arrays or columns to take for `x`, `y`, `client`, `test`, `group`, `time` and `classes`, where they
    have other names."""
    class_names: tuple[str, ...] = ()
    """File: the names of the classes, in order; labels that are text are these names."""
    factory: str | None = None
    """Data of your own: a function that returns a `Federation`, as `module:function`, in a module beside the experiment
    file."""
    options: dict[str, Any] = field(default_factory=dict)
    """Factory: arguments of the function."""
    transform: str | None = None
    """What turns raw inputs into those of the network, as `module:name` beside the experiment file: a function, or a
    module of torch, which exported models contain. It goes with every model."""
    folder: str | None = None
    """Where `file`, `factory` and `transform` are looked for; the experiment file's folder, or the working folder for
    `--set`."""
    digest: str | None = None
    """File: its SHA-256, which a run records. A file that has changed since is refused."""
    root: str | None = None
    """Folder with the data set's published files, for those that are not bundled."""
    features: str | None = None
    """Features in place of the data set's own inputs: `statistics` for motionsense, spsw and ravdess,
    `efficientnet-lite0` for cifar10, `pooled` for crisismmd. They change the network and other defaults."""
    feature_dim: PositiveInt | None = None
    """The number of features that an encoder's are reduced to by principal components."""
    samples: PositiveInt | None = None
    """At most so many samples are used, drawn before they are assigned to clients; a larger number has all samples of a
    smaller one, whatever the seed."""
    partition: Literal["dirichlet", "natural", "quantity", "shards", "iid", "overlapping"] = "dirichlet"
    """How samples are assigned to clients. `dirichlet`: label skew. `natural`: each sample to its owner. `quantity`:
    size skew. `shards`: a few classes each. `iid`: evenly. `overlapping`: each client draws from all samples, so that
    one client's test sample may be another's training sample (not a partition)."""
    clients: int | None = None
    """m, the number of clients; if not given 20, or with the natural partition as many as there are."""
    concentration: float = 0.5
    """Dirichlet, overlapping: small means few classes a client. Quantity: small means a few clients have most."""
    minimum: int = 10
    """Dirichlet, quantity: fewest samples a client may get. Natural: who has fewer is left out."""
    shards: int = 2
    """Shards: how many each client gets."""
    test_fraction: float = 0.2
    """Share of each client's samples that is kept for testing."""
    train_limit: PositiveInt | None = None
    """At most so many training samples a client, drawn in the proportions of its classes; the rest is left aside."""
    test_limit: PositiveInt | None = None
    """At most so many test samples a client; the rest is left aside."""
    validation: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Share of each client's training samples that it is judged by instead of its test samples, which are then left
    aside; 0 judges by the test samples. For choosing settings."""
    seed: int = 0
    """Decides the partition, the test split, who lacks what and who is held out, apart from the run's own seed."""
    unseen: float | list[str | int] = 0.0
    """Clients that do not take part: their share, drawn by the seed, or their ids. At the end of a run each gets a
    personal part of its own and is scored before and after."""
    missing: dict[str, float | list[str | int]] = field(default_factory=dict)
    """Modalities that some clients lack: for each its share of clients, drawn by the seed, or the ids of clients."""
    image_encoder: str = "efficientnet-lite0"
    """What turns pictures into features, for data sets that need it: `efficientnet-lite0` or `mobilenet-v2`."""
    text_encoder: str = "minilm"
    """What turns text into features, for data sets that need it: `minilm` or `mobilebert`."""
    cache: str | None = None
    """Folder where features are kept; `fedapm-features` in the root if not given."""

    def __post_init__(self) -> None:
        check_ranges(self, "data")
        if self.file is not None and self.factory is not None:
            raise FedapmError("data.file and data.factory both say what the data is; leave one of them out.")
        if self.lazy and self.file is None:
            raise FedapmError("data.lazy is for data.file; a data.factory may return Federation.lazy(…).")
        if self.table is not None and Path(self.file or "").suffix.lower() not in SQLITE:
            raise FedapmError("data.table is for SQLite files; leave it out.")
        if self.one_by_one and (self.partition != "natural" or self.samples is not None or self.minimum > 1):
            raise FedapmError(
                "clients that are read when they take part have their own samples, all of them; leave out "
                "data.partition, data.samples and data.minimum."
            )
        if self.own and (self.features is not None or self.feature_dim is not None):
            raise FedapmError("data.features is for data sets that have a name; leave it out with data of your own.")

    @property
    def own(self) -> bool:
        """Whether the data is the user's own rather than a data set with a name."""
        return self.file is not None or self.factory is not None

    @property
    def one_by_one(self) -> bool:
        """Whether clients are read when they take part."""
        return self.lazy or Path(self.file or "").suffix.lower() in (*ARROW, *SQLITE)

    @property
    def path(self) -> Path:
        """The user's own file or folder of files."""
        return located(self.file or "", self.folder)

    @property
    def full_name(self) -> str:
        """The data set's name with that of its features, for reports."""
        return self.name if self.features is None else f"{self.name} ({self.features})"


@dataclass(frozen=True)
class ModelSettings:
    """Which network, and which of its parameters are personal."""

    name: str | None = None
    """A network that `fedapm list models` names; the data set's own if not given."""
    factory: str | None = None
    """A network of your own: a class or function that makes it, as `module:Class`, in a module beside the experiment
    file. It gets the options, and what it has parameters for of `classes`, `shapes` and `client`."""
    folder: str | None = None
    """Where `factory` is looked for; the experiment file's folder, or the working folder for `--set`."""
    preset: Preset | None = None
    """Which named stage is personal; the data set's own if neither this nor patterns are given. With adapters: `lora`
    shares A, while B and the head are personal; `ffa-lora` shares B, while A stays as it was drawn and the head is
    personal; `dual` has a shared adapter beside a personal one, and a personal head; `head` has no adapters and shares
    the head."""
    personal: tuple[str, ...] = ()
    """Patterns of personal parameters."""
    shared: tuple[str, ...] = ()
    """Patterns of shared parameters."""
    frozen: tuple[str, ...] = ()
    """Patterns of parameters that are neither trained nor sent."""
    split: Literal["auto"] | None = None
    """`auto` tries several splits on validation data and takes the best, in `fedapm run` and `fedapm tune --search`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the network."""
    lora: LoraSettings | None = None
    """Adapters: the network is frozen, and small matrices in it are trained, as in `lora = {rank = 8, alpha = 16}`; the
    keys are in a [table of their own](#modellora). `preset` or patterns say what of them is shared; `lora` if neither
    is given."""

    def __post_init__(self) -> None:
        if self.name is not None and self.factory is not None:
            raise FedapmError("model.name and model.factory both say what the network is; leave one of them out.")
        if self.split is not None and (self.preset or self.personal or self.shared):
            raise FedapmError(
                'model.split = "auto" searches what is personal; leave out model.preset, model.personal and '
                "model.shared."
            )

    def with_patterns(self, personal: Sequence[str] = (), shared: Sequence[str] = ()) -> ModelSettings:
        """The same network, split by these patterns; without any, everything is shared."""
        return replace(self, preset=None, split=None, personal=tuple(personal), shared=tuple(shared))

    @property
    def rule(self) -> SplitRule:
        """The rule that splits the network."""
        if self.split is not None:
            raise FedapmError(
                'what is personal is not said (model.split = "auto") and not searched here; find it with fedapm split, '
                "which prints the patterns to give as model.personal."
            )
        return SplitRule(self.adapter_preset or self.preset, self.personal, self.shared, self.frozen)

    @property
    def adapter_preset(self) -> Preset | None:
        """What is shared of a network with adapters; None where patterns say it, or there are no adapters."""
        if self.lora is None or self.personal or self.shared:
            return None
        return self.preset or DEFAULT


@dataclass(frozen=True)
class EngineSettings:
    """How long, with whom, and how often to look and to save."""

    rounds: PositiveInt = 50
    """T, the number of rounds."""
    seed: int = 0
    """Decides the start, the selection of clients and the order of batches."""
    fraction: float = 0.3
    """Share of clients in a round."""
    count: int | None = None
    """Number of clients in a round, instead of a share."""
    evaluate_every: PositiveInt = 1
    """Rounds between evaluations; the first and last round are always evaluated."""
    evaluate_clients: PositiveInt | None = None
    """How many clients are evaluated: the same in every round and for every method and seed. Of these are all scores,
    the closing phase, the saved models and the list of clients in a run's files. If not given all clients, or
    1,000 of those that are read when they take part."""
    evaluate_train: PositiveInt | Literal["all"] = 400
    """Training samples of a client that its training loss is measured on, at most: the same in every round. Test scores
    are always of all test samples."""
    checkpoint_every: NonNegativeInt = 10
    """Rounds between checkpoints; 0 saves only when the run stops."""
    save_models: bool = True
    """Whether every client's model is written when the run is complete."""
    stationarity: bool = False
    """Whether to record how far FedAPM is from a stationary point (a full gradient of every client)."""
    final_personal_epochs: NonNegativeInt = 3
    """Epochs of a closing phase: after the last round every client, whether it took part in it or not, continues its
    personal part at the final shared model, on its own data; 0 leaves it out. Methods without a personal part have
    none."""
    theory: bool = False
    """Whether to record in each round what the analysis speaks of: the Lyapunov function and the residuals of ADMM for
    FedAPM, and for all methods how much clients disagree (a loss and a full gradient of every client)."""
    weights: Literal["uniform", "samples"] = "uniform"
    """α_i: every client the same, or by its number of samples."""
    units: Literal["client", "paper"] = "client"
    """Whether hyperparameters are meant for m·α_i·f_i or for α_i·f_i."""
    device: str = "cpu"
    """Where to compute, such as "cpu" or "cuda"."""
    engine: EngineName = "auto"
    """How clients are run: one by one, side by side in one program, in worker processes, on a Ray cluster, or what
    suits the run."""
    workers: PositiveInt | None = None
    """Worker processes; as many as there are processors if not given. Where there are several runs, as many go side by
    side."""
    ray_address: str | None = None
    """The Ray cluster of the engine `ray`, such as `auto` or `ray://head:10001`; one on this machine is started if not
    given."""
    store: StoreKind = "auto"
    """Where clients' states are kept between rounds: in memory, on disk, or on disk if they are large."""
    stuck_after: PositiveFloat = PATIENCE
    """Seconds without any processor time after which a worker process counts as stuck and is replaced."""

    def __post_init__(self) -> None:
        check_ranges(self, "engine")


OPTIONAL = ("upload", "privacy")
"""Tables that are left out where nothing in them is set."""


@dataclass(frozen=True)
class Experiment:
    """Everything a run depends on."""

    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    algorithm: Algorithm = field(default_factory=FedAPM)
    solver: SGDConfig = field(default_factory=SGDConfig)
    engine: EngineSettings = field(default_factory=EngineSettings)
    upload: UploadSettings = field(default_factory=UploadSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)

    def __post_init__(self) -> None:
        _ = self.method  # refuses what the method cannot carry

    @property
    def method(self) -> Algorithm:
        """The method as it is run: with what is done to its messages."""
        sampling, seed = Sampling(self.engine.fraction, self.engine.count), self.engine.seed

        def draw(m: int, round: int) -> list[int]:
            return sampling.draw(m, seed, round)

        uniform = self.engine.weights == "uniform"
        fraction = self.engine.fraction if self.engine.count is None else None
        method = private(self.algorithm, self.privacy, self.upload, draw, seed, uniform=uniform, fraction=fraction)
        return kept(method, self.solver)

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any]) -> Experiment:
        """Check tables of settings, as a TOML file gives them."""
        known = [f.name for f in fields(cls)]
        for name, table in tables.items():
            if name not in known:
                raise FedapmError(f"unknown table [{name}]; {did_you_mean(name, known)}")
            if not isinstance(table, Mapping):
                raise FedapmError(f"{name!r} should be a table, as in [{name}].")
        algorithm = dict(tables.get("algorithm", {}))
        kind = method(str(algorithm.pop("name", FedAPM.name)))
        return cls(
            validated(DataSettings, "data", tables.get("data", {})),
            validated(ModelSettings, "model", tables.get("model", {})),
            validated(kind, "algorithm", algorithm),
            validated(SGDConfig, "solver", tables.get("solver", {})),
            validated(EngineSettings, "engine", renamed_values("engine", tables.get("engine", {}))),
            validated(UploadSettings, "upload", tables.get("upload", {})),
            validated(PrivacySettings, "privacy", tables.get("privacy", {})),
        )

    def tables(self) -> Tables:
        """The settings as tables, with every default filled in and nothing that is not set."""
        tables = {f.name: plain(asdict(getattr(self, f.name))) for f in fields(self)}
        tables["algorithm"] = {"name": self.algorithm.name} | tables["algorithm"]
        return {name: table for name, table in tables.items() if table or name not in OPTIONAL}

    def toml(self) -> str:
        """The settings as a TOML file."""
        return tomli_w.dumps(self.tables())


_renamed_once: set[str] = set()


def renamed_values(table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A table with the present names of values that were renamed; each old one is mentioned once."""
    renamed = dict(values)
    for key, value in values.items():
        now = present_value(f"{table}.{key}", value)
        if now != value:
            renamed[key] = now
            if value not in _renamed_once:
                _renamed_once.add(value)
                logger.warning("%s.%s = %r is called %r now; the old name still works.", table, key, value, now)
    return renamed


def read_toml(path: Path) -> Tables:
    """The tables of an experiment file; its own files and modules are looked for beside it."""
    if path.is_dir():
        raise FedapmError(f"{path} is a folder; give the experiment's TOML file.")
    return in_folder(files.read_toml(path), path.parent)


def merged(*layers: Mapping[str, Any]) -> Tables:
    """Tables laid over each other; later ones win.

    A change of method leaves the old one's settings behind, and another way to say what is personal the old way.
    """
    result: Tables = {}
    for layer in layers:
        for name, table in layer.items():
            below = result.get(name, {})
            if not isinstance(table, Mapping) or not isinstance(below, Mapping):
                result[name] = table
                continue
            if name == "algorithm" and "name" in table and below.get("name", FedAPM.name) != table["name"]:
                below = {}
            below = {key: value for key, value in below.items() if not _replaced(name, key, table)}
            both = {
                k: {**below[k], **v}
                for k, v in table.items()
                if isinstance(v, Mapping) and isinstance(below.get(k), Mapping)
            }
            result[name] = {**below, **table, **both}
    return result


OWN_KEYS = ("file", "factory")
"""Settings that stand for data or a network of the user's own, in place of a name."""


def _replaced(name: str, key: str, table: Mapping[str, Any]) -> bool:
    """Whether a setting below is of no use beside those of a later table."""
    if name == "data":
        own = any(way in table for way in OWN_KEYS)
        what = {
            "name",
            "file",
            "factory",
            "digest",
            "lazy",
            "table",
            "columns",
            "class_names",
            "options",
            "transform",
            "folder",
        }
        return key in what and key not in table and (own or "name" in table)
    if name != "model":
        return False
    if ("factory" in table or "name" in table) and key in {"name", "factory", "folder"} and key not in table:
        return True
    ways = ({"preset"}, {"personal", "shared"}, {"split"})
    return any(key in way for way in ways) and any(way & table.keys() for way in ways if key not in way)


def in_folder(tables: Mapping[str, Any], folder: Path) -> Tables:
    """Settings whose own files and modules are looked for in a folder, unless they name another one.

    Args:
        tables: Settings as an experiment file or an option gives them.
        folder: The folder of that file, or the working folder.
    """
    result = dict(tables)
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            continue
        if isinstance(table.get("model"), Mapping):
            # a method's own network
            result[name] = in_folder(table, folder)
        elif name in ("data", "model") and any(table.get(key) is not None for key in (*OWN_KEYS, "transform")):
            result[name] = {**table, "folder": str(located(str(table.get("folder", "")), str(folder)).resolve())}
    return result


def located(path: str, folder: str | None) -> Path:
    """A path of the user's, relative to a folder."""
    return Path(folder or "") / Path(path).expanduser()


def parse_assignment(text: str) -> Tables:
    """A setting given as ``table.key=value``; the value is TOML, or else a plain string."""
    path, equals, value = text.partition("=")
    table, dot, key = path.strip().partition(".")
    if not (equals and dot and table and key):
        raise FedapmError(f"--set takes table.key=value, such as algorithm.rho=0.1, not {text!r}.")
    try:
        parsed = tomllib.loads(f"value = {value.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    except RecursionError:
        raise FedapmError(f"--set {path.strip()}: the value is nested too deeply.") from None
    except ValueError as error:
        raise FedapmError(f"--set {path.strip()}: {first_line(error)}.") from None
    *outer, last = key.split(".")
    inner: Any = {last: parsed}
    for name in reversed(outer):
        inner = {name: inner}
    return {table: inner}


def validated(kind: type[T], table: str, values: Mapping[str, Any]) -> T:
    """Settings of one table as their dataclass, or one line that says which key is wrong and why."""
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            of = f" of {kind.name}" if issubclass(kind, Algorithm) else ""
            if (elsewhere := _table_of(name, table)) is not None:
                raise FedapmError(f"unknown setting '{table}.{name}'{of}; did you mean '{elsewhere}.{name}'?")
            near = closest(name, known)
            hint = " or ".join(f"'{n}'" for n in near) if near else "one of " + ", ".join(known or ["(nothing)"])
            raise FedapmError(f"unknown setting '{table}.{name}'{of}; did you mean {hint}?")
    try:
        return _reader(kind).validate_python(dict(values))
    except ValidationError as error:
        first, message = _explained(error)
        if first["type"] == "value_error":
            raise FedapmError(message.removeprefix("Value error, ")) from None
        parts = [part for part in first["loc"] if "-" not in str(part) and "[" not in str(part)]
        where = ".".join([table, *map(str, parts)])
        raise FedapmError(f"{where} = {first['input']!r}: {message[0].lower()}{message[1:]}.") from None


def _table_of(key: str, table: str) -> str | None:
    """The other table that has a setting of that name, looked for where a setting is not known."""
    kinds = {
        "data": DataSettings,
        "model": ModelSettings,
        "solver": SGDConfig,
        "engine": EngineSettings,
        "upload": UploadSettings,
        "privacy": PrivacySettings,
    }
    if table not in ("algorithm", *kinds):
        return None
    return next((name for name, kind in kinds.items() if name != table and key in (f.name for f in fields(kind))), None)


def _explained(error: ValidationError) -> tuple[Any, str]:
    """The error to tell of, and in which words; a value that may be a number or a word fails as both."""
    errors = error.errors()
    first = errors[0]
    words = [e for e in errors if e["type"] == "literal_error" and e["loc"][:1] == first["loc"][:1]]
    message = str(first["msg"]).removeprefix("Input ")
    if words and isinstance(first["input"], str) and first["type"] != "literal_error":
        message = f"{str(words[0]['msg']).removeprefix('Input ')}, or a number"
    return first, message


def _reader(kind: type[T]) -> TypeAdapter[T]:
    if kind not in _READERS:
        _READERS[kind] = TypeAdapter(kind)
    return _READERS[kind]


def plain(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table as TOML can hold it: without what is not set, and with lists for tuples."""
    return {
        k: plain(v) if isinstance(v, Mapping) else list(v) if isinstance(v, tuple) else v
        for k, v in table.items()
        if v is not None
    }
