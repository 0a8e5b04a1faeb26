"""Robust means on Flower: clients are told what was counted, whatever is lost, and hostile ones do little."""

import pytest
import torch

from fedapm.flower.server.checkpoint import ServerCheckpoints, read_checkpoint
from fedapm.flower.server.contributions import Contributions
from fedapm.flower.transport import codec
from fedapm.runs.layout import CORRECTIONS
from tests.flower.cases import CLIENTS, Case, dropped, gap, same
from tests.flower.grid import Carried
from tests.flower.invariant import TINY, kept_mean, selected
from tests.flower.test_lost_state import early, losing
from tests.flower.test_uploads import failing

TRIMMED = {"aggregate": "trimmed-mean", "trim": 0.25}
RULES = [
    ("fedapm", TRIMMED),
    ("fedapm", {"aggregate": "geometric-median", "round_to": "int8", "broadcast": "bf16"}),
    ("fedapm-paper", TRIMMED),
    ("fedadmm", {"aggregate": "centered-clipping", "clip": 0.05}),
    ("fedalt", {"aggregate": "geometric-median"}),
]
ROUNDS = 6


def corrected(case: Case, saved) -> dict:
    """The clients' states as they go on from them: with what they are told about their last message."""
    method, files = case.plan.experiment.method, Contributions(case.out / CORRECTIONS, ())
    states = case.acknowledged(saved)
    for k, client in enumerate(CLIENTS):
        if file := saved.ledger.entry(k).correction:
            states[client] = method.corrected(states[client], files.read(file))
    return states


@pytest.fixture
def looked(monkeypatch):
    """The invariant, looked at whenever a round's result is in place; the case is given later."""
    seen, about, original = [], [], ServerCheckpoints.save

    def save(self, folder, progress, ledger, record):
        original(self, folder, progress, ledger, record)
        saved = read_checkpoint(folder / f"round-{progress.round:06d}.safetensors")
        held, expected = kept_mean(about[0], progress.server, corrected(about[0], saved))
        assert gap(held, expected) < TINY, f"round {progress.round}"
        seen.append(progress.round)

    monkeypatch.setattr(ServerCheckpoints, "save", save)
    return about, seen


def assert_as_in_one_process(case: Case, records) -> None:
    end, expected = case.sequential(dropped(records))
    assert same(case.saved().state.server, end.server)
    assert [r["bytes_down"] for r in records if not dropped(records)] == [
        r["bytes_down"] for r in expected if not dropped(records)
    ]
    for k, state in enumerate(corrected(case, case.saved()).values()):
        assert same(state, end.store.get(k).state), CLIENTS[k]


@pytest.mark.parametrize(("name", "upload"), RULES)
def test_clients_keep_what_was_counted_whatever_is_lost(tmp_path, looked, monkeypatch, name, upload):
    more = {"algorithm": {"name": name, "max_epochs": 2}} if name == "fedapm-paper" else {}
    flower = {"timeout": 2.0, "retries": 0}
    case = Case.of(tmp_path, name, upload=upload, engine={"rounds": ROUNDS}, flower=flower, **more)
    case.grid.fate, missed = failing(case)
    about, seen = looked
    about.append(case)
    if name == "fedalt":  # its server holds no mean, and its clients keep nothing of what they sent
        monkeypatch.undo()
    records = case.serve()
    assert seen == ([] if name == "fedalt" else [*range(ROUNDS + 1)])
    assert dropped(records) == missed
    assert_as_in_one_process(case, records)


def test_a_lost_client_takes_back_what_was_counted(tmp_path, looked):
    case = Case.of(tmp_path, upload=TRIMMED, engine={"rounds": 6}, flower={"lost": "readmit"})
    about, seen = looked
    about.append(case)
    losing(case, early(case), after=2)
    case.serve()
    assert seen == [*range(7)]
    assert any("begins anew" in what for _, _, what in case.events())


def test_a_hostile_node_moves_the_model_a_little_at_most(tmp_path):
    """A message turned round and ten times as long, which the limit on norms lets pass."""
    ends = {}
    for which, upload in {"plain": {}, "robust": {"aggregate": "geometric-median"}}.items():
        for hostile in (False, True):
            engine = {"rounds": 2, "fraction": 1.0}
            case = Case.of(tmp_path / f"{which}-{hostile}", upload=upload, engine=engine, flower={"norm_limit": 1e3})

            def fate(carried: Carried):
                if carried.client != CLIENTS[1] or carried.trains is None:
                    return None
                note, tensors = carried.answered()
                turned = {n: t if t.numel() == 1 else -10 * t for n, t in tensors.items()}
                return [carried.replaced(note, turned)]

            if hostile:
                case.grid.fate = fate
            case.serve()
            ends[which, hostile] = case.saved().state.server.u
    away = {which: (ends[which, True] - ends[which, False]).norm() for which in ("plain", "robust")}
    assert away["plain"] > 4 * away["robust"]


def test_a_forged_correction_is_refused_by_the_node(tmp_path):
    case = Case.of(tmp_path, upload=TRIMMED, engine={"rounds": 3})
    twice = next(client for client in selected(case, 3) if client in selected(case, 2))
    original, forged = case.grid._run, []

    def run(message):
        asked, tensors = codec.decode(message.content)
        if asked.get("client") == twice and asked.get("train") == 3:
            bad = {n: t * torch.nan if n.startswith("correction/") else t for n, t in tensors.items()}
            message.content = codec.records(asked, codec.block(bad))
            forged.append(sum(n.startswith("correction/") for n in tensors))
        original(message)

    case.grid._run = run
    records = case.serve()
    assert forged
    assert forged[0] > 0
    assert dropped(records) == {3: [CLIENTS.index(twice)]}
    assert any("correction of what was sent is not finite" in what for _, _, what in case.events())
