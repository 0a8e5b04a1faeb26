"""How much memory a run takes, and how much there is: what bounds the runs that go side by side."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from fedapm.core import random
from fedapm.data.federation import Federation
from fedapm.simulation.engines.base import client_init
from fedapm.simulation.engines.vectorized import MEMORY
from fedapm.simulation.problem import Problem
from fedapm.simulation.spec import RunSpec
from fedapm.simulation.stores import LARGE

PROCESS = 1 << 27
"""Bytes that a forked process comes to have for itself, whatever it computes."""
FEW = 8
"""Clients whose data is looked at; all others are taken to be like them."""


def free_memory(root: Path = Path("/")) -> float:
    """Bytes that processes may still take, by the system and by the container they are in; infinite where none says.

    Args:
        root: Where the system's files are.
    """
    limits = [math.inf]
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            limits.append(1024 * int(line.split()[1]))
    groups = root / "sys/fs/cgroup"
    pairs = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
    for most, now in pairs:
        allowed, used = _number(groups / most), _number(groups / now)
        if allowed is not None and used is not None:
            limits.append(max(allowed - used + _cached((groups / now).parent / "memory.stat"), 0))
    return min(limits)


def run_bytes(spec: RunSpec) -> int:
    """About what a run takes in a process of its own, beside the clients' data, which forked processes share.

    Args:
        spec: The run.
    """
    problem = spec.problem
    states = 0
    if spec.store != "disk":
        states = len(problem) * client_init(problem, spec.algorithm)(0).nbytes
        states = min(states, LARGE) if spec.store == "auto" else states
    model: int = sum(t.nbytes for t in problem.network(0).module.state_dict().values())
    cohort = spec.schedule.sampling.size(len(problem))
    together = MEMORY if spec.engine == "vectorized" else 0
    # a closing phase has states of its own; what a client sends, keeps and had is there until a round is over
    return PROCESS + 2 * states + 4 * model * (cohort + 2) + 2 * _activations(problem) + together


def data_bytes(federation: Federation) -> int:
    """About what all clients' samples take, where a process has to read them for itself."""
    few = [federation[k] for k in range(min(FEW, len(federation)))]
    sizes = [sum(t.nbytes for part in (c.train, c.test) for t in (*part.inputs, part.targets)) for c in few]
    return len(federation) * sum(sizes) // len(sizes)


def _activations(problem: Problem) -> int:
    """What the pass over a batch keeps for its gradient; twice as much is there while that is computed."""
    network, samples = problem.network(0), problem.samples(0, "train")
    few = samples[:2]
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    training = network.module.training
    try:
        with (
            torch.enable_grad(),
            random.seeded_globally(problem.device, 0, "trial"),
            torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        ):
            network.module.eval()
            network.loss(network.module(*few.inputs), few.targets)
    finally:
        network.module.train(training)
    batch = min(problem.solver.batch_size or len(samples), len(samples))
    return sum(kept.values()) * batch // max(len(few), 1)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _cached(path: Path) -> int:
    """Bytes of files that are only there because nobody needed their room yet."""
    fields = dict(line.split(maxsplit=1) for line in _lines(path) if " " in line)
    return int(fields.get("inactive_file", fields.get("total_inactive_file", 0)))
