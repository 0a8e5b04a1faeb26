"""Answers of another form than the method's are named and left out."""

import pytest
import torch

from tests.flower.cases import CLIENTS, Case, dropped
from tests.flower.grid import Carried
from tests.flower.invariant import assert_as_in_one_process, checked, in_round, selected


def cut(note, tensors):
    name = next(iter(tensors))
    return note, {**tensors, name: tensors[name][:-1].clone()}


def renamed(note, tensors):
    name = next(iter(tensors))
    return note, {(f"{n}x" if n == name else n): t for n, t in tensors.items()}


def wide(note, tensors):
    return note, {**tensors, "sums/other/body.weight": torch.ones(3)}


def scalar(note, tensors):
    name = max(tensors, key=lambda n: tensors[n].numel())
    return note, {**tensors, name: tensors[name].sum()[None]}


def coarse(note, tensors):
    return note, {n: t.float() for n, t in tensors.items()}


def heavy(note, tensors):
    return {**note, "trained": {**note["trained"], "weight": -1.0}}, tensors


def empty(note, tensors):
    return {**note, "trained": None}, {}


@pytest.mark.parametrize("spoil", [cut, renamed, wide, scalar, coarse, heavy, empty])
def test_replies_of_another_form_are_named_and_left_out(tmp_path, monkeypatch, spoil):
    case = Case.of(tmp_path, engine={"rounds": 3})
    who = selected(case, 2)[1]

    def fate(carried: Carried):
        return [carried.replaced(*spoil(*carried.answered()))] if in_round(2, who)(carried) else None

    case.grid.fate = fate
    with checked(case, monkeypatch):
        records = case.serve()
    assert dropped(records) == {2: [CLIENTS.index(who)]}
    assert [client for round, client, _ in case.events() if round == 2] == [who]
    assert_as_in_one_process(case, records)
