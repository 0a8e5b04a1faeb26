"""A tiny random transformer in a folder, and clients whose texts it can learn."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp

import torch

from fedapm.core.pretrained import quiet_libraries
from fedapm.core.solver import SGDConfig
from fedapm.data import Federation
from fedapm.experiments.own import with_adapters
from fedapm.experiments.settings import ModelSettings, validated
from fedapm.models.text import TextClassifier
from fedapm.simulation.problem import Problem

CLASSES, WORDS, TOKENS = 3, 40, 10
LORA = {"rank": 2, "alpha": 4.0, "layers": [-1]}


@lru_cache(maxsize=4)
def tiny_folder(seed: int = 0) -> Path:
    """Weights of two layers of BERT, as its library saves them; another seed is another base."""
    from transformers import BertConfig, BertModel

    folder = Path(mkdtemp())
    with torch.random.fork_rng(devices=[]), quiet_libraries():
        torch.manual_seed(seed)
        BertModel(
            BertConfig(
                vocab_size=WORDS,
                hidden_size=8,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=16,
                max_position_embeddings=TOKENS,
            )
        ).save_pretrained(folder)
    return folder


def network() -> TextClassifier:
    return TextClassifier(CLASSES, weights=str(tiny_folder()))


@lru_cache(maxsize=2)
def texts(clients: int = 3, samples: int = 15) -> Federation:
    """Clients whose second word decides the class, each with classes in another order."""
    stream = torch.Generator().manual_seed(3)
    data = {}
    for client in range(clients):
        ids = torch.randint(1, WORDS, (samples, TOKENS), generator=stream)
        length = torch.randint(3, TOKENS + 1, (samples,), generator=stream)
        data[f"client-{client}"] = ((ids, length), (ids[:, 1] + client) % CLASSES)
    return Federation.from_clients(data, test=data)


def problem(method, preset="lora", federation=None, **options) -> Problem:
    """A problem with adapters; options are the solver's, but for ``lora`` and what Problem takes."""
    lora = LORA | options.pop("lora", {})
    settings = validated(ModelSettings, "model", {"preset": preset, "lora": lora})
    more = {key: options.pop(key) for key in ("seed", "rounds") if key in options}
    solver = SGDConfig(**({"optimizer": "adamw", "lr": 0.02, "epochs": 2, "batch_size": 5} | options))
    model = with_adapters(network, settings)
    return Problem(federation or texts(), model, settings.rule, adapt=method.adapt, solver=solver, **more)
