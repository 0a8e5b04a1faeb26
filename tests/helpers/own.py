"""A project of a user's own in a folder: a data file, a data function and a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

PEOPLE = ("ann", "bob", "cas", "dan")
DATA = '''"""People."""
import numpy as np
from fedapm import Federation

def load(people=4, seed=0):
    with np.load(__file__.replace("people_data.py", "people.npz")) as file:
        stored = dict(file)
    keep = np.isin(stored["client"], np.unique(stored["client"])[:people])
    x, y, client = (stored[name][keep] for name in ("x", "y", "client"))
    return Federation.from_arrays(x, y, client, seed=seed, name="people")

def for_node(client=None, seed=0):
    federation = load(seed=seed)
    return federation if client is None else federation[federation.position(client)]

def nothing():
    load()

def broken():
    return {}["missing"]

number = 3
'''
NETWORK = '''"""A network."""
from torch import nn

class Net(nn.Module):
    def __init__(self, classes, shapes, hidden=4):
        super().__init__()
        ((features,),) = shapes
        self.body = nn.Linear(features, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.head(self.body(x).tanh())

def for_client(client, classes, shapes, hidden=4):
    return Net(classes, shapes, hidden)

def text():
    return "no module"
'''
CONFIG = """
[data]
file = "people.npz"
[model]
factory = "people_network:Net"
personal = ["head"]
[engine]
rounds = 2
fraction = 0.5
final_personal_epochs = 1
"""


def arrays(samples: int = 24) -> dict[str, Any]:
    """Samples of four people, three activities by name, in recordings of four samples."""
    rng = np.random.default_rng(0)
    count = samples * len(PEOPLE)
    y = np.arange(count) % 3
    x = rng.standard_normal((count, 5)) + np.eye(3, 5)[y] * 2
    client = np.repeat(PEOPLE, samples)
    names = np.array(["walk", "run", "sit"])
    return {"x": x, "y": names[y], "client": client, "group": np.arange(count) // 6, "time": np.arange(count)}


def project(folder: Path, **replaced: Any) -> Path:
    """Write the project; the experiment file in it."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {k: v for k, v in (arrays() | replaced).items() if v is not None and k not in ("group", "time")}
    np.savez(folder / "people.npz", **content)
    (folder / "people_data.py").write_text(DATA)
    (folder / "people_network.py").write_text(NETWORK)
    (folder / "experiment.toml").write_text(CONFIG)
    return folder / "experiment.toml"
