"""Gradients of single samples: clipped, noised as accounted for, in runs, in files and in reports."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedapm.core.per_sample import noised_gradients
from fedapm.core.samples import Samples
from fedapm.core.solver import SGDConfig
from fedapm.core.split import SplitRule
from fedapm.experiments.settings import Experiment
from fedapm.privacy import STEPS, PrivacySettings, SiteSpending, gaussian_epsilon, protection
from fedapm.privacy.samples import Counting, SampleProtection, affordable_steps
from fedapm.simulation.engines.processes import ProcessEngine
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.loop import Schedule
from fedapm.simulation.problem import Problem
from fedapm.simulation.sampling import Sampling
from tests.helpers.cli import fedapm
from tests.helpers.running import play
from tests.helpers.unit import refused
from tests.uploads.small import clients, problem_of, sending

KEYED = SampleProtection(0.5, 1.0, keyed=True)


def linear(count: int, width: int = 3):
    """A linear model and samples, for which every sample's gradient is known."""
    stream = torch.Generator().manual_seed(0)
    module = nn.Linear(width, 1, bias=False).double()
    x = torch.randn(count, width, generator=stream, dtype=torch.float64)
    return module, Samples((x,), torch.randn(count, 1, generator=stream, dtype=torch.float64))


def loss(outputs, targets):
    return 0.5 * (outputs - targets).square().mean()


def gradient(module, samples, protection, expected=None, seed=0):
    stream = torch.Generator().manual_seed(seed)
    parameters = dict(module.named_parameters())
    wanted = expected if expected is not None else len(samples)
    return noised_gradients(module, parameters, loss, samples, wanted, protection, stream)


def test_without_noise_and_bound_it_is_the_gradient_of_the_mean():
    module, samples = linear(12)
    (found,), value = gradient(module, samples, SampleProtection(1e9, 1e-30, keyed=True))
    mean = loss(module(samples.inputs[0]), samples.targets)
    (exact,) = torch.autograd.grad(mean, list(module.parameters()))
    assert torch.allclose(found, exact, atol=1e-12)
    assert value == pytest.approx(12 * mean.item())


def test_every_sample_is_clipped_by_itself():
    module, samples = linear(12)
    (found,), _ = gradient(module, samples, SampleProtection(0.5, 1e-30, keyed=True))
    x = samples.inputs[0]
    each = (module(x) - samples.targets).detach() * x
    norms = each.norm(dim=1, keepdim=True)
    assert float(norms.max()) > 0.5 > float(norms.min())
    assert torch.allclose(found, (each * (0.5 / norms).clamp(max=1)).mean(0, keepdim=True), atol=1e-12)
    # whatever a sample is, it moves the sum by C at most
    wild = Samples((torch.cat([x[1:], 1e9 * x[:1]]),), samples.targets)
    rest = Samples((x[1:],), samples.targets[:-1])
    (with_it,), _ = gradient(module, wild, SampleProtection(0.5, 1e-30, keyed=True), 1)
    (without,), _ = gradient(module, rest, SampleProtection(0.5, 1e-30, keyed=True), 1)
    assert float((with_it - without).norm()) <= 0.5 + 1e-9


class Recurrent(nn.Module):
    """What a sequence comes to."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.head = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.steps(x)[0][:, -1])


def test_samples_of_a_recurrent_network_are_clipped_by_themselves_too():
    torch.manual_seed(0)
    module = Recurrent().double()
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(6, 5, 2, generator=stream, dtype=torch.float64)
    y = torch.randn(6, 1, generator=stream, dtype=torch.float64)
    found, _ = gradient(module, Samples((x,), y), SampleProtection(0.5, 1e-30, keyed=True))
    expected = [torch.zeros_like(p) for p in module.parameters()]
    norms = []
    for k in range(len(y)):
        alone = torch.autograd.grad(loss(module(x[k : k + 1]), y[k : k + 1]), list(module.parameters()))
        norms.append(float(torch.cat([g.flatten() for g in alone]).norm()))
        for total, one in zip(expected, alone, strict=True):
            total += one * min(1.0, 0.5 / norms[-1]) / len(y)
    assert max(norms) > 0.5 > min(norms)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("keyed", [True, False])
def test_the_noise_is_what_the_accountant_assumes_also_where_nobody_is_drawn(keyed):
    module, samples = linear(2, width=20_000)
    (found,), value = gradient(module, samples[:0], SampleProtection(0.5, 3.0, keyed), 4)
    assert value == 0.0
    assert float(found.std()) == pytest.approx(3.0 * 0.5 / 4, rel=6 / math.sqrt(2 * 20_000))
    protection = SampleProtection(0.5, 3.0, keyed)
    drawn = protection.chosen(40_000, 0.2, torch.Generator().manual_seed(1))
    assert float(drawn.double().mean()) == pytest.approx(0.2, abs=6 * math.sqrt(0.16 / 40_000))


def protected_problem(method) -> Problem:
    problem = problem_of(method, 3)
    problem.protection = KEYED
    return problem


def test_clients_count_their_steps_and_engines_agree():
    method = Counting(sending("fedapm", {}), PrivacySettings(level="sample"))
    problem = protected_problem(method)
    ends = []
    for kind in (SequentialEngine, lambda p, a: ProcessEngine(p, a, 2)):
        engine = kind(problem, method)
        end, records = play(problem, method, Schedule(3, Sampling(0.5), 10**9), engine=engine)
        ends.append(end.server.u)
        if isinstance(engine, SequentialEngine):
            for k, client in enumerate(problem.federation.clients):
                taken = sum(k in record["selected"] for record in records)
                # a step on v and one on u for every batch of 15
                steps = 2 * math.ceil(len(client.train) / 15) * taken
                assert engine.store.get(k).state.numbers[STEPS] == steps
        engine.close()
    assert ends[0].equal(ends[1])


def test_epsilon_of_each_site():
    table = PrivacySettings(level="sample", noise_multiplier=2.0)
    whole = SiteSpending(table, 0).rows({"a": 10, "b": 20}, [16.0, 0.0])
    assert [row["epsilon"] for row in whole] == [gaussian_epsilon(2.0, 1e-5), 0.0]
    pytest.importorskip("opacus")
    small, large = SiteSpending(table, 10).rows({"a": 100, "b": 1000}, [40.0, 40.0])
    assert large["epsilon"] < small["epsilon"] < gaussian_epsilon(math.sqrt(40) / 2.0, 1e-5)


def test_what_no_noise_protects_is_refused():
    for name, options in (("pfedme", {}), ("fedala", {}), ("fedapm", {"xi": 0.1})):
        method = Counting(sending(name, {}, **options), PrivacySettings(level="sample"))
        with refused("plain steps", 'privacy.level = "sample"'):
            play(protected_problem(method), method, Schedule(1, Sampling(0.5), 10**9))

    def normalized():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)).double()

    with refused("BatchNorm1d", "group or layer"):
        Problem(clients(), normalized, SplitRule(personal=("3",)), protection=KEYED)
    for key, value in {"clip_norm": 1.0, "accumulate": 2, "precision": "bfloat16"}.items():
        with refused(f"solver.{key}", "leave it out"):
            protection(PrivacySettings(level="sample"), SGDConfig(batch_size=0, **{key: value}))
    with refused("privacy.clip"):
        Experiment.from_tables({"privacy": {"level": "sample", "clip": "adaptive"}})


def test_a_run_on_the_command_line_with_its_file_and_report(tmp_path):
    small = ["data.clients=4", "engine.rounds=2", "solver.batch_size=0", "privacy.level=sample", "privacy.noise=keyed"]
    sets = [part for one in small for part in ("--set", one)]
    done = fedapm("run", "--data", "digits", *sets, "--out", str(tmp_path / "site"))
    assert done.code == 0, done.err
    rows = json.loads((tmp_path / "site" / "privacy.json").read_text())["clients"]
    assert len(rows) == 4
    taking_part = [row for row in rows if row["steps"]]
    assert all(row["epsilon"] == gaussian_epsilon(math.sqrt(row["steps"]), 1e-5) for row in taking_part)
    page = (tmp_path / "site" / "report.html").read_text()
    assert "each sample of a client" in page
    assert f"{max(row['epsilon'] for row in rows):.3g}" in page


def test_the_most_steps_that_a_budget_allows():
    for epsilon in (0.5, 2.0, 9.0):
        most = affordable_steps(1.0, 3.0, 1e-5, "rdp", epsilon)
        assert (
            gaussian_epsilon(math.sqrt(most) / 3.0, 1e-5) <= epsilon < gaussian_epsilon(math.sqrt(most + 1) / 3, 1e-5)
        )


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_clients_take_part_while_their_budget_lasts_and_the_run_ends_with_the_last(fraction):
    """A round has two steps on all of a client's samples, one on v and one on u."""
    table = PrivacySettings(level="sample", noise_multiplier=3.0, epsilon=3.0, noise="keyed")
    method = Counting(sending("fedapm", {}), table)
    problem = problem_of(method, 40)
    problem.protection = SampleProtection(0.5, 3.0, keyed=True)
    problem.solver = replace(problem.solver, batch_size=0)
    end, records = play(problem, method, Schedule(40, Sampling(fraction), 10**9))
    most = affordable_steps(1.0, 3.0, 1e-5, "rdp", 3.0)
    steps = [end.store.get(k).state.numbers[STEPS] for k in range(len(problem))]
    assert all(most - 2 < made <= most for made in steps)
    assert end.state.stopped.startswith("the privacy budget of every client is spent")
    assert records[-1]["abstaining"] == [*range(len(problem))]
    assert records[-1]["evaluations"] is not None
    taken = [sum(k in r["selected"] and k not in r["dropped"] for r in records) for k in range(len(problem))]
    assert taken == [made / 2 for made in steps]
    if fraction == 1.0:
        assert [r["round"] for r in records][-1] == most // 2


def test_a_budget_that_allows_no_round_ends_the_run_before_it():
    method = Counting(sending("fedapm", {}), PrivacySettings(level="sample", epsilon=0.1))
    problem = problem_of(method, 3)
    problem.protection, problem.solver = KEYED, replace(problem.solver, batch_size=0)
    end, records = play(problem, method, Schedule(3, Sampling(0.5), 10**9))
    assert [record["round"] for record in records] == [0]
    assert end.state.stopped.startswith("the privacy budget of every client")


def test_a_sample_without_a_finite_gradient_adds_nothing():
    module, samples = linear(4)
    wild = samples.inputs[0].clone()
    wild[2] = math.inf
    (found,), _ = gradient(module, Samples((wild,), samples.targets), SampleProtection(0.5, 1e-30, keyed=True), 4)
    rest = [0, 1, 3]
    (without,), _ = gradient(module, samples[torch.tensor(rest)], SampleProtection(0.5, 1e-30, keyed=True), 4)
    assert torch.allclose(found, without, atol=1e-12)
