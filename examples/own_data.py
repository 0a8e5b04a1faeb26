"""From arrays to personal models that plain torch loads.

Twelve sites record the same twenty signals. Two hidden factors explain them, and the factors are the same
everywhere; what counts as a positive case is each site's own rule. So the first layer is worth sharing and the
last one is not.

Run with: python examples/own_data.py
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from fedapm import Federation, train

SITES, SAMPLES, SIGNALS, FACTORS = 12, 60, 20, 2


def arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Signals, labels and the site of each sample."""
    rng = np.random.default_rng(7)
    mixing = rng.standard_normal((FACTORS, SIGNALS))
    x, y, site = [], [], []
    for k in range(SITES):
        factors = rng.standard_normal((SAMPLES, FACTORS))
        rule = rng.standard_normal(FACTORS)
        x.append(factors @ mixing + 0.3 * rng.standard_normal((SAMPLES, SIGNALS)))
        y.append((factors @ rule > 0).astype(int))
        site += [f"site-{k:02d}"] * SAMPLES
    return np.concatenate(x), np.concatenate(y), np.array(site)


def make() -> nn.Module:
    """Any torch module will do; its parameters are named 0.weight, 0.bias, 2.weight and 2.bias."""
    return nn.Sequential(nn.Linear(SIGNALS, 8), nn.Tanh(), nn.Linear(8, 2))


def main() -> None:
    x, y, site = arrays()
    federation = Federation.from_arrays(x, y, site, name="sites")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        result = train(federation, make, personal=["2"], rounds=30, batch_size=10, fraction=0.5, out=out)
        print(result.history[["accuracy", "accuracy_worst10", "drift"]].iloc[[0, 10, 20, 30]].round(3))

        # the exported file is a plain state dict: nothing of fedapm is needed to use it
        position = federation.position("site-03")
        network = make()
        network.load_state_dict(load_file(out / "models" / f"client-{position:04d}.safetensors"))
        network.eval()

    test = federation[position].test.inputs[0]
    with torch.no_grad():
        same = torch.equal(network(test), result.model("site-03")(test))
    if not same:
        raise SystemExit("the reloaded model does not predict what the trained one does")
    print(f"site-03: the reloaded model gives the same {len(test)} predictions as the trained one.")


if __name__ == "__main__":
    main()
