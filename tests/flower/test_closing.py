"""The closing phase on Flower: nodes do it with the last evaluation, and keep nothing of it but the model."""

import pytest

from fedapm.runs.files import read_tensors
from tests.flower.cases import CLIENTS, Case, changed, same
from tests.flower.invariant import assert_as_in_one_process
from tests.flower.test_resume import assert_as_if_nothing_had_happened, serve_until_killed

EPOCHS = {"rounds": 2, "final_personal_epochs": 2}


@pytest.mark.parametrize("name", ["fedapm", "fedalt", "ditto", "fedrod", "lp-proj", "local"])
def test_it_is_what_one_process_gives(tmp_path, name):
    case = Case.of(tmp_path, name, engine={**EPOCHS, "rounds": 1})
    records = case.serve()
    assert_as_in_one_process(case, records)
    (*_, expected) = case.sequential()[1]
    assert records[-1]["closing"] == expected["closing"]
    assert [c.asked["closing"] for c in case.grid.carried if c.asked.get("round") == 1] == [2] * len(CLIENTS)
    assert not any(c.asked.get("closing") for c in case.grid.carried if c.asked.get("round") != 1)


def test_without_a_personal_part_nothing_is_asked(tmp_path):
    case = Case.of(tmp_path, "fedavg", engine=EPOCHS)
    assert "closing" not in case.serve()[-1]
    assert not any(c.asked.get("closing") for c in case.grid.carried)


def test_the_models_on_the_nodes_are_those_after_it(tmp_path):
    plain, closed = (
        Case.of(tmp_path / "plain", engine={"rounds": 2, "final_personal_epochs": 0}),
        Case.of(tmp_path / "closed", engine=EPOCHS),
    )
    for case in (plain, closed):
        case.serve()
    picture, _ = plain.sequential()
    for k, name in enumerate(CLIENTS):
        files = [next(c.grid.state.glob(f"{100 + k}/*/*/model.safetensors")) for c in (plain, closed)]
        before, after = (read_tensors(path)[0] for path in files)
        assert after["body.weight"].equal(picture.server.u["body.weight"]), "solved at ū, evaluated at ū"
        assert not after["head.weight"].equal(before["head.weight"]), name
    for ours, theirs in zip(closed.acknowledged().values(), plain.acknowledged().values(), strict=True):
        assert same(ours, theirs)


def test_killed_in_it_the_server_asks_again(tmp_path):
    case = Case.of(tmp_path, engine=EPOCHS)
    serve_until_killed(case, lambda carried: carried.asked.get("closing") and carried.client == CLIENTS[2])
    assert_as_if_nothing_had_happened(case)


def test_a_longer_run_goes_on_without_it(tmp_path):
    case = Case.of(tmp_path, engine={**EPOCHS, "rounds": 1})
    case.serve()
    assert_as_if_nothing_had_happened(changed(case, engine={"rounds": 2}))


def test_it_may_be_added_to_a_finished_run(tmp_path):
    case = Case.of(tmp_path, engine={"rounds": 2, "final_personal_epochs": 0})
    case.serve()
    assert_as_if_nothing_had_happened(changed(case, engine=EPOCHS))


def test_a_client_that_is_away_has_no_score(tmp_path):
    case = Case.of(tmp_path, engine=EPOCHS)
    case.grid.fate = lambda carried: [] if carried.asked.get("closing") and carried.client == "west" else None
    last = case.serve()[-1]
    west = CLIENTS.index("west")
    for evaluations in (last["evaluations"], last["closing"]["before"]):
        values = evaluations["model"]["per_client"]["accuracy"]
        assert [value is None for value in values] == [k == west for k in range(len(CLIENTS))]
