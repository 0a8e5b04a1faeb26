"""Result: what comes out of a run: its history and every client's model."""

from __future__ import annotations

import itertools
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
import torch
from torch import Tensor, nn

from fedapm.core.network import Loss
from fedapm.core.record import RoundRecord
from fedapm.core.transform import Transform
from fedapm.data.arrays import Arrays
from fedapm.data.clients import client_position
from fedapm.data.federation import Federation
from fedapm.errors import FedapmError, did_you_mean
from fedapm.experiments.inference import infer
from fedapm.experiments.newcomer import TrainedRun
from fedapm.exports import Description, find_format, write_model
from fedapm.privacy import STEPS, PrivacySettings, SiteSpending
from fedapm.runs.files import write_atomic, write_json, write_tensors
from fedapm.runs.folder import before_closing, clear_beginning, locked, refuse_to_overwrite
from fedapm.runs.layout import CHECKPOINTS, CLASSES, CONFIG, MODELS, PRIVACY, ROUNDS, TRANSFORM, UNSEEN, model_file
from fedapm.runs.records import JsonLines, chained, write_info
from fedapm.simulation.engines.base import LocalEngine
from fedapm.simulation.engines.confusion import class_counts
from fedapm.simulation.engines.sequential import load_model
from fedapm.simulation.spec import RunSpec, Tables
from fedapm.simulation.state import RunState
from fedapm.theory.course import course
from fedapm.theory.findings import Findings
from fedapm.theory.study import study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class BaseResult(ABC):
    """What a run gives, whether it has just ended or was read from its folder."""

    records: list[RoundRecord]
    """The rounds, as in rounds.jsonl."""

    @property
    @abstractmethod
    def settings(self) -> Tables:
        """The settings of the run, as in config.toml."""

    @property
    @abstractmethod
    def clients(self) -> Sequence[str]:
        """The ids of the clients, in order."""

    @property
    @abstractmethod
    def evaluated(self) -> list[str]:
        """The ids of the clients that scores are of: all of them, or as many as ``engine.evaluate_clients`` says."""

    @property
    @abstractmethod
    def views(self) -> list[str]:
        """The names of the models that the method has for each client."""

    @abstractmethod
    def trained_run(self, loss: Loss | None = None) -> TrainedRun:
        """What new clients need of this run.

        Args:
            loss: The run's loss, where it is one of the user's own and the run was read from a folder.
        """

    @property
    @abstractmethod
    def classes(self) -> dict[str, Any]:
        """The names of the classes and the labels they had, as :meth:`fedapm.Federation.from_clients` takes them."""

    @property
    @abstractmethod
    def transform(self) -> Transform | None:
        """What turns raw inputs into those of the networks; None where they are the same."""

    @abstractmethod
    def _info(self) -> dict[str, Any]:
        """What run.json says."""

    @abstractmethod
    def _unseen(self) -> list[dict[str, Any]]:
        """The clients that did not take part, as in unseen.json."""

    @abstractmethod
    def model_tensors(self, position: int, view: str) -> dict[str, Tensor]:
        """A client's model on the CPU."""

    @abstractmethod
    def _module(self, position: int) -> nn.Module:
        """A client's network as a module of its own, on the CPU."""

    @abstractmethod
    def _title(self) -> str:
        """The method and the data."""

    @property
    def history(self) -> pd.DataFrame:
        """One row a round: client means of each score, the worst tenth, drift and bytes."""
        import pandas as pd

        if not self.records:
            raise FedapmError(f"{self._title()} has no finished round.")
        return pd.DataFrame([_row(record) for record in self.records]).set_index("round")

    @property
    def per_client(self) -> pd.DataFrame:
        """The last evaluation, one row a client that was evaluated."""
        import pandas as pd

        evaluations = self._last_evaluations()
        if not evaluations:
            raise FedapmError(f"{self._title()} has no evaluated round.")
        frames = []
        for view, scores in evaluations.items():
            frame = pd.DataFrame(scores["per_client"], index=self.evaluated)
            frames.append(frame if len(evaluations) == 1 else frame.add_prefix(f"{view}."))
        return pd.concat(frames, axis=1).rename_axis("client")

    @property
    def unseen(self) -> pd.DataFrame:
        """The clients that were held out, one row a client: their scores before and after personalising."""
        import pandas as pd

        rows = self._unseen()
        if not rows:
            raise FedapmError(f"{self._title()} held no clients out; set data.unseen, or train(..., unseen=0.2).")
        columns = [
            {name: row[name] for name in ("id", "train", "start", "epochs")}
            | {f"{when}.{name}": score for when in ("before", "after") for name, score in row[when].items()}
            for row in rows
        ]
        return pd.DataFrame(columns).rename(columns={"id": "client"}).set_index("client")

    def state_dict(self, client: int | str, view: str | None = None) -> dict[str, Tensor]:
        """A client's whole model as a plain state dict: shared, personal and frozen parameters and buffers.

        Of a network with adapters, these and the head: the frozen base is everybody's.

        Args:
            client: The client's id, or its position where no id equals it.
            view: Which model, where the method has several (``"P"``, ``"G"``); the first if not given.

        Returns:
            A copy on the CPU.
        """
        return self.model_tensors(self._position(client), self._view(view))

    def model(self, client: int | str, view: str | None = None) -> nn.Module:
        """A client's model as a plain module of its own, on the CPU and in evaluation mode.

        Args:
            client: The client's id, or its position where no id equals it.
            view: Which model, where the method has several; the first if not given.
        """
        state = self.state_dict(client, view)
        position = self._position(client)
        module = self._module(position)
        # a frozen base is shared with other networks, and training it here would change them
        base: frozenset[str] = getattr(module, "base_parameters", frozenset())
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name not in base)
        _check_same(module.state_dict(), state, self.clients[position])
        module.load_state_dict(state)
        return module.eval()

    def predict(self, client: int | str, x: Arrays, view: str | None = None) -> Tensor:
        """What a client's model gives for some samples.

        Args:
            client: The client's id, or its position where no id equals it.
            x: An array or tensor with one row a sample, or a tuple of them for a network with several inputs. Where the
                federation has a transform, raw inputs.
            view: Which model, where the method has several; the first if not given.

        Returns:
            The network's outputs on the CPU, one row a sample; ``.argmax(1)`` gives classes.
        """
        return infer(self.model(client, view), x, client, self.transform, self._input_types())

    def predict_proba(self, client: int | str, x: Arrays, view: str | None = None) -> Tensor:
        """The probability of each class for some samples.

        Args:
            client: The client's id, or its position where no id equals it.
            x: As in :meth:`predict`.
            view: Which model, where the method has several; the first if not given.

        Returns:
            One row a sample, one column a class. A network of one output for two classes is read as the logit of the
            second.
        """
        outputs = self.predict(client, x, view)
        if not self._classified():
            raise FedapmError(f"{self._title()} learnt quantities, which have no probabilities; use predict.")
        if outputs.dim() == 1 or outputs.shape[1] == 1:
            second = outputs.reshape(len(outputs), -1)[:, 0].sigmoid()
            return torch.stack([1 - second, second], 1)
        return outputs.softmax(1)

    def predict_labels(self, client: int | str, x: Arrays, view: str | None = None) -> list[Any]:
        """The class of each sample, as the labels that were given for training.

        Args:
            client: The client's id, or its position where no id equals it.
            x: As in :meth:`predict`.
            view: Which model, where the method has several; the first if not given.
        """
        found = self.predict_proba(client, x, view).argmax(1).tolist()
        values = self.classes["labels"] or self.classes["class_names"]
        return [values[k] for k in found] if values else found

    def export(self, client: int | str, path: str | Path, format: str | None = None, view: str | None = None) -> Path:
        """Write a client's model to one file, with all that is needed to use it.

        Inputs, class names, scores and the transform go with it; [read_about][fedapm.read_about] reads them back. ONNX
        and TorchScript files contain the network, and are compared with it before they are written.

        Args:
            client: The client's id, or its position where no id equals it.
            path: The file; it must not exist.
            format: ``"safetensors"``, ``"onnx"`` or ``"torchscript"``; by the file's ending if not given. For networks
                with adapters also ``"peft"``, a folder, and ``"merged"``, a state dict without adapters.
            view: Which model, where the method has several; the first if not given.

        Returns:
            The file.

        Raises:
            FedapmError: The ending does not fit, the network cannot be exported, or the file exists.
        """
        self.write_export(client, Path(path), format, view)
        return Path(path)

    def write_export(self, client: int | str, path: Path, format: str | None = None, view: str | None = None) -> str:
        """As :meth:`export`; what was written, in a few words."""
        form = find_format(path, format)
        if str(client) not in self.clients and str(client) in [row["id"] for row in self._unseen()]:
            raise FedapmError(f"client {client} took no part, so it has no model; personalize gives it one.")
        position = self._position(client)
        found, name = self._description(position, self._view(view)), self.clients[position]
        return write_model(path, form, found, lambda: self.state_dict(name, view), lambda: self.model(name, view))

    def _description(self, position: int, view: str) -> Description:
        scores = self._last_evaluations().get(view, {}).get("per_client", {})
        client = self.clients[position]
        row = self.evaluated.index(client) if client in self.evaluated else None
        return Description(
            client,
            view,
            self.records[-1]["round"] if self.records else 0,
            self._info(),
            {name: values[row] for name, values in scores.items()} if row is not None else {},
            "validation" if self.settings.get("data", {}).get("validation") else "test",
            self.transform,
        )

    def _position(self, client: int | str) -> int:
        return client_position(self.clients, client)

    @abstractmethod
    def _input_types(self) -> list[str]:
        """The types of the inputs that the networks were trained with; empty where that is not known."""

    @abstractmethod
    def _classified(self) -> bool:
        """Whether classes were learnt."""

    def __repr__(self) -> str:
        done = self.records[-1]["round"] if self.records else 0
        text = f"{self._title()}, {len(self.clients)} clients, {done} rounds"
        for scores in itertools.islice(self._last_evaluations().values(), 1):
            name = next((name for name in ("accuracy", "test_loss", "train_loss") if name in scores), None)
            text += f", {name.replace('_', ' ')} {scores[name]['mean']:.4g}" if name is not None else ""
        return f"{type(self).__name__}({text})"

    def _repr_html_(self) -> str:
        """A table for notebooks: the last round's client means, and below them the first few clients."""
        from fedapm.experiments.pictures import result_html

        return result_html(repr(self), self.history, self.per_client if self._last_evaluations() else None)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw how the run went: loss, score and drift over rounds, and which clients gained.

        Args:
            path: A file to write the picture to, as .png, .svg or .pdf; none if None.

        Returns:
            The figure, which a notebook shows.
        """
        from fedapm.experiments.pictures import draw_result

        figure = draw_result(self._title(), self.history, self.records, self.evaluated)
        if path is not None:
            figure.savefig(Path(path))
        return figure

    def _last_evaluations(self) -> dict[str, Any]:
        return next((record["evaluations"] for record in reversed(self.records) if record["evaluations"]), {})

    def _view(self, view: str | None) -> str:
        if view is None:
            return self.views[0]
        if view not in self.views:
            raise FedapmError(f"there is no model {view!r}; {did_you_mean(view, self.views)}")
        return view


@dataclass(repr=False)
class Result(BaseResult):
    """A finished run: its history and every client's model."""

    spec: RunSpec
    state: RunState
    records: list[RoundRecord]
    engine: LocalEngine
    unseen_clients: list[dict[str, Any]] = field(default_factory=list)
    """The clients that did not take part, as in unseen.json."""

    @property
    def federation(self) -> Federation:
        """The clients it was trained on."""
        return self.spec.problem.federation

    @property
    def settings(self) -> Tables:
        """The settings of the run, as in config.toml."""
        return self.spec.settings

    @property
    def clients(self) -> Sequence[str]:
        """The ids of the clients, in order."""
        return self.federation.ids

    @property
    def evaluated(self) -> list[str]:
        """The ids of the clients that scores are of."""
        ids = self.federation.ids
        return [ids[position] for position in self.spec.problem.evaluated]

    @property
    def views(self) -> list[str]:
        """The names of the models that the method has for each client."""
        return list(self.spec.algorithm.views)

    @property
    def classes(self) -> dict[str, Any]:
        """The names of the classes and the labels they had, as :meth:`fedapm.Federation.from_clients` takes them."""
        return {"class_names": self.federation.class_names, "labels": self.federation.labels, "numbered": True}

    @property
    def transform(self) -> Transform | None:
        """What turns raw inputs into those of the networks; None where they are the same."""
        return self.federation.transform

    def _info(self) -> dict[str, Any]:
        return self.spec.info()

    def _input_types(self) -> list[str]:
        return [str(t.dtype).removeprefix("torch.") for t in self.federation[0].train.inputs]

    def _classified(self) -> bool:
        return self.federation[0].train.classified

    def model_tensors(self, position: int, view: str) -> dict[str, Tensor]:
        """A client's model, by its position."""
        problem, algorithm = self.spec.problem, self.spec.algorithm
        broadcast = algorithm.broadcast(self.state.server)
        load_model(problem, algorithm, position, self.engine.client_state(position), broadcast, view)
        module = problem.network(position).module
        return {n: t.detach().cpu().clone() for n, t in module.state_dict().items()}

    def _module(self, position: int) -> nn.Module:
        return deepcopy(self.spec.problem.network(position).module).cpu()

    def trained_run(self, loss: Loss | None = None) -> TrainedRun:
        """What new clients need of this run; it knows its loss."""
        del loss
        return trained_run(self.spec, self.state, self.engine)

    def _unseen(self) -> list[dict[str, Any]]:
        return self.unseen_clients

    def _title(self) -> str:
        return f"{self.spec.algorithm.label} on {self.federation.name}"

    def save(self, folder: str | Path) -> Path:
        """Write a run folder, as if the run had been given it from the start.

        Args:
            folder: A folder that does not exist yet or is empty.

        Returns:
            The folder; [load][fedapm.load] reads it.
        """
        path = Path(folder)
        with locked(path):
            refuse_to_overwrite(path)
            clear_beginning(path)
            info = self.spec.identity()
            write_info(path, info | {"status": "running"})
            write_atomic(path / CONFIG, tomli_w.dumps(self.spec.settings))
            write_transform(path, self.transform)
            rounds = JsonLines(path / ROUNDS)
            for record in self.records:
                rounds.append(record)
            digest = chained("", (before_closing(dict(record)) for record in self.records))
            self.engine.save(path / CHECKPOINTS, replace(self.state, records=digest), self.records[-1])
            write_models(path, self)
            write_classes(path, self)
            if self.unseen_clients:
                write_unseen(path, self.unseen_clients)
            write_info(path, info | self.state.info("complete"))
        return path

    def theory(self, clients: int = 5, samples: int = 1000) -> Findings:
        """The quantities of the analysis where the run ended: curvature, bounds on ρ and σ, disagreement, rates.

        They are about the states after the last round, before the closing phase.

        Args:
            clients: How many clients' curvature is estimated.
            samples: At most so many of a client's samples are used for that; 0 uses all.

        Returns:
            The numbers, and sentences that say what they mean.
        """
        spec, state = self.spec, self.state
        if len(spec.problem.evaluated) < len(spec.problem):
            raise FedapmError(
                f"{len(spec.problem.evaluated):,} of {len(spec.problem):,} clients are evaluated; this takes all."
            )
        found = study(
            spec.problem,
            spec.algorithm,
            self.engine.store.get,
            state.server,
            state.round,
            clients=clients,
            samples=samples,
        )
        return Findings(found, course(self.records))

    def report(self, path: str | Path) -> Path:
        """Write the report as one HTML file."""
        from fedapm.report import write_report

        with tempfile.TemporaryDirectory() as folder:
            return write_report(self.save(Path(folder) / "run"), Path(path))


def trained_run(spec: RunSpec, state: RunState, engine: LocalEngine) -> TrainedRun:
    """What new clients need of a run that has just ended."""
    problem = spec.problem
    return TrainedRun(
        spec.algorithm.plain,
        state.server,
        problem.seed,
        state.round,
        problem.with_clients,
        lambda: (client_state for _, client_state in engine.store.touched()),
        frozenset(problem.federation.seen_classes),
        spec.info,
        problem.federation.transform,
    )


def write_unseen(folder: Path, clients: list[dict[str, Any]]) -> None:
    """The scores of the clients that did not take part."""
    write_json(folder / UNSEEN, {"clients": clients})


def write_transform(folder: Path, transform: Transform | None) -> None:
    """What turns raw inputs into those of the network, where it is a module; run.json has the name of a function."""
    content = transform.content() if transform is not None else None
    if content is not None:
        write_atomic(folder / TRANSFORM, content)


def write_spending(folder: Path, result: Result) -> None:
    """What each client has spent, where single samples are protected."""
    spec, engine = result.spec, result.engine
    if spec.problem.protection is None:
        return
    settings = PrivacySettings(**spec.settings["privacy"])
    clients = [spec.problem.federation[k] for k in spec.problem.evaluated]
    sizes = {client.id: len(client.train) for client in clients}
    steps = [engine.client_state(k).state.numbers[STEPS] for k in spec.problem.evaluated]
    rows = SiteSpending(settings, spec.problem.solver.batch_size).rows(sizes, steps)
    write_json(folder / PRIVACY, {"round": result.state.round, "clients": rows})


def write_classes(folder: Path, result: Result) -> None:
    """Which classes are taken for which, where classes were learnt."""
    counts = class_counts(result.engine, result.state.server, result.state.round)
    if counts is not None:
        write_json(folder / CLASSES, counts)


def write_models(folder: Path, result: Result) -> None:
    """The models of the evaluated clients, each as a safetensors state dict."""
    views = result.views
    for row, (client, position) in enumerate(zip(result.evaluated, result.spec.problem.evaluated, strict=True)):
        for view in views:
            path = folder / MODELS / model_file(row, view if len(views) > 1 else "")
            about = {"client": client, "method": result.spec.algorithm.name, "round": result.state.round}
            write_tensors(path, result.model_tensors(position, view), about)


def _check_same(expected: Mapping[str, Tensor], saved: Mapping[str, Tensor], client: str) -> None:
    """Refuse a state dict that does not fit a network."""
    again = "give the network that the run was trained with"
    for name in [*expected, *saved]:
        if name not in saved:
            raise FedapmError(f"the network has {name!r}, which the saved model of client {client} lacks; {again}.")
        if name not in expected:
            raise FedapmError(f"the saved model of client {client} has {name!r}, which the network lacks; {again}.")
        if expected[name].shape != saved[name].shape:
            raise FedapmError(
                f"{name!r} has shape {tuple(expected[name].shape)} in the network and {tuple(saved[name].shape)} in "
                f"the saved model of client {client}; {again}."
            )


def _row(record: RoundRecord) -> dict[str, Any]:
    row: dict[str, Any] = {"round": record["round"]}
    evaluations = record["evaluations"] or {}
    for view, found in evaluations.items():
        prefix = "" if len(evaluations) == 1 else f"{view}."
        for name, summary in found.items():
            if name != "per_client":
                row[prefix + name] = summary.get("mean")
        if "accuracy" in found:
            row[f"{prefix}accuracy_worst10"] = found["accuracy"].get("worst10")
    row["drift"] = record["drift"]
    row |= {k: record[k] for k in ("bytes_up", "bytes_down", "total_bytes_up", "total_bytes_down")}
    row |= {f"local.{k}": v for k, v in (record["local"] or {}).items()}
    row |= {f"server.{k}": v for k, v in record.get("server", {}).items()}
    row |= {f"stationarity.{k}": v for k, v in (record.get("stationarity") or {}).items()}
    row |= {f"theory.{k}": v for k, v in record.get("theory", {}).items()}
    row["selected"], row["dropped"] = len(record["selected"]), len(record["dropped"])
    return row
