"""What is said when something is wrong with data, a network or a setting: one sentence, before the first round.

Run with: python examples/mistakes.py
"""

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fedapm
from fedapm import FedAPM, FedapmError, Federation

rng = np.random.default_rng(0)
X, Y = rng.standard_normal((60, 8)).astype(np.float32), np.arange(60) % 3
WHO = np.repeat(["ann", "bob", "cas"], 20)
PICTURES = rng.random((60, 16, 16, 3)).astype(np.float32)


def net(features: int = 8, outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 4), nn.Tanh(), nn.Linear(4, outputs))


def federation(x: Any = X, y: Any = Y, who: Any = WHO, **more: Any) -> Federation:
    return Federation.from_arrays(x, y, who, **more)


def train(x: Any = X, y: Any = Y, model: Any = net, **more: Any) -> Any:
    data = x if isinstance(x, Federation) else federation(x, y)
    return fedapm.train(data, model, **({"personal": ["2"], "rounds": 1} | more))


def mixed(a: Any, b: Any) -> Any:
    return train(Federation.from_clients({"ann": a, "bob": b}))


def file(suffix: str, **arrays: Any) -> None:
    from fedapm.data.own import read_own

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"people{suffix}"
        np.savez(path, **arrays)
        read_own(path)


class Returns(nn.Module):
    """A network whose forward gives something else than scores."""

    def __init__(self, what: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.what = nn.Linear(8, 3), what

    def forward(self, x: torch.Tensor) -> Any:
        return self.what(self.layer(x))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 3)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([left, right], 1))


def convolution(dimensions: int = 2) -> nn.Module:
    kind: Any = nn.Conv2d if dimensions == 2 else nn.Conv1d
    pool: Any = nn.AdaptiveAvgPool2d if dimensions == 2 else nn.AdaptiveAvgPool1d
    return nn.Sequential(kind(3, 4, 3), pool(1), nn.Flatten(), nn.Linear(4, 3))


def words() -> nn.Module:
    return nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(32, 3))


def recurrent() -> nn.Module:
    return nn.LSTM(5, 3)


def summed(outputs: Any, targets: Any) -> Any:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def by_argmax(outputs: Any, targets: Any) -> Any:
    return (outputs.argmax(1) != targets).float().mean()


def as_number(outputs: Any, targets: Any) -> Any:
    return nn.functional.cross_entropy(outputs, targets).item()


def bad_loss(outputs: Any, targets: Any) -> Any:
    return nn.functional.binary_cross_entropy(outputs, targets)


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "a network for other features": (
        lambda: train(model=lambda: net(9)),
        "client ann|(8,)|float32|9 features|nn.Linear(8",
    ),
    "one client with fewer features": (lambda: mixed((X, Y), (X[:, :5], Y)), "client bob|(5,)|client ann|(8,)"),
    "test samples of another shape": (
        lambda: train(Federation.from_clients({"ann": (X, Y)}, test={"ann": (X[:, :5], Y)})),
        "client ann|test data|(5,)",
    ),
    "samples without features": (lambda: train(x=X[:, 0]), "client ann|()|single number|one row a sample"),
    "pictures with channels last": (
        lambda: train(x=PICTURES, model=convolution, personal=["3"]),
        "channels last|x.transpose(0, 3, 1, 2)",
    ),
    "pictures without channels": (
        lambda: train(x=PICTURES[..., 0], model=convolution, personal=["3"]),
        "channels is missing|x[:, None]",
    ),
    "pictures for a network of vectors": (
        lambda: train(x=PICTURES, model=lambda: net(768)),
        "768 features|flatten|reshape",
    ),
    "pictures smaller than the kernel": (
        lambda: train(x=PICTURES.transpose(0, 3, 1, 2)[:, :, :2, :2], model=convolution, personal=["3"]),
        "smaller than its kernel",
    ),
    "a signal for a network of pictures": (
        lambda: train(model=convolution, personal=["3"]),
        "3 channels, height, width|(2, 8)",
    ),
    "too few channels": (
        lambda: train(x=X[:, None], model=lambda: convolution(1), personal=["3"]),
        "3 channels|1 channels",
    ),
    "a row for a recurrent network": (
        lambda: train(model=recurrent, personal=["bias_hh_l0"]),
        "(length, 5)|x[:, None, :]",
    ),
    "double inputs for a single network": (lambda: train(x=torch.tensor(X).double()), "float64|float32|x.float()"),
    "floats for an embedding": (lambda: train(model=words, personal=["2"]), "whole numbers|x.astype(int)"),
    "a word beyond the embedding": (lambda: train(x=np.full((60, 8), 12), model=words, personal=["2"]), "0 to 9|12"),
    "one input for a network of two": (
        lambda: train(model=TwoInputs, personal=["layer.bias"]),
        "2 input(s)|has 1|tuple",
    ),
    "two inputs for a network of one": (lambda: train(x=(X, X)), "1 input(s)|has 2"),
    "one output for two classes": (lambda: train(y=Y % 2, model=lambda: net(8, 1)), "one output|2 classes|loss="),
    "fewer outputs than classes": (lambda: train(model=lambda: net(8, 2)), "client ann|class 2|2 outputs|3 outputs"),
    "one-hot labels": (lambda: train(y=np.eye(3)[Y]), "one-hot|argmax(1)"),
    "classes as floats": (lambda: train(y=Y.astype(float)), "floats, but whole|y.astype(int)"),
    "classes from -1": (lambda: train(y=Y - 1), "class -1|numbered from 0"),
    "labels with gaps": (lambda: train(y=np.array(["a", None, "b"] * 20, dtype=object)), "labels|gaps"),
    "text as inputs": (lambda: train(x=np.array(["a"] * 60)), "numbers|convert"),
    "samples of different lengths": (lambda: train(x=[[1.0] * (k % 2 + 1) for k in range(60)]), "differ in length|pad"),
    "NaN among the inputs": (lambda: train(x=np.where(X > 2, np.nan, X)), "NaN"),
    "NaN among the client ids": (lambda: federation(who=np.where(WHO == "ann", np.nan, 1.0)), "20 client ids|NaN"),
    "fewer ids than samples": (lambda: federation(who=WHO[:50]), "60 samples|50 client ids"),
    "fewer labels than samples": (lambda: federation(y=Y[:50]), "equal lengths|(60, 8)"),
    "a client with one sample": (lambda: federation(who=["solo", *WHO[1:]]), "client solo|1 sample"),
    "a client with one recording": (lambda: federation(groups=WHO), "client ann|one recording|leave it out"),
    "one client with classes, one with quantities": (
        lambda: mixed((X, Y), (X, Y + 0.5)),
        "client bob|quantities|client ann|classes",
    ),
    "a tuple from forward": (
        lambda: train(model=lambda: Returns(lambda o: (o, o)), personal=["layer.bias"]),
        "tuple|outputs[0]",
    ),
    "nothing from forward": (
        lambda: train(model=lambda: Returns(lambda _: None), personal=["layer.bias"]),
        "nothing|return",
    ),
    "outputs without the batch": (
        lambda: train(model=lambda: Returns(lambda o: o.mean(0)), personal=["layer.bias"]),
        "(3,)|batch|x.flatten(1)",
    ),
    "outputs that are classes": (
        lambda: train(model=lambda: Returns(lambda o: o.argmax(1)), personal=["layer.bias"]),
        "int64|a score a class",
    ),
    "outputs in time": (
        lambda: train(model=lambda: Returns(lambda o: o[:, :, None].repeat(1, 1, 5)), personal=["layer.bias"]),
        "(2, 3, 5)|flatten",
    ),
    "a loss a sample": (lambda: train(loss=summed), "(2,)|mean"),
    "a loss without a gradient": (lambda: train(loss=by_argmax), "parameters|argmax"),
    "a loss as a number": (lambda: train(loss=as_number), "float|item()"),
    "a loss that fails": (lambda: train(loss=bad_loss), "loss cannot be computed|(2, 3)|client ann"),
    "a network without parameters": (lambda: train(model=nn.Identity, personal=[]), "no parameter to train"),
    "a lazy layer": (
        lambda: train(model=lambda: nn.Sequential(nn.LazyLinear(3)), personal=[]),
        "lazy layers|forward pass",
    ),
    "a class in place of a network": (lambda: train(model=nn.Linear), "takes nothing, or one client's data"),
    "a function of one size": (lambda: train(model=lambda size: net(size)), "called with a client's data|lambda: Net"),
    "a pattern that matches nothing": (lambda: train(personal=["haed"]), "'haed'|matches no parameter"),
    "learning_rate": (lambda: train(learning_rate=0.1), "'lr'"),
    "epoch": (lambda: train(epoch=2), "'epochs'"),
    "rho beside an object": (lambda: train(algorithm=FedAPM(), rho=0.1), "FedAPM(rho=0.1)"),
    "rho for FedAvg": (lambda: train(algorithm="fedavg", rho=0.1), "fedapm|not of fedavg"),
    "an array called label": (lambda: file(".npz", x=X, label=Y, client=WHO), "lacks the array 'y'|label"),
    "a file without clients": (
        lambda: fedapm.experiments.build.resolve({"data": {"file": "peple.npz"}}),
        "does not exist",
    ),
}
"""Each mistake, with what makes it and the words that its message must have."""


def message(make: Callable[[], Any]) -> str:
    """What is said; an error that is not meant for people goes through."""
    try:
        make()
    except FedapmError as error:
        return str(error)
    raise AssertionError("nothing was said")


def main() -> None:
    logging.disable(logging.WARNING)
    print("| mistake | what is said |\n|---|---|")
    for name, (make, _) in MISTAKES.items():
        print(f"| {name} | {message(make).replace('|', chr(92) + '|')} |")


if __name__ == "__main__":
    main()
