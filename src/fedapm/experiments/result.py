"""Result: what comes out of a run: its history and every client's model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
from torch import Tensor, nn

from fedapm.data.federation import Federation
from fedapm.runs.files import write_atomic, write_tensors
from fedapm.runs.folder import refuse_to_overwrite
from fedapm.runs.layout import CHECKPOINTS, CONFIG, MODELS, ROUNDS, model_file
from fedapm.runs.records import JsonLines, write_info
from fedapm.simulation import checkpoint
from fedapm.simulation.engines.sequential import load_model
from fedapm.simulation.loop import Progress, Record
from fedapm.simulation.spec import RunSpec

if TYPE_CHECKING:
    import pandas as pd

Warn = Callable[[str], None]


@dataclass
class Result:
    """A finished run: its history and every client's model."""

    plan: RunSpec
    progress: Progress
    records: list[Record]
    _modules: dict[int, nn.Module] = field(default_factory=dict, repr=False)

    @property
    def federation(self) -> Federation:
        """The clients it was trained on."""
        return self.plan.problem.federation

    @property
    def history(self) -> pd.DataFrame:
        """One row a round: client means of each score, the worst tenth, drift and bytes."""
        import pandas as pd

        return pd.DataFrame([_row(record) for record in self.records]).set_index("round")

    @property
    def per_client(self) -> pd.DataFrame:
        """The last evaluation, one row a client."""
        import pandas as pd

        last = next(r for r in reversed(self.records) if r["evaluations"])
        frames = []
        for view, found in last["evaluations"].items():
            frame = pd.DataFrame(found["per_client"], index=[c.id for c in self.federation.clients])
            frames.append(frame if len(last["evaluations"]) == 1 else frame.add_prefix(f"{view}."))
        return pd.concat(frames, axis=1).rename_axis("client")

    def state_dict(self, client: int | str, view: str | None = None) -> dict[str, Tensor]:
        """A client's whole model as a plain state dict: shared, personal and frozen parameters and buffers."""
        return self.state_at(self.federation.position(client), view)

    def state_at(self, position: int, view: str | None = None) -> dict[str, Tensor]:
        """The state dict of the client at a position, whatever its id."""
        problem, algorithm = self.plan.problem, self.plan.algorithm
        down = algorithm.broadcast(self.progress.server)
        kept = self.progress.store.get(position)
        load_model(problem, algorithm, position, down, kept, view or algorithm.views[0])
        module = problem.network(position).module
        return {n: t.detach().cpu().clone() for n, t in module.state_dict().items()}

    def model(self, client: int | str, view: str | None = None) -> nn.Module:
        """A client's model as a plain module of its own, ready for prediction."""
        state = self.state_dict(client, view)
        module = deepcopy(self.plan.problem.network(self.federation.position(client)).module).cpu()
        for parameter in module.parameters():
            parameter.requires_grad_(True)
        module.load_state_dict(state)
        return module.eval()

    def save(self, folder: str | Path) -> Path:
        """Write a run folder, as if the run had been given it from the start."""
        path = Path(folder)
        refuse_to_overwrite(path)
        write_atomic(path / CONFIG, tomli_w.dumps(self.plan.settings))
        rounds = JsonLines(path / ROUNDS)
        for record in self.records:
            rounds.append(record)
        checkpoint.save(path / CHECKPOINTS, self.progress)
        write_models(path, self)
        write_info(path, self.plan.info() | self.progress.info("complete"))
        return path

    def report(self, path: str | Path) -> Path:
        """Write the report as one HTML file."""
        from fedapm.report import write_report

        with tempfile.TemporaryDirectory() as folder:
            return write_report(self.save(Path(folder) / "run"), Path(path))


def write_models(folder: Path, result: Result) -> None:
    """Every client's model as a safetensors state dict."""
    views = result.plan.algorithm.views
    for position, client in enumerate(result.federation.clients):
        for view in views:
            path = folder / MODELS / model_file(position, view if len(views) > 1 else "")
            about = {"client": client.id, "method": result.plan.algorithm.name, "round": result.progress.round}
            write_tensors(path, result.state_at(position, view), about)


def _row(record: Record) -> dict[str, Any]:
    row: dict[str, Any] = {"round": record["round"]}
    evaluations = record["evaluations"] or {}
    for view, found in evaluations.items():
        prefix = "" if len(evaluations) == 1 else f"{view}."
        for name, summary in found.items():
            if name != "per_client":
                row[prefix + name] = summary["mean"]
        if "accuracy" in found:
            row[f"{prefix}accuracy_worst10"] = found["accuracy"]["worst10"]
    row["drift"] = record["drift"]
    row |= {k: record[k] for k in ("bytes_up", "bytes_down", "total_bytes_up", "total_bytes_down")}
    row |= {f"local.{k}": v for k, v in (record["local"] or {}).items()}
    row |= {f"stationarity.{k}": v for k, v in (record.get("stationarity") or {}).items()}
    row["selected"], row["dropped"] = len(record["selected"]), len(record["dropped"])
    return row
