"""What went wrong in a sweep."""

from __future__ import annotations

from fedapm.report.comparison.sections import warnings
from fedapm.report.evaluated_on import evaluated_on
from fedapm.report.numbers import counted, listed
from fedapm.report.settings import differing_settings
from fedapm.report.sweep.runs import Point, Sweep
from fedapm.runs.records import Run

_ENDED = {
    "diverged": "diverged",
    "interrupted": "was interrupted",
    "running": "is running or was stopped without notice",
}


def sweep_problems(sweep: Sweep) -> list[str]:
    """One sentence for each thing that the figures do not show by themselves."""
    named = [point.named for point in sweep.points if point.counts]
    return [
        *_not_there(sweep),
        *(sentence for point in sweep.points for sentence in _incomplete(point)),
        *_mixed(sweep),
        *warnings.dropped_clients(named),
        *warnings.clients_without_loss(named),
    ]


def _not_there(sweep: Sweep) -> list[str]:
    if not sweep.missing:
        return []
    where = listed([f"“{place}”" for place in sweep.missing], 6)
    have = "has" if len(sweep.missing) == 1 else "have"
    return [f"{counted(len(sweep.missing), 'run')} of the sweep {have} not been started yet: {where}."]


def _incomplete(point: Point) -> list[str]:
    """The seeds of a point that did not finish, those that ended alike in one sentence."""
    alike: dict[tuple[str, int], list[Run]] = {}
    for run in point.group.every_run:
        if not run.complete:
            reached = run.rounds[-1]["round"] if run.rounds else 0
            alike.setdefault((str(run.info.get("status")), reached), []).append(run)
    fate = "The other seeds count without it." if point.counts else "There is no result at this value."
    sentences = []
    for (status, reached), runs in alike.items():
        seeds = [run.seed for run in runs]
        of = f" of {runs[0].info['rounds']}" if "rounds" in runs[0].info else ""
        sentences.append(
            f"{point.named.label}: {'seed' if len(seeds) == 1 else 'each of the seeds'} {listed(seeds)} "
            f"{_ENDED.get(status, f'has the status “{status}”')} after round {reached}{of}. {fate}"
        )
    return sentences


def _mixed(sweep: Sweep) -> list[str]:
    """Runs of a method that differ in more than the seed and what was varied do not belong in one line."""
    sentences = []
    if evaluated_on(sweep.runs) == "both" and "data.validation" not in sweep.axes:
        sentences.append("Some runs are evaluated on validation data and some on test data: these do not compare.")
    for group in sweep.methods:
        apart = {"engine.seed"} | {_own_name(setting, group.method) for setting in sweep.axes}
        differing = [name for name in differing_settings(group.every_run) if name not in apart]
        if differing:
            sentences.append(
                f"The runs of {group.label} differ in more than the seed and what was varied ({listed(differing)})."
            )
    return sentences


def _own_name(setting: str, method: str) -> str:
    """A setting from a method's own table as its configuration has it: ``fedapm.rho`` is ``algorithm.rho`` there."""
    table, _, key = setting.partition(".")
    if table != method:
        return setting
    return key if key.split(".")[0] in ("solver", "model") and "." in key else f"algorithm.{key}"
