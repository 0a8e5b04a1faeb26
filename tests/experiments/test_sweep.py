"""Sweeps: which runs they consist of, where these lie, and that nothing finished is done again."""

from __future__ import annotations

import json
import logging
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapm import FedapmError
from fedapm.core.record import RoundRecord
from fedapm.errors import Interrupted
from fedapm.experiments import build, sweep
from fedapm.experiments.run import execute
from fedapm.experiments.sweep import MANY, Member, members, run_all
from fedapm.experiments.vary import Axis, parse_vary, shown_value, value_text
from fedapm.runs.records import load_run
from fedapm.simulation.loop import Callback
from fedapm.simulation.spec import RunSpec
from fedapm.simulation.state import RunState
from tests.cli.test_cli import content
from tests.helpers.cli import QUICK, assert_refused, fedapm
from tests.helpers.unit import few, refused

TINY = {"data": {"clients": 4}, "engine": {"rounds": 2, "fraction": 0.5}}
SWEEP = [
    "sweep",
    "--vary",
    "algorithm.rho=0.01,1",
    "--methods",
    "fedapm,fedavg",
    "--seeds",
    "0",
    "--rounds",
    "2",
    *QUICK,
]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty working folder."""
    folder = tmp_path_factory.mktemp("here")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep, only to be read."""
    folder = tmp_path_factory.mktemp("sweep") / "rho"
    outcome = fedapm(*SWEEP, "--out", folder)
    assert outcome.code == 0, outcome.err
    assert f"Report: {folder / 'report.html'}" in outcome.out
    assert "algorithm.rho = 0.01, FedAPM, seed 0: " in outcome.err
    return folder


@pytest.fixture
def own(swept: Path, tmp_path: Path) -> Path:
    """The sweep as a copy that may be changed."""
    return Path(shutil.copytree(swept, tmp_path / "rho"))


@pytest.mark.parametrize(
    ("text", "setting", "values"),
    [
        ("algorithm.rho=0.001,0.01", "algorithm.rho", (0.001, 0.01)),
        (" engine.fraction = 0.1, 1 ", "engine.fraction", (0.1, 1)),
        ("algorithm.v_at=local,shared", "algorithm.v_at", ("local", "shared")),
        ('algorithm.v_at="local","shared"', "algorithm.v_at", ("local", "shared")),
        ("model.personal=['head'],['head','body']", "model.personal", (["head"], ["head", "body"])),
        ("engine.stationarity=true,false", "engine.stationarity", (True, False)),
        ("model.options.width=32,64", "model.options.width", (32, 64)),
        ("fedapm.sigma=0", "fedapm.sigma", (0,)),
        ("a.b=x] # ,2", "a.b", ("x] #", 2)),
        ("a.b=1]\nc=[2", "a.b", ("1]\nc=[2",)),
    ],
)
def test_what_is_varied_is_read(text: str, setting: str, values: tuple[Any, ...]) -> None:
    assert parse_vary(text) == Axis(setting, values)


@pytest.mark.parametrize(
    ("text", "mention"),
    [
        ("algorithm.rho", "table.key"),
        ("rho=1,2", "table.key"),
        ("algorithm/rho=1", "table.key"),
        ("algorithm.rho=", "no values"),
        ("algorithm.rho=,", "no values"),
        ("algorithm.rho=1,1.0", "twice"),
        ("algorithm.rho=a,a", "twice"),
        ("algorithm.rho=nan,1", "nan"),
        ("algorithm.rho=inf", "inf"),
        ("engine.seed=1,2", "--seeds"),
        ("algorithm.name=fedapm,fedavg", "--methods"),
    ],
)
def test_what_cannot_be_varied_is_refused(text: str, mention: str) -> None:
    with refused("--vary", mention):
        parse_vary(text)


@few
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.booleans(), min_size=1))
def test_numbers_come_back_as_they_were(values: list[Any]) -> None:
    distinct = list({(isinstance(v, bool), v): v for v in values}.values())
    text = ",".join(value_text(v) for v in distinct)
    assert parse_vary(f"a.b={text}").values == tuple(distinct)


@few
@given(st.lists(st.text() | st.lists(st.text(), max_size=2), min_size=2, max_size=4, unique_by=repr))
def test_a_value_is_a_folders_name_of_its_own(values: list[Any]) -> None:
    names = [value_text(value) for value in values]
    assert len(set(names)) == len(names)
    for name in names:
        assert Path("x", f"a.b={name}").name == f"a.b={name}"
        assert len(name) < 60
        assert "\0" not in name


def folders(runs: list[Member]) -> list[str]:
    return [run.folder.as_posix() for run in runs]


def test_all_combinations_are_run_and_a_method_without_the_setting_once() -> None:
    axes = [Axis("algorithm.rho", (0.1, 1)), Axis("engine.fraction", (0.5, 1.0))]
    found = members(axes, ["fedapm", "fedalt"], [0, 7], TINY)
    assert len(found) == 2 * 2 * 2 + 2 * 2
    assert len(set(folders(found))) == len(found)
    assert "algorithm.rho=0.1/engine.fraction=1.0/fedapm/seed-7" in folders(found)
    assert "engine.fraction=0.5/fedalt/seed-0" in folders(found)
    for run in found:
        assert run.settings.engine.fraction == run.values["engine.fraction"]
        assert run.settings.engine.seed in (0, 7)
        if run.settings.algorithm.name == "fedapm":
            assert getattr(run.settings.algorithm, "rho") == run.values["algorithm.rho"]  # noqa: B009


def test_a_methods_own_setting_leaves_the_others_alone() -> None:
    found = members([Axis("fedprox.mu", (0.1, 0.2))], ["fedprox", "fedapm"], [0], TINY)
    assert folders(found) == ["fedprox.mu=0.1/fedprox/seed-0", "fedapm/seed-0", "fedprox.mu=0.2/fedprox/seed-0"]
    assert [run.settings.tables()["algorithm"]["mu"] for run in found] == [0.1, 0.9, 0.2]


def test_what_is_varied_wins_over_a_methods_own_tables() -> None:
    tuned = {"fedapm": {"rho": 5.0, "solver": {"lr": 0.7}}}
    found = members([Axis("algorithm.rho", (0.1, 1))], ["fedapm"], [0], TINY, tuned)
    assert [run.settings.tables()["algorithm"]["rho"] for run in found] == [0.1, 1.0]
    assert [run.settings.solver.lr for run in found] == [0.7, 0.7]
    found = members([Axis("solver.lr", (0.1, 1))], ["fedapm"], [0], TINY, tuned)
    assert [run.settings.solver.lr for run in found] == [0.1, 1.0]


@pytest.mark.parametrize(
    ("axes", "mentions"),
    [
        ([], ["something to vary"]),
        ([Axis("algorithm.rho", (1,)), Axis("algorithm.rho", (2,))], ["algorithm.rho", "twice"]),
        ([Axis("algorithm.rh", (1,))], ["'algorithm.rh'", "'rho'"]),
        ([Axis("algorithm.lam", (1,))], ["'algorithm.lam'"]),
        ([Axis("fedprox.mu", (1,))], ["fedprox", "not among the methods"]),
        ([Axis("fedapm.rho", (1, 2)), Axis("algorithm.rho", (3,))], ["same run"]),
        ([Axis("solver.lrr", (1,))], ["'solver.lrr'", "'lr'"]),
        ([Axis("solvre.lr", (1,))], ["[solvre]", "'solver'"]),
        ([Axis("solver.lr", (1, "much"))], ["solver.lr", "'much'"]),
        ([Axis("algorithm.rho", (1, -1))], ["algorithm.rho", "-1"]),
    ],
)
def test_what_no_method_can_do_is_refused(axes: list[Axis], mentions: list[str]) -> None:
    with refused(*mentions):
        members(axes, ["fedapm", "fedavg"], [0], TINY)


def test_a_share_of_clients_without_effect_is_not_varied() -> None:
    with refused("engine.count", "no effect"):
        members([Axis("engine.fraction", (0.5, 1))], ["fedapm"], [0], TINY, {"engine": {"count": 2}})


def test_a_sweep_leaves_a_folder_for_each_value_and_one_report(swept: Path) -> None:
    files = {"sweep.json", "report.html", "card.json", "card.md", "sessions.jsonl"}
    assert {p.name for p in swept.iterdir()} == {"algorithm.rho=0.01", "algorithm.rho=1", "fedavg"} | files
    assert all(load_run(p.parent).complete for p in swept.rglob("run.json"))
    assert "rho = 1.0" in load_run(swept / "algorithm.rho=1" / "fedapm" / "seed-0").config
    record = json.loads((swept / "sweep.json").read_text("utf-8"))
    assert record["vary"] == {"algorithm.rho": [0.01, 1]}
    assert record["runs"]["algorithm.rho=1/fedapm/seed-0"] == {"algorithm.rho": 1}
    assert record["runs"]["fedavg/seed-0"] == {}


def test_a_run_of_a_sweep_is_the_run_that_stands_alone(swept: Path, tmp_path: Path) -> None:
    alone = build.plan(build.resolve(TINY, {"algorithm": {"rho": 1}}))
    execute(alone, tmp_path / "one", progress=False)
    member = swept / "algorithm.rho=1" / "fedapm" / "seed-0"
    for name in ("config.toml", "rounds.jsonl"):
        assert (tmp_path / "one" / name).read_bytes() == (member / name).read_bytes()


def run_files(folder: Path) -> dict[Path, tuple[bytes, int]]:
    runs = [path.parent for path in folder.rglob("run.json")]
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for run in runs for p in run.rglob("*") if p.is_file()}


def test_sweeping_again_keeps_what_is_there_and_adds_what_is_new(own: Path) -> None:
    before = run_files(own)
    outcome = fedapm(*SWEEP, "--vary", "algorithm.rho=0.1", "--out", own)
    assert_refused(outcome, "algorithm.rho", "twice")
    outcome = fedapm(*[w.replace("=0.01,1", "=0.1,1") for w in SWEEP], "--out", own, "--json")
    assert outcome.code == 0, outcome.err
    assert before.items() <= run_files(own).items()
    assert "Run 1 of 3" in outcome.err
    assert "Run 2 of 3" not in outcome.err
    rows = json.loads(outcome.out)["rows"]
    assert [(row["label"], row["values"]) for row in rows] == [
        ("FedAPM", {"algorithm.rho": 0.01}),
        ("FedAPM", {"algorithm.rho": 0.1}),
        ("FedAPM", {"algorithm.rho": 1}),
        ("FedAvg", {}),
    ]
    assert all(row["state"] == "complete" and row["accuracy"]["mean"] > 0 for row in rows)
    assert json.loads((own / "sweep.json").read_text("utf-8"))["vary"] == {"algorithm.rho": [0.01, 0.1, 1]}


def test_other_settings_or_another_sweep_in_the_same_folder_are_refused(own: Path) -> None:
    before = content(own)
    assert_refused(fedapm(*SWEEP, "--set", "solver.lr=0.3", "--out", own), "solver.lr", "another folder")
    other = [word.replace("algorithm.rho", "solver.lr") for word in SWEEP]
    assert_refused(fedapm(*other, "--out", own), "algorithm.rho", "solver.lr", "another folder")
    assert content(own) == before
    (own / "sweep.json").write_text("[]")
    assert_refused(fedapm(*SWEEP, "--out", own), "sweep.json")
    (own / "sweep.json").write_text("{}")
    assert_refused(fedapm(*SWEEP, "--out", own), "sweep.json", "not the record of a sweep")


class StopRule(Callback):
    """Ctrl-C in a round of a run that is not the first."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, plan: RunSpec, folder: Path | None, last: int) -> Callback:
        self.runs += 1
        return self

    def on_round_end(self, state: RunState, record: RoundRecord, seconds: float) -> None:
        if self.runs == 2 and state.round == 1:
            signal.raise_signal(signal.SIGINT)

    def on_run_end(self, state: RunState, status: str) -> None:
        """Nothing to do."""


def test_an_interrupted_sweep_goes_on_and_ends_as_if_it_had_not_been(
    swept: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    axes = [Axis("algorithm.rho", (0.01, 1))]
    runs = members(axes, ["fedavg", "fedapm"], [0], TINY)
    with pytest.raises(Interrupted):
        run_all(axes, runs, tmp_path / "cut", progress=False, callbacks=[StopRule()])
    done = [load_run(path.parent).complete for path in sorted((tmp_path / "cut").rglob("run.json"))]
    assert sorted(done) == [False, True]
    with caplog.at_level(logging.INFO, "fedapm.experiments.sweep"):
        run_all(axes, runs, tmp_path / "cut", progress=False, workers=1)
    assert [line.split(":")[0] for line in caplog.messages] == ["Run 2 of 3", "Run 3 of 3"]
    for path in swept.rglob("rounds.jsonl"):
        assert (tmp_path / "cut" / path.relative_to(swept)).read_bytes() == path.read_bytes()


def test_a_value_that_diverges_is_shown_as_that_and_not_tried_again(tmp_path: Path) -> None:
    arguments = [
        "sweep",
        "--vary",
        "solver.lr=0.1,1e9",
        "--seeds",
        "0",
        "--rounds",
        1,
        *QUICK,
        "--out",
        tmp_path / "lr",
    ]
    outcome = fedapm(*arguments)
    assert outcome.code == 0
    assert "The sweep goes on without this run" in outcome.err
    lines = [line for line in outcome.out.splitlines() if "FedAPM" in line]
    assert ["diverged" in line for line in lines] == [False, True]
    before = run_files(tmp_path / "lr")
    outcome = fedapm(*arguments, "--json")
    assert [row["state"] for row in json.loads(outcome.out)["rows"]] == ["complete", "diverged"]
    assert run_files(tmp_path / "lr") == before


def test_a_sweep_over_data_has_clients_of_its_own_at_each_value(tmp_path: Path) -> None:
    arguments = ["--vary", "data.clients=3,5", "--seeds", "0", "--rounds", 1, "--methods", "local"]
    assert fedapm("sweep", *arguments, "--out", tmp_path / "c").code == 0
    counts = [len(load_run(tmp_path / "c" / f"data.clients={m}/local/seed-0").info["clients"]) for m in (3, 5)]
    assert counts == [3, 5]


def test_a_large_sweep_is_warned_of_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axes = [Axis("algorithm.rho", tuple(0.01 * i for i in range(1, MANY + 2)))]
    runs = members(axes, ["fedapm"], [0], TINY)

    def stop(message: str, *values: object) -> None:
        raise RuntimeError(message % values)

    monkeypatch.setattr(sweep.logger, "warning", stop)
    with pytest.raises(RuntimeError, match=f"{MANY + 1} runs"):
        run_all(axes, runs, tmp_path / "many", progress=False)
    assert not (tmp_path / "many").exists()


@pytest.mark.parametrize(
    ("arguments", "mentions"),
    [
        ([], ["--vary"]),
        (["--vary", "algorithm.rho"], ["--vary", "'algorithm.rho'"]),
        (["--vary", "algorithm.mu=1", "--methods", "fedavg"], ["'algorithm.mu'"]),
        (["--vary", "engine.fraction=0.5,2"], ["fraction", "2"]),
        (["--vary", "engine.fraction=0.5,0.7", "--methods", "fedamp"], ["'fedamp'", "'fedapm'"]),
        (["--vary", "engine.fraction=0.5,0.7", "--methods", ""], ["at least one method"]),
        (["--vary", "engine.fraction=0.5,0.7", "--seeds", "x"], ["--seeds", "'x'"]),
        (["--vary", "engine.fraction=0.5", "--log", "tensorbord"], ["'tensorbord'", "'tensorboard'"]),
        (["--vary", "model.options.width=8,16", "--set", "model.options.widht=3"], ["widht", "'width'"]),
        (["none.toml", "--vary", "engine.fraction=0.5"], ["none.toml"]),
        (["--vary", "engine.fraction=0.5", "--tuned", "nowhere"], ["nowhere"]),
    ],
    ids=lambda words: " ".join(words)[:60],
)
def test_mistakes_are_one_line_and_write_nothing(here: Path, arguments: list[str], mentions: list[str]) -> None:
    assert_refused(fedapm("sweep", *arguments), *mentions)
    assert list(here.iterdir()) == []


def test_tuned_settings_are_under_what_is_set_and_varied(tmp_path: Path) -> None:
    (tmp_path / "tuned.toml").write_text("[fedapm]\nrho = 0.5\nsigma = 0.25\n[fedapm.solver]\nlr = 0.01\nepochs = 1\n")
    arguments = ["--vary", "algorithm.rho=0.1", "--tuned", tmp_path / "tuned.toml", "--set", "solver.lr=0.02"]
    base = ["sweep", *arguments, "--seeds", "0", "--rounds", 1, *QUICK]
    outcome = fedapm(*base, "--out", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    config = load_run(tmp_path / "out" / "algorithm.rho=0.1" / "fedapm" / "seed-0").config
    for line in ("rho = 0.1", "sigma = 0.25", "lr = 0.02", "epochs = 1"):
        assert f"{line}\n" in config, line
    assert_refused(fedapm(*base, "--methods", "fedapm,fedavg", "--out", tmp_path / "two"), "tuned.toml", "fedavg")
    assert not (tmp_path / "two").exists()


def test_a_refused_plan_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    axes = [Axis("engine.count", (1, 99))]
    refuse: Callable[[], object] = lambda: run_all(  # noqa: E731
        axes, members(axes, ["fedapm"], [0], TINY), tmp_path / "x", progress=False
    )
    with pytest.raises(FedapmError, match="99"):
        refuse()
    assert not (tmp_path / "x").exists()


def test_a_split_is_shown_by_its_name_and_not_by_a_digest() -> None:
    axis = parse_vary('model.personal=["head"],["body","head"]')
    runs = members([axis], ["fedapm"], [0], TINY)
    assert [run.title for run in runs] == [
        "model.personal = head, FedAPM, seed 0",
        "model.personal = body + head, FedAPM, seed 0",
    ]
    assert shown_value("output") == "output"
    assert shown_value(0.1) == "0.1"
