"""Clients with different numbers of classes, and so with networks of different shapes.

Four offices sort the same kind of picture into categories of their own: three, five, two and five of them. The
features are shared; each office has a head of the size it needs, which never leaves it.

Run with: python examples/per_client_networks.py
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from fedapm import ClientData, Federation, train

CATEGORIES = {
    "north": [0, 1, 2],
    "south": [3, 4, 5, 6, 7],
    "east": [8, 9],
    "west": [0, 2, 4, 6, 8],
}
SAMPLES = 80


def offices() -> Federation:
    """Every office numbers its own categories from 0."""
    pixels, digits = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    clients = {}
    for name, categories in CATEGORIES.items():
        index = rng.permutation(np.flatnonzero(np.isin(digits, categories)))[:SAMPLES]
        clients[name] = (pixels[index] / 16, np.searchsorted(categories, digits[index]))
    return Federation.from_clients(clients, name="offices")


class Net(nn.Module):
    """Features that all offices share, and a head of one office's size."""

    def __init__(self, categories: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, categories)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(pixels))


def make(client: ClientData) -> nn.Module:
    """A function of one argument is called with each client's data."""
    return Net(client.classes)


def main() -> None:
    federation = offices()
    result = train(federation, make, personal=["head"], rounds=15, batch_size=10, fraction=0.5)
    for client in federation.clients:
        outputs = result.model(client.id)(client.test.inputs[0])
        if outputs.shape != (len(client.test), client.classes):
            raise SystemExit(f"{client.id}: unexpected shape {tuple(outputs.shape)}")
        right = int((outputs.argmax(1) == client.test.targets).sum())
        print(f"{client.id:6} {client.classes} categories, {right} of {len(client.test)} test pictures right")


if __name__ == "__main__":
    main()
