"""Flower's own programs on this machine, with TLS and keys, and what is left when they are killed."""

import json

import pytest

from fedapm.flower.local import federation as local
from fedapm.flower.local.certificates import write_certificates, write_key
from fedapm.flower.local.processes import Process, at_home, stop
from tests.flower.real import PATIENCE, differences, fedapm, kill, rounds, server_process, wait_for

pytestmark = pytest.mark.deployment

NODES, ROUNDS = 2, 1
CONFIG = """
[data]
name = "digits"
clients = 2
[solver]
epochs = 1
[engine]
rounds = 1
seed = 1
fraction = 1.0
[flower]
minimum = 1
timeout = 90.0
retries = 3
wait = 200.0
"""


MASKED = """
[data]
name = "digits"
clients = 3
[solver]
epochs = 1
[engine]
rounds = 2
fraction = 1.0
[upload]
mask = true
mask_threshold = 2
[flower]
timeout = 300.0
wait = 300.0
"""
PRIVATE = """
[privacy]
noise = "keyed"
clip = 0.5
samples = 60
"""


@pytest.fixture
def federation(tmp_path):
    made = local.up(tmp_path / "federation", NODES, lambda *_: None)
    extra: list[Process] = []
    yield made, extra
    stop(extra)
    assert local.down(made.folder) > NODES
    assert at_home(made.folder) == []


def test_killed_programs_leave_no_trace_in_the_result(tmp_path, federation):
    """The server's process in the middle of a round; ``make attack`` kills every program, at twenty random moments."""
    made, extra = federation
    out, config = tmp_path / "run", tmp_path / "experiment.toml"
    config.write_text(CONFIG)

    # strangers: a key nobody registered, and a node that trusts another authority
    write_key(tmp_path / "stranger")
    write_certificates(tmp_path / "other")
    stranger = local.start_node(made, 7, key=tmp_path / "stranger")
    known = local.node_key(made.folder, 0)
    distrusting = local.start_node(made, 8, key=known, authority=tmp_path / "other" / "ca.crt")
    extra += [stranger, distrusting]

    first = fedapm("run", config, "--folder", made.folder, "--out", out)
    wait_for(lambda: len(rounds(out)) >= 1)
    server = server_process(made)
    assert server is not None
    kill(server.pid)
    _, said = first.communicate(timeout=PATIENCE)
    assert first.returncode == 2, said
    assert "the same command goes on" in said or "ended early" in said

    second = fedapm("run", config, "--folder", made.folder, "--out", out, "--json")
    answer, said = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, said
    found = json.loads(answer)["clients"]
    assert [row["client"] for row in found] == ["0", "1"]
    assert all(row["accuracy"] is not None for row in found)

    # nobody else was let in
    assert not stranger.alive
    log = local.log_file(made.folder, "node-7").read_text(errors="replace")
    assert "Failed to initialize the connection" in log
    assert "certificate verify failed" in local.log_file(made.folder, "node-8").read_text(errors="replace").lower()
    assert local.online(made) <= NODES

    # one process, with the same clients present in the same rounds, ends at the same place to the bit
    assert [r["round"] for r in rounds(out)] == list(range(ROUNDS + 1))
    assert differences(made, out) == []


@pytest.mark.slow
def test_masks_alone_and_with_noise_on_their_sums(tmp_path):
    """Keys are signed by the SuperNodes' own; what the server makes of the sums is what one process makes."""
    made = local.up(tmp_path / "federation", 3, lambda *_: None)
    try:
        for name, tables in {"masked": MASKED, "private": MASKED + PRIVATE}.items():
            out, config = tmp_path / name, tmp_path / f"{name}.toml"
            config.write_text(tables)
            run = fedapm("run", config, "--folder", made.folder, "--out", out)
            _, said = run.communicate(timeout=3 * PATIENCE)
            assert run.returncode == 0, said
            assert [record["dropped"] for record in rounds(out)] == [[], [], []]
            assert differences(made, out) == []
            scores = rounds(out)[-1]["evaluations"]["model"]["per_client"]["accuracy"]
            assert [score is None for score in scores] == [name == "private"] * 3
        for k in range(3):
            (known,) = (made.folder / "nodes" / str(k) / "state" / "known-keys").glob("*.json")
            signers = json.loads(known.read_text())
            assert len({*signers.values()} - {""}) == 3
    finally:
        local.down(made.folder)
    assert at_home(made.folder) == []
