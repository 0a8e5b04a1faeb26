"""Run folders in the documented format with made-up but plausible curves."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedapm.report.metrics import MetricInfo

ACCURACY = MetricInfo("accuracy", "Accuracy", "%")
TRAIN_LOSS = MetricInfo("train_loss", "Training loss", higher_is_better=False, data="train")


@dataclass(frozen=True)
class Fake:
    """One made-up run; ``views`` names each evaluated model and the accuracy it ends with."""

    method: str
    label: str
    seed: int = 1
    views: dict[str, float] = field(default_factory=lambda: {"model": 0.9})
    rounds: int = 12
    every: int = 1
    clients: int = 6
    speed: float = 6.0
    drift: float | None = 1.0
    megabytes: float = 0.1
    status: str = "complete"
    reached: int | None = None
    dropped: dict[int, list[int]] = field(default_factory=dict)
    ids: list[str] | None = None
    data: str = "digits"
    config: str | None = None
    regression: bool = False
    auc: bool = True
    stationarity: bool = False
    capped: bool = False
    metrics: tuple[MetricInfo, ...] = ()
    """Metrics of the user's own, which the run describes."""


COMPARISON = (
    Fake("fedapm", "FedAPM", views={"model": 0.93}, speed=4.0, drift=0.4),
    Fake("fedavg", "FedAvg", views={"model": 0.78}, speed=9.0, drift=2.6, megabytes=0.13),
    Fake("local", "Local", views={"model": 0.86}, speed=3.0, drift=None, megabytes=0.0),
)


def write_fake(path: Path, fake: Fake) -> Path:
    """Write one run folder."""
    path.mkdir(parents=True, exist_ok=True)
    luck = random.Random(f"{fake.method}/{fake.seed}")
    shared_luck = random.Random(f"clients/{fake.seed}")
    sizes = [shared_luck.randint(40, 160) for _ in range(fake.clients)]
    talent = [shared_luck.gauss(0, 0.05) for _ in range(fake.clients)]
    own = [luck.gauss(0, 0.02) for _ in range(fake.clients)]
    ids = fake.ids or [str(i) for i in range(fake.clients)]
    clients = [
        {"id": ids[i], "train": sizes[i], "test": max(5, sizes[i] // 4), "classes": 2 + i % 8}
        for i in range(fake.clients)
    ]
    info = {
        "fedapm": "0.1.0",
        "method": fake.method,
        "label": fake.label,
        "seed": fake.seed,
        "status": fake.status,
        "rounds": fake.rounds,
        "metrics": [asdict(metric) for metric in fake.metrics],
        "data": fake.data,
        "model": "DigitsNet",
        "clients": clients,
        "parameters": {
            "shared": 2080 if fake.megabytes else 0,
            "personal": [330] * fake.clients,
            "frozen": 0,
        },
        "split": {"shared": ["body.weight"], "personal": ["head.weight"], "frozen": []},
        "environment": {"python": "3.11.7", "torch": "2.13.0", "platform": "Linux"},
    }
    (path / "run.json").write_text(json.dumps(info), encoding="utf-8")
    usual = f'[run]\nseed = {fake.seed}\n\n[method]\nname = "{fake.method}"\n'
    config = usual if fake.config is None else fake.config
    (path / "config.toml").write_text(config, encoding="utf-8")
    last = fake.reached if fake.reached is not None else fake.rounds
    rows = []
    for number in range(last + 1):
        sent = round(fake.megabytes * 1e6 / 2) * number
        evaluated = number % fake.every == 0 or number == fake.rounds
        scores = {
            view: _evaluation(fake, final, number, talent, own, sizes, luck) for view, final in fake.views.items()
        }
        row = {
            "round": number,
            "selected": list(range(fake.clients)) if number else [],
            "dropped": fake.dropped.get(number, []),
            "bytes_up": sent // max(number, 1),
            "bytes_down": sent // max(number, 1),
            "total_bytes_up": sent,
            "total_bytes_down": sent,
            "drift": _drift(fake, number, luck),
            "local": {"train_loss": 0.5, "epochs": 5} | ({"missed": 2} if fake.capped else {}) if number else None,
            "evaluations": scores if evaluated else None,
        }
        if fake.stationarity:
            row["stationarity"] = {"total": 10 * math.exp(-number / 3)}
        rows.append(row)
    (path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _drift(fake: Fake, number: int, luck: random.Random) -> float | None:
    if fake.drift is None or not number:
        return None
    return fake.drift * (0.25 + math.exp(-number / 8)) * luck.uniform(0.9, 1.1)


def _evaluation(
    fake: Fake,
    final: float,
    number: int,
    talent: list[float],
    own: list[float],
    sizes: list[int],
    luck: random.Random,
) -> dict[str, Any]:
    progress = 1 - math.exp(-number / fake.speed)
    level = 0.1 + (final - 0.1) * progress
    noise = [luck.gauss(0, 0.008) for _ in talent]
    accuracy = []
    for i, size in enumerate(sizes):
        tests = max(5, size // 4)
        value = level + (talent[i] + own[i]) * progress + noise[i]
        accuracy.append(round(min(max(value, 0.0), 1.0) * tests) / tests)
    train = [max(2.3 * (1 - final * progress) ** 1.7 * (1 + noise[i]), 1e-4) for i in range(len(sizes))]
    test = [loss * 1.4 + 0.02 for loss in train]
    per_client: dict[str, list[float | None]] = {"train_loss": list(train), "test_loss": list(test)}
    if not fake.regression:
        per_client["accuracy"] = list(accuracy)
        per_client["f1"] = [value * 0.98 for value in accuracy]
        per_client["auc"] = [None if i == 0 or not fake.auc else 0.5 + value / 2 for i, value in enumerate(accuracy)]
    for metric in fake.metrics:
        per_client[metric.name] = [(1 + value) / 2 if metric.higher_is_better else 1 - value for value in accuracy]
    losses = {metric.name for metric in fake.metrics if not metric.higher_is_better} | {"train_loss", "test_loss"}
    summaries = {name: _summary(values, name in losses) for name, values in per_client.items()}
    if "auc" in summaries:
        summaries["auc"]["clients"] = sum(value is not None for value in per_client["auc"])
    return summaries | {"per_client": per_client}


def _summary(values: list[float | None], loss: bool) -> dict[str, Any]:
    there = sorted((value for value in values if value is not None), reverse=loss)
    if not there:
        return {"mean": None, "std": None, "worst10": None}
    mean = sum(there) / len(there)
    worst = there[: max(1, len(there) // 10)]
    std = math.sqrt(sum((value - mean) ** 2 for value in there) / len(there))
    return {"mean": mean, "std": std, "worst10": sum(worst) / len(worst)}


def write_comparison(folder: Path, fakes: tuple[Fake, ...] = COMPARISON, seeds: tuple[int, ...] = (1, 2, 3)) -> Path:
    """Write a comparison folder: each method with each seed."""
    for fake in fakes:
        for seed in seeds:
            write_fake(folder / fake.method / f"seed-{seed}", replace(fake, seed=seed))
    return folder


def tiny_run(
    path: Path,
    method: str,
    seed: int,
    accuracies: list[list[float]],
    losses: list[float] | None = None,
    every: int = 1,
    config: str = "",
    **more: Any,
) -> Path:
    """Write a run of which every number is given: the clients' accuracies and their training loss in each round."""
    clients = [{"id": str(i), "train": 10, "test": 10, "classes": 2} for i in range(len(accuracies[0]))]
    info = {"method": method, "label": method.title(), "seed": seed, "status": "complete", "clients": clients}
    info |= {"rounds": len(accuracies) - 1, "data": "toy"} | more
    path.mkdir(parents=True, exist_ok=True)
    (path / "run.json").write_text(json.dumps(info), encoding="utf-8")
    (path / "config.toml").write_text(config, encoding="utf-8")
    rows = []
    for number, values in enumerate(accuracies):
        scores: dict[str, Any] = {"accuracy": _summary(list(values), loss=False), "per_client": {"accuracy": values}}
        if losses is not None:
            scores["train_loss"] = _summary([losses[number]], loss=True)
        sent = {"total_bytes_up": 1_000_000 * number, "total_bytes_down": 500_000 * number}
        evaluated = number % every == 0 or number == len(accuracies) - 1
        evaluations = {"model": scores} if evaluated else None
        rows.append({"round": number, **sent, "drift": 0.5 * number or None, "evaluations": evaluations})
    (path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
