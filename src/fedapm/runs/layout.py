"""Every file and folder name below a folder of results. docs/reference/run-folder.md says what each holds."""

from __future__ import annotations

from pathlib import Path

# any folder of results
REPORT = "report.html"
CARD = "card.json"
CARD_TEXT = "card.md"
SESSIONS = "sessions.jsonl"
LOCK = ".{name}.lock"
"""Beside the folder of that name, which may not exist yet."""

# a run
INFO = "run.json"
CONFIG = "config.toml"
ENGINE = "engine.json"
ROUNDS = "rounds.jsonl"
TIMINGS = "timings.jsonl"
THEORY = "theory.json"
CHECKPOINTS = "checkpoints"
ROWS = "rows"
"""Below the checkpoints: the clients' states, where they are kept on disk."""
MODELS = "models"
UNSEEN = "unseen.json"
CLASSES = "classes.json"
PRIVACY = "privacy.json"
TRANSFORM = "transform.pt"
"""What turns raw inputs into those of the network, where it is a scripted module."""
LOGS = "logs"
TENSORBOARD = Path(LOGS) / "tensorboard"
MLFLOW = Path(LOGS) / "mlflow.json"

SPLIT = "split"
"""The search of the split, where the run began with one."""

# what a comparison, a sweep, a search or a paper has beside its runs
COMPARE_INFO = "compare.json"
SWEEP_INFO = "sweep.json"
TUNE_INFO = "tune.json"
SPLIT_INFO = "split.json"
PAPER_INFO = "paper.json"
STUDY_INFO = "study.json"
MLFLOW_DATABASE = "mlflow.db"
MLFLOW_ARTIFACTS = "mlflow-artifacts"

# a search
TUNED = "tuned.toml"
TRIALS = "trials"
TRIALS_DATABASE = "trials.db"

# a search of the split
CANDIDATES = "candidates"
ALTERNATIVES = "alternatives"
ALTERNATIVES_INFO = "alternatives.json"
SPLIT_PICTURE = "split.png"

# the steps of a paper
PAPER_TUNE = "tune"
PAPER_COMPARE = "compare"
PAPER_RHO = "rho"
PAPER_FRACTION = "fraction"

# a study: one folder a case, in it one a cohort, in that these
STUDY_SPLIT = "split"
STUDY_TUNE = "tune"
STUDY_COMPARE = "compare"
STUDY_SWEEPS = "sweeps"
STUDY_CHOICE = "choice.json"
SUMMARY = "summary.csv"
SWEEPS = "sweeps.csv"
MEASURED = "measured.json"

# a run on Flower
EVENTS = "events.jsonl"
MESSAGES = "messages.jsonl"
CONTRIBUTIONS = "contributions"
CORRECTIONS = "corrections"
READMIT = "readmit"
RELEASED = "released.json"
FLOWER_RUN = ".{name}.run.json"
"""Beside the run folder of that name, on the machine it was submitted from."""


def model_file(position: int, view: str = "") -> str:
    """The name of a client's model below :data:`MODELS`; methods with several models have one file a view."""
    return f"client-{position:04d}{view and '-' + view}.safetensors"
