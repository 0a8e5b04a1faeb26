"""FedAPMClassifier: personalised federated learning behind the interface of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from fedapm.api.train import train
from fedapm.core.samples import Samples
from fedapm.data import ClientData, Federation
from fedapm.errors import FedapmError, did_you_mean
from fedapm.experiments.result import Result

ALONE = "all"
"""The only client, where none are named."""


class FedAPMClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier with one model for each client: ``fit(X, y, client=ids)``, ``predict(X, client=ids)``.

    Inputs are standardized by the mean and the standard deviation of each feature over all training samples. Without
    ``client`` all samples are one client's, and it is an ordinary classifier.

    Args:
        personal: Patterns of the parameters that each client keeps; the last layer of the network if None.
        model: A function of the numbers of features and classes that makes the network; a network with one hidden
            layer if None.
        hidden: The width of that hidden layer.
        algorithm: The method's name.
        rounds: T, the number of rounds.
        lr: Step size.
        epochs: Passes over the local data in each phase.
        batch_size: Samples in a step.
        fraction: Share of clients in a round.
        hyperparameters: Hyperparameters of the method and further settings of [train][fedapm.train].
        random_state: The seed; a number.
    """

    def __init__(
        self,
        personal: Sequence[str] | None = None,
        model: Callable[[int, int], nn.Module] | None = None,
        hidden: int = 32,
        algorithm: str = "fedapm",
        rounds: int = 30,
        lr: float = 0.1,
        epochs: int = 2,
        batch_size: int = 16,
        fraction: float = 1.0,
        hyperparameters: dict[str, Any] | None = None,
        random_state: int | None = 0,
    ) -> None:
        self.personal = personal
        self.model = model
        self.hidden = hidden
        self.algorithm = algorithm
        self.rounds = rounds
        self.lr = lr
        self.epochs = epochs
        self.batch_size = batch_size
        self.fraction = fraction
        self.hyperparameters = hyperparameters
        self.random_state = random_state

    def fit(self, X: Any, y: Any, client: Any = None) -> FedAPMClassifier:
        """Train a model for every client.

        Args:
            X: The samples, one row each.
            y: The class of each sample.
            client: The id of each sample's client.

        Returns:
            The classifier itself.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("FedAPMClassifier needs samples of at least 2 classes, but there is only one class.")
        ids = self._ids(client, len(X))
        self.mean_, self.scale_ = X.mean(0), np.where((scale := X.std(0)) > 0, scale, 1.0)
        inputs, targets = self._inputs(X), torch.as_tensor(codes).long()
        members = []
        for name in sorted(set(ids.tolist())):
            samples = Samples((inputs,), targets)[torch.as_tensor(ids == name)]
            members.append(ClientData(name, samples, samples[:0]))
        self.clients_ = [member.id for member in members]
        features, classes = X.shape[1], len(self.classes_)
        names = tuple(map(str, self.classes_.tolist()))
        federation = Federation(members, "own data", class_names=names)
        seed = int(self.random_state) if self.random_state is not None else 0
        make = self.model
        try:
            self.result_: Result = train(
                federation,
                (lambda: make(features, classes)) if make is not None else (lambda: self._network(features, classes)),
                algorithm=self.algorithm,
                personal=self._personal(features, classes),
                rounds=self.rounds,
                lr=self.lr,
                epochs=self.epochs,
                batch_size=self.batch_size,
                fraction=self.fraction,
                evaluate_every=max(1, self.rounds),
                seed=seed,
                engine="sequential",
                **(self.hyperparameters or {}),
            )
        except FedapmError as error:
            raise ValueError(str(error)) from error
        self.models_ = {name: self.result_.model(name) for name in self.clients_}
        return self

    def __getstate__(self) -> dict[str, Any]:
        """All but the run itself, which is tied to this process; the models go along."""
        return {key: value for key, value in super().__getstate__().items() if key != "result_"}

    def predict(self, X: Any, client: Any = None) -> np.ndarray[Any, Any]:
        """The class of each sample, by the model of its client.

        Args:
            X: The samples, one row each.
            client: The id of each sample's client, or one id for all of them.
        """
        best = self.predict_proba(X, client).argmax(1)
        chosen: np.ndarray[Any, Any] = self.classes_[best]
        return chosen

    def predict_proba(self, X: Any, client: Any = None) -> np.ndarray[Any, Any]:
        """The probability of each class, in the order of ``classes_``.

        Args:
            X: The samples, one row each.
            client: The id of each sample's client, or one id for all of them.
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        ids = self._ids(client, len(X), known=self.clients_)
        inputs = self._inputs(X)
        found = np.empty((len(X), len(self.classes_)))
        for name in dict.fromkeys(ids.tolist()):
            mine = ids == name
            with torch.inference_mode():
                outputs = self.models_[name](inputs[torch.as_tensor(mine)])
            found[mine] = outputs.double().softmax(1).numpy()
        return found

    def score(self, X: Any, y: Any, sample_weight: Any = None, client: Any = None) -> float:
        """The share of samples whose class is predicted.

        Args:
            X: The samples, one row each.
            y: Their classes.
            sample_weight: How much each sample counts.
            client: The id of each sample's client.
        """
        right = self.predict(X, client) == np.asarray(y)
        return float(np.average(right, weights=sample_weight))

    def _inputs(self, X: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.as_tensor((X - self.mean_) / self.scale_).float()

    def _ids(self, client: Any, count: int, known: Sequence[str] | None = None) -> np.ndarray[Any, Any]:
        if client is None:
            if known is not None and list(known) != [ALONE]:
                raise ValueError(f"say whose samples these are (client=), as in {known[0]!r}.")
            return np.full(count, ALONE, dtype=object)
        column = np.asarray(client)
        column = np.full(count, column.item()) if column.ndim == 0 else column
        if column.shape != (count,):
            raise ValueError(f"client has the shape {column.shape}; give one id for each of the {count} samples.")
        if column.dtype.kind == "f" and np.isnan(column).any():
            raise ValueError("some client ids are missing (NaN); give every sample an id.")
        ids = np.array([str(value) for value in column.tolist()], dtype=object)
        for name in set(ids.tolist()) - set(known or ids.tolist()):
            raise ValueError(f"there was no client {name!r} in training; {did_you_mean(name, known or ())}")
        return ids

    def _network(self, features: int, classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, self.hidden), nn.ReLU(), nn.Linear(self.hidden, classes))

    def _personal(self, features: int, classes: int) -> list[str]:
        if self.personal is not None:
            return list(self.personal)
        network = (self.model or self._network)(features, classes)
        last = [name.rpartition(".")[0] for name, _ in network.named_parameters()][-1]
        return [last] if last else ["*"]
