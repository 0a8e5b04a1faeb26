"""Robust means: known answers, what clients keep, every engine, and hostile clients."""

import itertools

import pytest
import torch
from benchmarks.byzantine import ATTACKS, Byzantine

from fedapm.core.algorithm import NUMBERS, State, Upload
from fedapm.core.vec import Vec
from fedapm.experiments.settings import Experiment
from fedapm.simulation.engines.processes import ProcessEngine
from fedapm.simulation.engines.sequential import SequentialEngine
from fedapm.simulation.engines.vectorized import VectorizedEngine
from fedapm.simulation.loop import Schedule
from fedapm.simulation.sampling import Sampling
from fedapm.uploads.robust import GeometricMedian, TrimmedMean
from tests.helpers.problems import Watcher
from tests.helpers.running import play
from tests.helpers.unit import refused
from tests.uploads.small import CLIENTS, SENDING, problem_of, run, sending, stopped_and_resumed
from tests.uploads.test_invariant import HOLDING, held_and_kept

RULES = {
    "trimmed": {"aggregate": "trimmed-mean", "trim": 0.3},
    "median": {"aggregate": "geometric-median"},
    "centered": {"aggregate": "centered-clipping", "clip": 0.05},
    "limit": {"norm_limit": 3.0},
    "all": {"aggregate": "trimmed-mean", "norm_limit": 5.0, "compress": "top-k", "keep": 0.3, "round_to": "int8"},
    "centered, coded": {"aggregate": "centered-clipping", "clip": 0.05, "round_to": "int8"},
}
CARRYING = sorted(set(SENDING) - {"scaffold"})
ROUNDS = 4


def test_a_trimmed_mean_by_hand():
    messages = torch.tensor([[1.0, -9.0], [2.0, 5.0], [3.0, 6.0], [100.0, 7.0], [-50.0, 8.0]], dtype=torch.float64)
    counted = TrimmedMean(0.2).counted(messages)
    assert counted.mean(0).tolist() == [2.0, 6.0]
    # what is left out becomes the mean, everything else stays
    assert counted.tolist() == [[1.0, 6.0], [2.0, 5.0], [3.0, 6.0], [2.0, 7.0], [2.0, 6.0]]


def test_a_geometric_median_by_hand_and_by_its_definition():
    corners = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1e6], [0.0, -2.0]], dtype=torch.float64)
    assert GeometricMedian().counted(corners).mean(0) == pytest.approx([0.0, 0.0], abs=1e-6)
    messages = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = GeometricMedian().counted(messages).mean(0)

    def far(point):
        return float(torch.linalg.vector_norm(messages - point, dim=1).sum())

    for step in itertools.product((-1e-3, 0.0, 1e-3), repeat=3):
        assert far(found) <= far(found + torch.tensor(step)) + 1e-12


@pytest.mark.parametrize("rule", [TrimmedMean(0.25), GeometricMedian()])
def test_the_order_of_clients_does_not_matter_and_few_cannot_move_a_mean_far(rule):
    messages = torch.randn(10, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    counted = rule.counted(messages)
    assert rule.counted(messages.flip(0)).flip(0) == pytest.approx(counted, abs=1e-9)
    for bad in (1e3, 1e30, -1e300):
        moved = torch.cat([messages[:8], torch.full((2, 4), bad, dtype=torch.float64)])
        assert float(rule.counted(moved).mean(0).abs().max()) < float(messages[:8].abs().max())
    assert torch.equal(rule.counted(messages[:1]), messages[:1])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("which", ["fedapm", "fedapm, κ", "fedapm-paper", "fedadmm, all"])
def test_the_server_holds_the_mean_of_what_clients_keep(which, rule):
    method = sending(which.partition(",")[0], RULES[rule], **HOLDING[which])
    problem = problem_of(method, ROUNDS)
    engine = SequentialEngine(problem, method)
    seen = []

    class Look(Watcher):
        def on_server_update(self, state, record):
            states = [engine.store.get(k).state for k in range(CLIENTS)]
            held, kept = held_and_kept(method, state.server, states)
            seen.append(max(float((held[n] - kept[n]).abs().max()) for n in held))

    _, records = play(problem, method, Schedule(ROUNDS, Sampling(0.7), 10**9), [Look([], engine)], engine)
    assert len(seen) == ROUNDS + 1
    assert max(seen) < 1e-12
    if rule in ("trimmed", "median"):  # clients are told, which costs bytes
        assert records[-1]["bytes_down"] > problem.u0.nbytes * 4


@pytest.mark.parametrize("rule", ["trimmed", "centered"])
@pytest.mark.parametrize("name", CARRYING)
def test_every_method_runs_on_every_engine(name, rule, tmp_path):
    method = sending(name, RULES[rule], **({"max_epochs": 2} if name == "fedapm-paper" else {}))
    one, records = run(method, 2, 0.7)
    side, _ = run(method, 2, 0.7, kind=VectorizedEngine)
    assert all((vector - side.server[field]).norm() < 1e-7 for field, vector in one.server.vectors.items())
    if name in ("fedapm", "fedavg"):
        many, others = run(method, 2, 0.7, kind=lambda problem, method: ProcessEngine(problem, method, 2))
        assert same(one.server, many.server)
        assert records == others


@pytest.mark.parametrize("rule", ["median", "centered", "limit"])
def test_a_run_goes_on_to_the_bit(rule, tmp_path):
    method = sending("fedapm", RULES[rule])
    whole, _ = run(method, 4)
    resumed = stopped_and_resumed(method, 2, 4, tmp_path)
    assert same(whole.server, resumed.server)


def test_nothing_is_trimmed_where_all_agree():
    """Messages that are equal are counted as they are: a robust mean is then the plain one."""
    for rule in (TrimmedMean(0.25), GeometricMedian()):
        messages = torch.randn(1, 50, dtype=torch.float64).expand(6, 50)
        assert rule.counted(messages.clone()) == pytest.approx(messages, abs=1e-12)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("rule", ["trimmed", "median", "centered"])
def test_one_hostile_client_of_six_moves_the_model_a_little_at_most(rule, attack):
    honest, _ = run(sending("fedapm", RULES[rule]), 5, 1.0)
    robust, _ = run(Byzantine(sending("fedapm", RULES[rule]), frozenset([2]), attack), 5, 1.0)
    plain, _ = run(Byzantine(sending("fedapm", {}), frozenset([2]), attack), 5, 1.0)
    moved = (honest.server.u - problem_of(sending("fedapm", {})).u0).norm()
    away, ruined = ((end.server.u - honest.server.u).norm() for end in (robust, plain))
    assert away < moved
    assert ruined > 4 * away


@pytest.mark.parametrize("beside", [{}, {"aggregate": "centered-clipping", "clip": 0.05}])
def test_a_message_that_is_far_too_long_counts_as_never_sent(beside):
    """Also where it would be clipped to an ordinary length otherwise."""
    honest = sending("fedapm", {"norm_limit": 10.0, **beside})
    for kind in (SequentialEngine, VectorizedEngine):
        end, records = run(Byzantine(honest, frozenset([2]), "scale"), 4, 0.7, kind=kind)
        assert [record["dropped"] for record in records[1:]] == [[2] if 2 in r["selected"] else [] for r in records[1:]]
        assert any(record["dropped"] for record in records)
        assert end.server.pi.norm() < 1


def test_a_hostile_client_cannot_forge_the_unit_of_centered_clipping():
    method = sending("fedapm", RULES["centered"])
    u0 = Vec({"w": torch.zeros(3, dtype=torch.float64)})
    server = method.server_init(u0)
    uploads = [
        Upload({"change": Vec({"w": torch.full((3,), v, dtype=torch.float64)}), NUMBERS: said(unit)})
        for v, unit in ((0.01, 1.0), (0.02, 1.0), (1e9, 1e-30))
    ]
    counted = method.counted(server, uploads)
    assert [float(u.sums[NUMBERS]["unit"]) for u in counted] == [1.0, 1.0, 1.0]
    assert counted[2].sums["change"].norm() == pytest.approx(0.05)
    assert counted[0] is uploads[0]


def said(unit: float) -> Vec:
    return Vec({name: torch.tensor([v], dtype=torch.float64) for name, v in (("rho", 1), ("kappa", 1), ("unit", unit))})


def test_what_cannot_be_robust_is_refused():
    for tables, *mentions in (
        ({"algorithm": {"name": "scaffold"}, "upload": {"aggregate": "trimmed-mean"}}, "SCAFFOLD has 2"),
        ({"algorithm": {"name": "local"}, "upload": {"aggregate": "trimmed-mean"}}, "sends nothing"),
        ({"engine": {"weights": "samples"}, "upload": {"aggregate": "geometric-median"}}, "engine.weights"),
        ({"algorithm": {"rho": "balanced"}, "upload": {"norm_limit": 5.0}}, "balanced", "upload.norm_limit"),
        ({"upload": {"aggregate": "centered-clipping"}}, "upload.clip"),
        ({"upload": {"aggregate": "centered-clipping", "clip": 1.0, "broadcast": "int8"}}, "upload.broadcast"),
        ({"upload": {"trim": 0.1}}, "upload.trim"),
        ({"upload": {"aggregate": "trimmed-mean", "trim": 0.5}}, "upload.trim", "less than 0.5"),
        ({"privacy": {"epsilon": 8.0}, "upload": {"aggregate": "trimmed-mean"}}, "robust mean", "[privacy]"),
    ):
        with refused(*mentions):
            Experiment.from_tables(tables)
    assert Experiment.from_tables({"upload": {"aggregate": "mean"}}).method.plain.name == "fedapm"


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(v.equal(b[k]) if isinstance(v, Vec) else v == b[k] for k, v in a.items())
