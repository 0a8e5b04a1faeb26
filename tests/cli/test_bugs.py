"""What people stumbled over: each has its test."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import fedapm
from fedapm import Callback, FedapmError, Federation, Interrupted
from fedapm.cli.tables import _seeds
from fedapm.report import summary_table, write_report
from fedapm.runs.files import write_atomic
from fedapm.runs.records import find_runs, load_run
from tests.helpers.cli import assert_refused
from tests.helpers.cli import fedapm as command
from tests.helpers.own import arrays
from tests.helpers.unit import refused

GIVEN = arrays()
FEDERATION = Federation.from_arrays(GIVEN["x"], GIVEN["y"], GIVEN["client"], name="people")
QUICK: dict[str, Any] = {"personal": ["bias"], "rounds": 2, "fraction": 0.5, "epochs": 1, "final_personal_epochs": 0}


def net() -> nn.Module:
    return nn.Linear(5, 3)


class CtrlC(Callback):
    """A user who loses patience after the first round."""

    def on_round_end(self, state: Any, record: Any, seconds: float) -> None:
        if state.round == 1:
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_is_not_swallowed_with_errors_and_loses_nothing(tmp_path):
    assert not issubclass(Interrupted, FedapmError)
    with pytest.raises(Interrupted, match="result") as caught:
        fedapm.train(FEDERATION, net, callbacks=[CtrlC()], **(QUICK | {"rounds": 5}))
    partial = caught.value.result
    assert [record["round"] for record in partial.records] == [0, 1]
    assert partial.predict("ann", GIVEN["x"][:2]).shape == (2, 3)
    with pytest.raises(Interrupted) as caught:
        fedapm.train(FEDERATION, net, callbacks=[CtrlC()], out=tmp_path / "r", **(QUICK | {"rounds": 5}))
    assert caught.value.result is None
    assert len(fedapm.train(FEDERATION, net, out=tmp_path / "r", resume=True, **(QUICK | {"rounds": 5})).records) == 6


def test_folders_may_be_given_as_text_and_advice_fits_python(tmp_path):
    fedapm.train(FEDERATION, net, out=tmp_path / "r", **QUICK)
    folder = str(tmp_path / "r")
    assert load_run(folder).label == find_runs(folder)[0].label == "FedAPM"
    assert write_report(folder, str(tmp_path / "r.html")).is_file()
    with refused("solver.lr", "train(…, resume=True)"):
        fedapm.train(FEDERATION, net, out=folder, resume=True, lr=0.7, **QUICK)


def test_methods_with_fewer_seeds_are_named(tmp_path):
    fedapm.compare(FEDERATION, net, ["fedavg"], (0, 1, 2), out=tmp_path, **QUICK)
    fedapm.compare(FEDERATION, net, ["fedprox"], (0,), out=tmp_path, **QUICK)
    rows = summary_table(find_runs(tmp_path))
    assert _seeds(rows) == "mean ± standard deviation over 3 seeds, but FedProx: 1 seed"
    assert _seeds([row for row in rows if len(row.seeds) == 3]) == "mean ± standard deviation over 3 seeds"
    shown = command("report", tmp_path)
    assert "FedProx: 1 seed" in " ".join(shown.out.split())


def test_a_mistyped_command_or_option_has_one_suggestion_first():
    unknown = command("runn")
    assert unknown.err.count("'run'") == 1
    assert_refused(unknown, "'runn'", "'run'")
    assert_refused(command("run", "--round", 3), "No such option '--round'; did you mean '--rounds'")
    assert_refused(command("data", "inspekt"), "'inspect'")


def test_a_file_that_may_not_be_written_is_named_and_not_a_temporary_one(tmp_path, monkeypatch):
    def denied(**_: Any) -> Any:
        raise PermissionError(13, "Permission denied", "/somewhere/.report.html.xyz.tmp")

    monkeypatch.setattr("fedapm.runs.files.tempfile.mkstemp", denied)
    with pytest.raises(PermissionError) as caught:
        write_atomic(tmp_path / "report.html", "x")
    assert Path(caught.value.filename) == tmp_path / "report.html"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_export_and_report_without_permission_name_the_file(tmp_path):
    fedapm.train(FEDERATION, net, out=tmp_path / "r", **QUICK)
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    outcome = command("export", tmp_path / "r", "--client", "ann", "--out", locked / "m.safetensors")
    assert_refused(outcome, "m.safetensors")
    assert ".tmp" not in outcome.err
