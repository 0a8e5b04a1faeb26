"""The Python interface: from data to trained personal models in a few lines."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from fedapm.algorithms import METHODS, hyperparameters, method
from fedapm.core.algorithm import Algorithm
from fedapm.core.metrics import METRICS, Metric, as_metric
from fedapm.core.network import Loss
from fedapm.core.solver import SGDConfig
from fedapm.core.split import Preset
from fedapm.data import Federation
from fedapm.errors import FedapmError, did_you_mean
from fedapm.experiments import build
from fedapm.experiments.result import Result
from fedapm.experiments.run import execute
from fedapm.experiments.settings import DataSettings, EngineSettings, Experiment, ModelSettings, validated
from fedapm.privacy import PrivacySettings
from fedapm.simulation.engines.auto import EngineName
from fedapm.simulation.loop import Callback
from fedapm.simulation.problem import Model
from fedapm.simulation.spec import CallbackFactory, RunSpec
from fedapm.simulation.stores import StoreKind
from fedapm.uploads import UploadSettings

SOLVER_KEYS = tuple(field.name for field in fields(SGDConfig))
ENGINE_KEYS = tuple(field.name for field in fields(EngineSettings))


def train(
    data: Federation | str,
    model: Model | None = None,
    *,
    algorithm: str | Algorithm = "fedapm",
    personal: Sequence[str] | Literal["auto"] | None = None,
    shared: Sequence[str] = (),
    frozen: Sequence[str] = (),
    preset: Preset | None = None,
    lora: Mapping[str, Any] | None = None,
    loss: Loss | None = None,
    metrics: Sequence[Metric | Callable[..., Any]] = (),
    callbacks: Sequence[Callback] = (),
    validation: float | None = None,
    features: str | None = None,
    unseen: float | Sequence[int | str] | None = None,
    upload: Mapping[str, Any] | None = None,
    privacy: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    lr: float | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    lr_schedule: Literal["constant", "exponential", "cosine"] | None = None,
    lr_decay: float | None = None,
    weight_decay_v: float | None = None,
    prior_v: float | None = None,
    bias_v: Literal["drawn", "frequencies"] | None = None,
    dropout_v: float | None = None,
    validation_v: float | None = None,
    optimizer: Literal["sgd", "adamw"] | None = None,
    clip_norm: float | None = None,
    warmup: int | None = None,
    accumulate: int | None = None,
    precision: Literal["float32", "bfloat16"] | None = None,
    keep_state: bool | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    fraction: float | None = None,
    count: int | None = None,
    evaluate_every: int | None = None,
    evaluate_clients: int | None = None,
    evaluate_train: int | Literal["all"] | None = None,
    checkpoint_every: int | None = None,
    save_models: bool | None = None,
    stationarity: bool | None = None,
    final_personal_epochs: int | None = None,
    theory: bool | None = None,
    weights: Literal["uniform", "samples"] | None = None,
    units: Literal["client", "paper"] | None = None,
    device: str | None = None,
    engine: EngineName | None = None,
    workers: int | None = None,
    ray_address: str | None = None,
    store: StoreKind | None = None,
    stuck_after: float | None = None,
    **hyperparameters: Any,
) -> Result:
    """Train a model for every client.

    A setting that is not given is the data set's own, or else the default of an experiment file.

    Args:
        data: A federation, or the name of a data set: ``"digits"``, or one whose files are in ``./data`` or in the
            folder that FEDAPM_DATA_ROOT names.
        model: A module; a function without arguments that makes one; or a function of a client's
            [ClientData][fedapm.ClientData], where clients have networks of their own. It may be left out for a named
            data set.
        algorithm: A method's name, or an instance such as ``FedAPM(rho=0.1)``.
        personal: Patterns of the names of parameters that each client keeps to itself. ``"auto"`` tries several splits
            on validation data first and takes the best. For data and a network of your own this is also done where
            none of ``personal``, ``shared``, ``frozen`` and ``preset`` is given; ``personal=[]`` shares everything.
        shared: Patterns of parameters that all clients train together.
        frozen: Patterns of parameters that are neither trained nor sent.
        preset: A stage the network declares as personal, instead of patterns.
        lora: Adapters in a frozen network: the keys of ``[model.lora]``, as in ``{"rank": 8, "alpha": 16}``. ``preset``
            or patterns then say what of them is shared.
        loss: A function of outputs and targets that returns a mean; cross-entropy for classes and the mean squared
            error for quantities if not given.
        metrics: Further scores of each client's model: functions of (outputs, targets), torchmetrics objects, or
            [Metric][fedapm.Metric] objects. They stand beside the built-in ones in records, history and reports.
        callbacks: What follows the run, such as [EarlyStopping][fedapm.EarlyStopping].
        validation: The share of each client's training data that models are evaluated on instead of the test data.
        features: Features in place of a named data set's own inputs, such as ``"statistics"`` for motionsense.
        unseen: Clients that do not take part: their share, or their ids. At the end of the run each gets a personal
            part of its own, and `Result.unseen` has its scores before and after.
        upload: What is done to a client's message before it is sent: the keys of ``[upload]``, as in ``{"compress":
            "top-k", "round_to": "int8"}``.
        privacy: Client-level differential privacy: the keys of ``[privacy]``, as in ``{"epsilon": 8.0, "clip": 0.5}``.
        out: A folder to write the run to as it goes.
        resume: Whether to continue the run in ``out``, if there is one.
        progress: Whether to show a progress bar.
        lr: Step size.
        epochs: Passes over the local data in each phase.
        batch_size: Samples in a step; 0 takes all of a client's data at once.
        momentum: Share of the last step's direction that is kept.
        weight_decay: λ: f_i is the mean loss plus λ/2·‖parameters‖².
        lr_schedule: How the step size changes from round to round.
        lr_decay: Factor a round under the exponential schedule.
        weight_decay_v: λ of the personal parameters; the same as of all others if not given.
        prior_v: λ₀: f_i has a further term λ₀/2·‖v − v⁰‖², with v⁰ where the personal parameters started.
        bias_v: Where a personal output bias starts: as ``"drawn"``, or at the logarithms of the ``"frequencies"`` of
            the client's classes.
        dropout_v: Dropout rate in front of personal layers, while these are trained.
        validation_v: Share of a client's training samples by which phases that train only personal parameters stop
            early.
        optimizer: How a step follows the gradient: SGD, or AdamW with all other terms beside the scaled gradient.
        clip_norm: Longest gradient of the mean loss in a step.
        warmup: Rounds in which the step size rises evenly to its full value.
        accumulate: Parts in which the gradient of a batch is computed and added up.
        precision: What networks are trained in; bfloat16 where the device has it.
        keep_state: Whether the optimizer's running means go on from a client's last round.
        rounds: T, the number of rounds.
        seed: Decides the start, the selection of clients and the order of batches.
        fraction: Share of clients in a round.
        count: Number of clients in a round, instead of a share.
        evaluate_every: Rounds between evaluations; the first and last round are always evaluated.
        evaluate_clients: How many clients are evaluated, the same in every round; all if not given, or 1,000 of those
            of [Federation.lazy][fedapm.Federation.lazy].
        evaluate_train: Training samples of a client that its training loss is measured on at most, or ``"all"``.
        checkpoint_every: Rounds between checkpoints; 0 saves only when the run stops.
        save_models: Whether every client's model is written to ``out`` when the run is complete.
        stationarity: Whether to record how far FedAPM is from a stationary point.
        final_personal_epochs: Epochs of a closing phase, in which every client continues its personal part at the
            final shared model; 0 leaves it out.
        theory: Whether to record the Lyapunov function of FedAPM, and how much clients disagree.
        weights: α_i: every client the same, or by its number of samples.
        units: Whether hyperparameters are meant for m·α_i·f_i or for α_i·f_i.
        device: Where to compute, such as "cpu" or "cuda".
        engine: How clients are run: one by one, side by side, in worker processes, or what suits the run.
        workers: Worker processes; as many as there are processors if not given.
        ray_address: The Ray cluster of the engine ``"ray"``; one on this machine is started if not given.
        store: Where clients' states are kept between rounds.
        stuck_after: Seconds without any processor time after which a worker process is replaced.
        **hyperparameters: Those of the method, where ``algorithm`` is a name: ``train("digits", rho=0.1)``.

    Returns:
        The history of the run and every client's model.

    Raises:
        FedapmError: A setting or the data is not usable; the message is one line.
        Diverged: No client has a finite result any more.
        Interrupted: The run was stopped with Ctrl-C; with ``out`` it can be resumed, without it the error's ``result``
            has what was trained until then.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    instance = _algorithm(algorithm, hyperparameters)
    solver_table = {name: given[name] for name in SOLVER_KEYS if name in given}
    engine_table = {name: given[name] for name in ENGINE_KEYS if name in given}
    own = not isinstance(data, str) and instance.takes_split() and lora is None
    split = _split(personal, shared, frozen, preset, own=own) | ({} if lora is None else {"lora": dict(lora)})
    sent = validated(UploadSettings, "upload", upload or {})
    bounded = validated(PrivacySettings, "privacy", privacy or {})
    clients = None if isinstance(data, str) else data
    if isinstance(data, str):
        source: dict[str, Any] = {"name": data}
        source |= {name: given[name] for name in ("validation", "features") if name in given}
        source |= {"unseen": unseen if isinstance(unseen, float) else list(unseen)} if unseen else {}
        network = split if model is None else {"name": "own"} | split
        tables = {"data": source, "model": network, "solver": solver_table, "engine": engine_table}
        experiment = replace(build.resolve(tables), algorithm=instance, upload=sent, privacy=bounded)
    elif model is None:
        raise TypeError("train() needs a model for a federation of your own data.")
    elif features is not None:
        raise FedapmError("train() takes features only with the name of a data set, not with a federation.")
    else:
        experiment = Experiment(
            algorithm=instance,
            model=validated(ModelSettings, "model", split),
            solver=validated(SGDConfig, "solver", solver_table),
            engine=validated(EngineSettings, "engine", engine_table),
            upload=sent,
            privacy=bounded,
        )
        if validation:
            clients = data.for_validation(validation, DataSettings.seed)
        if unseen:
            clients = (clients or data).hold_out(unseen, DataSettings.seed)
    scores, folder = with_builtin_metrics(metrics), Path(out) if out is not None else None
    if experiment.model.split is not None:
        # takes as long to import as all the rest
        from fedapm.tuning.split import with_split

        there = clients or build.federation(experiment.data)
        experiment = with_split(
            experiment, there, folder, model=model, loss=loss, metrics=scores, resume=resume, progress=progress
        )
        # with a network of the user's own, clients that are given count as the user's own, too
        clients = there if model is None else clients
    spec = build.remark_on_split(build.plan(experiment, clients, model, loss, metrics=scores))
    return execute(
        spec,
        folder,
        resume=resume,
        progress=progress,
        callbacks=[_factory(callback) for callback in callbacks],
    )


def _split(
    personal: Sequence[str] | None, shared: Sequence[str], frozen: Sequence[str], preset: Preset | None, *, own: bool
) -> dict[str, Any]:
    """What is said of the split, as settings; it is searched where nothing is said and the data is the user's own."""
    given = {"shared": tuple(shared), "frozen": tuple(frozen), "preset": preset}
    split: dict[str, Any] = {k: v for k, v in given.items() if v}
    if personal == "auto" or (own and personal is None and not split):
        return split | {"split": "auto"}
    return split if personal is None else split | {"personal": tuple(personal)}


def _algorithm(algorithm: str | Algorithm, values: Mapping[str, Any]) -> Algorithm:
    """The method, with hyperparameters given as keywords; any other keyword is refused here."""
    kind = method(algorithm) if isinstance(algorithm, str) else type(algorithm)
    known = [field.name for field in fields(kind)]
    for name in values:
        if name not in known:
            owners = [owner for owner, other in METHODS.items() if name in hyperparameters(other)]
            if owners:
                raise FedapmError(
                    f"{name!r} is a hyperparameter of {_listed(owners)}, not of {kind.name}; choose another algorithm."
                )
            keywords = [p.name for p in inspect.signature(train).parameters.values() if p.kind is p.KEYWORD_ONLY]
            raise FedapmError(f"train() has no keyword {name!r}; {did_you_mean(name, {*keywords, *known})}")
        if not isinstance(algorithm, str):
            raise FedapmError(
                f"{name!r} is a hyperparameter of the method; give it there, as in {kind.__name__}({name}="
                f"{values[name]!r})."
            )
    return validated(kind, "algorithm", values) if isinstance(algorithm, str) else algorithm


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:3][:-1]), names[:3][-1]])) + (", …" if len(names) > 3 else "")


def with_builtin_metrics(items: Sequence[Metric | Callable[..., Any]]) -> list[Metric]:
    """The registered metrics and those of this run."""
    metrics = dict(METRICS)
    for item in items:
        metric = as_metric(item)
        if metric.name in metrics:
            raise FedapmError(f"there are two metrics {metric.name!r}; give one of them another name.")
        metrics[metric.name] = metric
    return list(metrics.values())


def _factory(callback: Callback) -> CallbackFactory:
    def make(spec: RunSpec, folder: Path | None, last: int) -> Callback:
        del folder, last
        callback.check(spec.problem)
        return callback

    return make
