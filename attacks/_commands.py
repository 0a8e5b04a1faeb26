"""The commands that are attacked: as small as they can be, each with every file it usually writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from attacks._child import command

TINY = [
    "--data=digits",
    "--set=data.clients=2",
    "--set=data.train_limit=8",
    "--set=data.test_limit=4",
    "--set=solver.epochs=1",
    "--set=engine.engine=sequential",
    "--set=engine.fraction=1.0",
    "--set=engine.final_personal_epochs=1",
]
ONE_FILE = "--set=engine.save_models=false"
STUDY = Path(__file__).with_name("study.toml")
COMPARE = ("compare", *TINY, ONE_FILE, "--rounds=1", "--methods=fedapm,local", "--seeds=0")
SWEEP = ("sweep", *TINY, ONE_FILE, "--rounds=1", "--methods=local", "--seeds=0", "--vary=solver.lr=0.1,0.2")
TUNE = (
    "tune", *TINY, "--set=data.train_limit=24", "--rounds=1", "--methods=local", "--trials=2",
    "--search=solver.lr=0.1,0.2", "--pruner=none",
)  # fmt: skip


@dataclass(frozen=True)
class Attacked:
    """A command, and the one that goes on after it was cut off."""

    name: str
    arguments: tuple[str, ...]
    again: tuple[str, ...] = ()

    def begin(self, out: Path) -> Callable[[], None]:
        """The command."""
        return command(*self.arguments, f"--out={out}")

    def resume(self, out: Path) -> Callable[[], None]:
        """The command that goes on from there: mostly the same."""
        return command(*self.arguments, *self.again, f"--out={out}")


COMMANDS = (
    Attacked("run", ("run", *TINY, "--rounds=2", "--set=engine.checkpoint_every=1"), ("--resume",)),
    Attacked(
        "run, clients on disk",
        ("run", *TINY, "--rounds=2", "--set=engine.checkpoint_every=1", "--set=engine.store=disk"),
        ("--resume",),
    ),
    Attacked("compare", (*COMPARE, "--workers=1")),
    Attacked("sweep", (*SWEEP, "--workers=1")),
    # with fewer layers to train there are fewer candidates: five of them, of which three are tried a second time
    Attacked(
        "split",
        (
            "split",
            *TINY,
            "--rounds=1",
            "--budget=6",
            "--seeds=0",
            "--set=data.train_limit=24",
            '--set=model.frozen=["stem.*"]',
        ),
    ),
    Attacked("tune", (*TUNE, "--workers=1")),
    Attacked("study", ("study", str(STUDY), "--workers=1")),
)
SIDE_BY_SIDE = (
    Attacked("compare, side by side", (*COMPARE, "--workers=2")),
    Attacked("sweep, side by side", (*SWEEP, "--workers=2")),
    Attacked("tune, side by side", (*TUNE, "--workers=2")),
    Attacked("study, side by side", ("study", str(STUDY), "--workers=2")),
)
"""The same where the work is done in worker processes."""
