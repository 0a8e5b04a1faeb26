"""fedapm.compare: several methods and seeds on the same clients, with a network of one's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedapm.api.setup import SIX, removed_with, set_up, split_table, temporary_folder
from fedapm.api.train import with_builtin_metrics
from fedapm.core.metrics import Metric
from fedapm.core.network import Loss
from fedapm.core.split import Preset
from fedapm.data import Federation
from fedapm.errors import FedapmError
from fedapm.experiments import compare as comparison
from fedapm.experiments.load import LoadedResult
from fedapm.runs.records import find_runs
from fedapm.simulation.problem import Model

if TYPE_CHECKING:
    import pandas as pd

    from fedapm.report import SummaryRow
    from fedapm.tuning import Tuned


class Comparison:
    """The runs of several methods and seeds, and the tables over them.

    Args:
        folder: The folder of the comparison.
        model: The network, where it is one of the user's own.
    """

    def __init__(self, folder: str | Path, model: Model | None = None) -> None:
        self.folder, self._model = Path(folder), model
        self._runs = find_runs(self.folder)

    @property
    def results(self) -> dict[tuple[str, int], LoadedResult]:
        """Every run by its method and seed, with the models of its clients."""
        return {(str(run.info["method"]), run.seed): LoadedResult(run.path, self._model) for run in self._runs}

    @property
    def leaderboard(self) -> pd.DataFrame:
        """One row a method, the best first: means over clients and seeds, and standard deviations over seeds.

        A method that is significantly better than every other has True in the column ``best``.
        """
        import pandas as pd

        from fedapm.report import filled_columns, main_column

        rows = self._rows()
        main, columns = main_column(rows), filled_columns(rows)
        table = []
        for row in rows:
            cells: dict[str, Any] = {"method": row.label, "seeds": len(row.seeds)}
            for column in columns:
                cell = row.cell(column)
                cells |= {column.field: cell.mean, f"{column.field}_std": cell.std}
            table.append(cells | {"best": row.cell(main).best})
        frame = pd.DataFrame(table).set_index("method").dropna(axis=1, how="all")
        return frame.sort_values(main.field, ascending="loss" in main.field, kind="stable")

    @property
    def per_client(self) -> pd.DataFrame:
        """The last evaluation of every run, one row a method, seed and client."""
        import pandas as pd

        parts = [
            result.per_client.reset_index().assign(method=name, seed=seed)
            for (name, seed), result in self.results.items()
        ]
        return pd.concat(parts).set_index(["method", "seed", "client"])

    @property
    def history(self) -> pd.DataFrame:
        """Every round of every run, one row a method, seed and round."""
        import pandas as pd

        parts = [
            result.history.reset_index().assign(method=name, seed=seed) for (name, seed), result in self.results.items()
        ]
        return pd.concat(parts).set_index(["method", "seed", "round"])

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report as one HTML file; in the comparison's folder if no path is given."""
        from fedapm.report import write_report

        return write_report(self.folder, Path(path) if path is not None else None)

    def __repr__(self) -> str:
        from fedapm.report import main_column

        main = main_column(self._rows()).field
        scores = ", ".join(f"{name} {row[main]:.4g}" for name, row in self.leaderboard.head(6).iterrows())
        return f"Comparison({main}: {scores})"

    def _repr_html_(self) -> str:
        return str(self.leaderboard.to_html(float_format=lambda value: f"{value:.4g}"))

    def _rows(self) -> list[SummaryRow]:
        from fedapm.report import summary_table

        return summary_table(self._runs)


def compare(
    data: Federation | str,
    model: Model | None = None,
    methods: Sequence[str] = SIX,
    seeds: Sequence[int] = (0, 1, 2),
    *,
    personal: Sequence[str] | Literal["auto"] | None = None,
    shared: Sequence[str] = (),
    frozen: Sequence[str] = (),
    preset: Preset | None = None,
    loss: Loss | None = None,
    metrics: Sequence[Metric | Callable[..., Any]] = (),
    validation: float | None = None,
    unseen: float | Sequence[int | str] | None = None,
    tuned: Tuned | str | Path | None = None,
    out: str | Path | None = None,
    progress: bool = False,
    **settings: Any,
) -> Comparison:
    """Train with several methods and seeds on the same clients.

    Args:
        data: A federation, or the name of a data set.
        model: The network, as in [train][fedapm.train].
        methods: The methods' names.
        seeds: The seeds; every method is run with each.
        personal: Patterns of personal parameters, as in [train][fedapm.train]. With data of your own and nothing said,
            the split is searched once and is the same for all methods.
        shared: Patterns of shared parameters.
        frozen: Patterns of parameters that are not trained.
        preset: A stage of the network that is personal.
        loss: The loss, if not the usual one.
        metrics: Further scores.
        validation: The share of training data that models are evaluated on instead of the test data.
        unseen: Clients that do not take part, as in [train][fedapm.train].
        tuned: Settings that [tune][fedapm.tune] found, or its folder.
        out: A folder to keep the runs in; runs that are there already are not repeated. A temporary one if None.
        progress: Whether to show progress.
        **settings: Settings of the solver and the engine for all methods, such as ``rounds=20`` and ``lr=0.1``;
            hyperparameters for the methods that have them; and tables of single methods, as in
            ``fedprox={"mu": 0.1}``. With ``workers=1`` runs go one after the other; if not given, side by side in
            forked processes of one thread each, as many as processors and memory allow.

    Returns:
        The leaderboard and everything behind it.

    Raises:
        FedapmError: A setting or the data is not usable; the message is one line.
    """
    split = split_table(personal, shared, frozen, preset)
    setup = set_up("compare", data, model, methods, split, settings, loss=loss, validation=validation, unseen=unseen)
    best, origin = _tuned(tuned, setup.methods)
    folder = Path(out) if out is not None else temporary_folder() / "compare"
    setup = setup.with_split(None, progress)
    experiments = comparison.plans(setup.methods, list(seeds), *setup.layers, best, given=setup.given)
    about = comparison.About(setup.methods, list(seeds), tuned=origin)
    comparison.run_all(
        experiments,
        folder,
        progress=progress,
        about=about,
        clients=setup.clients,
        model=setup.model,
        loss=setup.loss,
        metrics=with_builtin_metrics(metrics),
    )
    made = Comparison(folder, model)
    return made if out is not None else removed_with(made, folder.parent)


def _tuned(tuned: Tuned | str | Path | None, methods: Sequence[str]) -> tuple[Mapping[str, Any], Any]:
    if tuned is None:
        return {}, None
    from fedapm.tuning import tuned_layer

    layer, origin = tuned_layer(Path(tuned) if isinstance(tuned, str | Path) else tuned.folder, methods)
    if not layer:
        raise FedapmError("there are no tuned settings.")
    return layer, origin
