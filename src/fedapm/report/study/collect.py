"""From the folders of a part to its lines of the summary."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapm.core.metrics import ACCURACY, AUC, F1, TEST_LOSS, TRAIN_LOSS
from fedapm.report.comparison.series import Series, all_series, best_score, group_runs, score, sent_bytes
from fedapm.report.comparison.summary import last_drift
from fedapm.report.study.lines import UNSPLIT, Line
from fedapm.runs.files import read_json
from fedapm.runs.folder import before_closing
from fedapm.runs.layout import STUDY_CHOICE, STUDY_COMPARE, STUDY_TUNE, TIMINGS, TUNE_INFO
from fedapm.runs.records import JsonLines, Run, find_runs
from fedapm.runs.schema import TimingLine, TuneInfo, read

OURS = ("fedapm", "fedapm-paper")
"""Methods that are not rivals."""
FEDALT = "fedalt"


@dataclass(frozen=True)
class _Model:
    """One model of one run, and the split it had."""

    split: str
    series: Series
    run: Run

    def curve(self) -> list[tuple[int, float]]:
        """Its accuracy in every evaluated round. The closing phase comes after the last round and is no part of it."""
        rows = [before_closing(row) for row in self.run.evaluated]
        values = [
            (int(row["round"]), score((row["evaluations"] or {}).get(self.series.view) or {}, ACCURACY.name))
            for row in rows
        ]
        return [(number, value) for number, value in values if value is not None]

    def final(self) -> float | None:
        """Its accuracy after the last round, before a closing phase."""
        return self.curve()[-1][1] if self.run.complete and self.curve() else None

    def first_round(self, level: float | None) -> int | None:
        """The first evaluated round at a level or above it."""
        return None if level is None else next((number for number, value in self.curve() if value >= level), None)


def collect(folder: Path, case: str, about: Mapping[str, Any], cohort: float) -> list[Line]:
    """The lines of a part: one case with one cohort.

    Args:
        folder: The part's folder.
        case: The case's name.
        about: What study.json says of the case.
        cohort: The share of clients in a round.

    Returns:
        A line for each model of each run that was planned; in the order of splits, methods and seeds.
    """
    splits = [path.name for path in sorted((folder / STUDY_COMPARE).iterdir()) if path.is_dir()]
    models = [model for split in splits for model in _models(folder / STUDY_COMPARE / split, split)]
    rival, levels = _best(model for model in models if model.series.group.method not in OURS)
    searches = {split: read(TuneInfo, folder / STUDY_TUNE / split / TUNE_INFO) for split in splits}
    first = next((split for split in about["plan"]["splits"] if split in splits), UNSPLIT)
    personal = _personal(folder / STUDY_CHOICE)
    lines = []
    told: set[tuple[str, str]] = set()
    for model in models:
        with_same = first if model.split == UNSPLIT else model.split
        _, fedalt = _best(m for m in models if m.series.group.method == FEDALT and m.split == with_same)
        found = searches[model.split].get("methods", {}).get(model.series.group.method, {})
        known = {
            "case": case,
            "title": about["title"],
            "cohort": cohort,
            "split": model.split,
            "rival": rival,
            "personal": personal if model.split == "chosen" else "",
            "settings": "" if (model.split, model.series.name) in told else _settings(found.get("settings", {})),
        }
        told.add((model.split, model.series.name))
        seed = model.run.seed
        lines.append(_line(model, known, levels.get(seed), fedalt.get(seed)))
    return lines + _untuned(searches, case, about, cohort)


def _models(folder: Path, split: str) -> list[_Model]:
    return [
        _Model(split, series, run)
        for group in group_runs(find_runs(folder))
        for series in all_series([group])
        for run in group.every_run
    ]


def _best(models: Iterable[_Model]) -> tuple[str, dict[int, float]]:
    """The model with the highest mean final accuracy over seeds, and its accuracy in each."""
    finals: dict[tuple[str, str], dict[int, float]] = {}
    for model in models:
        if (value := model.final()) is not None:
            finals.setdefault((model.split, model.series.name), {})[model.run.seed] = value
    if not finals:
        return "", {}
    split, name = max(finals, key=lambda key: statistics.fmean(finals[key].values()))
    return name if split == UNSPLIT else f"{name} ({split})", finals[split, name]


def _line(model: _Model, known: Mapping[str, Any], level: float | None, fedalt: float | None) -> Line:
    run, series = model.run, model.series
    last = series.last(run)
    reached = model.first_round(level)
    spent = _processor_seconds(run)
    return Line(
        **known,
        data=str(run.info.get("data")),
        method=series.group.method,
        label=series.name,
        view=series.view,
        seed=run.seed,
        rounds=int(run.info.get("rounds", 0)),
        status=str(run.info["status"]),
        accuracy=score(last, ACCURACY.name),
        f1=score(last, F1.name),
        auc=score(last, AUC.name),
        worst10=score(last, ACCURACY.name, "worst10"),
        train_loss=score(last, TRAIN_LOSS.name),
        test_loss=score(last, TEST_LOSS.name),
        drift=last_drift(run) if run.evaluated else None,
        bytes=sent_bytes(run.rounds[-1]) if run.rounds else None,
        cpu_seconds=sum(spent) if spent else None,
        level=level,
        rounds_to_level=reached,
        bytes_to_level=sent_bytes(run.rounds[reached]) if reached is not None else None,
        cpu_to_level=sum(spent[: reached + 1]) if reached is not None and spent else None,
        fedalt_level=fedalt,
        rounds_to_fedalt=model.first_round(fedalt),
        best_accuracy=best_score(series, run, ACCURACY.name),
    )


def _processor_seconds(run: Run) -> list[float]:
    """Of each round; wall time where nothing else was recorded."""
    rows = JsonLines(run.path / TIMINGS, TimingLine)
    return [float(row.get("processor_seconds", row.get("seconds", 0.0))) for row in rows]


def _personal(path: Path) -> str:
    """What is personal in the split that was chosen, and whether that is the paper's."""
    if not path.is_file():
        return ""
    choice = read_json(path)
    patterns = choice["model"]
    said = f"all but {' '.join(patterns['shared'])}" if patterns.get("shared") else " ".join(patterns["personal"])
    return f"{said or 'nothing'}{', the same as the paper split' if choice['as_paper'] else ''}"


def _settings(found: Mapping[str, Any]) -> str:
    def value(item: Any) -> str:
        return f"{item:.4g}" if isinstance(item, float) else str(item).replace(" ", "")

    return " ".join(f"{key.removeprefix('algorithm.')}={value(item)}" for key, item in sorted(found.items()))


def _untuned(searches: Mapping[str, Any], case: str, about: Mapping[str, Any], cohort: float) -> list[Line]:
    """Methods that were not run because every trial diverged: they did not do well, and are not left out."""
    return [
        Line.without_numbers(case, about["title"], cohort, split, name, found["label"], int(seed))
        for split, search in searches.items()
        for name, found in search.get("methods", {}).items()
        if found["best"] is None
        for seed in about["plan"]["seeds"]
    ]
