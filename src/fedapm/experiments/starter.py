"""The files that ``fedapm init`` writes: an experiment with data and a network of one's own that runs as it is."""

from __future__ import annotations

from pathlib import Path

from fedapm.errors import FedapmError
from fedapm.runs.files import write_atomic

EXPERIMENT = """\
# An experiment with data and a network of your own. Run it from anywhere: fedapm run experiment.toml
# Paths and modules are looked for beside this file. Every setting: docs/reference/configuration.md

[data]
factory = "my_data:load"      # a function that returns a fedapm.Federation
# file = "people.npz"         # or a file with arrays x, y and client (.npz, .csv, .parquet), or a folder of them
# unseen = ["person-9"]       # people who do not take part, and get a model at the end

[data.options]                # arguments of the function
people = 10

[model]
factory = "my_network:Network"
personal = ["head"]           # what each person keeps; the rest is shared. Left out, it is searched (fedapm split)

[model.options]               # arguments of the network; classes and shapes are filled in
hidden = 16

[algorithm]
name = "fedapm"

[solver]
lr = 0.1
epochs = 2
batch_size = 16

[engine]
rounds = 20
fraction = 0.5
"""

DATA = '''"""Your data: a function that returns a federation. Replace what is in it.

Run this file to write the same data as people.npz: python my_data.py
"""

import numpy as np

from fedapm import Federation


def arrays(people: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Made-up recordings: what moves is the same for all people, what they call it is not."""
    rng = np.random.default_rng(7)
    mixing = rng.standard_normal((3, 12))
    x, y, who = [], [], []
    for person in range(people):
        movement = rng.standard_normal((60, 3))
        habits = rng.standard_normal((3, 3))
        x.append(movement @ mixing + 0.3 * rng.standard_normal((60, 12)))
        y.append((movement @ habits).argmax(1))
        who += [f"person-{person}"] * 60
    activities = np.array(["rest", "walk", "run"])
    return np.concatenate(x), activities[np.concatenate(y)], np.array(who)


def load(people: int = 10, seed: int = 0) -> Federation:
    """One row a sample in x, its label in y, and whose it is; see Federation for other ways to give data."""
    x, y, who = arrays(people)
    return Federation.from_arrays(x, y, who, seed=seed, name="people")


if __name__ == "__main__":
    x, y, who = arrays(10)
    np.savez("people.npz", x=x, y=y, client=who)
'''

NETWORK = '''"""Your network: any torch module. Its parameters are named by its attributes: body.0.weight, head.bias."""

from collections.abc import Sequence

from torch import Tensor, nn


class Network(nn.Module):
    """A body that all people share, and a head of their own.

    The number of classes and the shapes of the inputs are filled in; everything else is an option of the experiment.
    """

    def __init__(self, classes: int, shapes: Sequence[Sequence[int]], hidden: int = 16) -> None:
        super().__init__()
        ((features,),) = shapes
        self.body = nn.Sequential(nn.Linear(features, hidden), nn.Tanh())
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """One score a class for every sample."""
        return self.head(self.body(x))
'''

FILES = {"experiment.toml": EXPERIMENT, "my_data.py": DATA, "my_network.py": NETWORK}


def write_starter(folder: Path) -> list[Path]:
    """Write the files into a folder.

    Args:
        folder: The folder; it is made if it does not exist. A file that is there already is never overwritten.

    Returns:
        The files.
    """
    if folder.exists() and not folder.is_dir():
        raise FedapmError(f"{folder} is a file; give a folder for the project.")
    for name in FILES:
        if (folder / name).exists():
            raise FedapmError(f"{folder / name} exists already; give another folder.")
    for name, content in FILES.items():
        write_atomic(folder / name, content)
    return [folder / name for name in FILES]
