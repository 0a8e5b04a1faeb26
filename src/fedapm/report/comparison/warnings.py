"""What did not go as planned: nobody should have to find it out from the curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedapm.core.metrics import TRAIN_LOSS
from fedapm.report.comparison.series import Group, all_series, client_scores, same_data
from fedapm.report.evaluated_on import data_settings, judged_by, settings_of, validation_sentence, validation_share
from fedapm.report.numbers import counted, finite, listed
from fedapm.runs.config import MAY_CHANGE_ON_RESUME
from fedapm.runs.records import Run

_STATUS = {
    "running": "is still running or was stopped without notice",
    "interrupted": "was interrupted",
    "diverged": "diverged: no client had a finite result any more",
}


def incomplete_runs(groups: Sequence[Group]) -> list[str]:
    """One sentence for each run that did not go through."""
    sentences = []
    for group in groups:
        for run in group.every_run:
            if not run.complete:
                status = str(run.info.get("status"))
                reached = run.rounds[-1]["round"] if run.rounds else 0
                planned = run.info.get("rounds")
                of = f" of {planned}" if planned is not None else ""
                fate = "left out of all numbers and curves" if run in group.left_out else _fate(run)
                sentences.append(
                    f"{group.label}, seed {run.seed}, {_STATUS.get(status, f'has the status “{status}”')}. "
                    f"It reached round {reached}{of} and is {fate}."
                )
    return sentences


def dropped_clients(groups: Sequence[Group]) -> list[str]:
    """One sentence for each run in which a client's result was not finite and therefore not used."""
    sentences = []
    for group in groups:
        for run in group.every_run:
            rows = [row for row in run.rounds if row.get("dropped")]
            if rows:
                ids = [str(client.get("id", i)) for i, client in enumerate(run.info["clients"])]
                who = sorted({position for row in rows for position in row["dropped"]})
                names = [f"“{ids[i]}”" if i < len(ids) else f"no. {i}" for i in who]
                count = sum(len(row["dropped"]) for row in rows)
                when = [str(row["round"]) for row in rows]
                sentences.append(
                    f"{group.label}, seed {run.seed}: {counted(count, 'result')} not finite and not used, in "
                    f"{'round' if len(when) == 1 else 'rounds'} {listed(when)}, from "
                    f"{'client' if len(names) == 1 else 'clients'} {listed(names)}."
                )
    return sentences


def clients_without_loss(groups: Sequence[Group]) -> list[str]:
    """One sentence for each run whose last training loss leaves clients out because theirs is not finite."""
    sentences = []
    for one in all_series(groups):
        for run in one.group.runs:
            losses = client_scores(one.last(run), TRAIN_LOSS.name)
            lost = sum(loss is None for loss in losses)
            if lost:
                sentences.append(
                    f"{one.name}, seed {run.seed}: {lost} of {counted(len(losses), 'client')} without a "
                    "finite training loss at the end; the mean leaves them out."
                )
    return sentences


def capped_solves(groups: Sequence[Group]) -> list[str]:
    """How often local solvers ran into their cap before they reached the accuracy asked for."""
    sentences = []
    for group in groups:
        rows = [row for run in group.runs for row in run.rounds if "missed" in (row.get("local") or {})]
        missed = int(sum(finite(row["local"]["missed"]) or 0 for row in rows))
        solves = sum(len(row.get("selected") or []) - len(row.get("dropped") or []) for row in rows)
        if missed and solves:
            sentences.append(
                f"{group.label}: {missed:,} of {solves:,} local solves ({100 * missed / solves:.0f}%) ended "
                "at the cap on their epochs before they were as accurate as ξ asks for."
            )
    return sentences


def how_judged(runs: Sequence[Run]) -> list[str]:
    """What the scores are about, where it is not the clients' own and untouched test data."""
    sentences = [validation_sentence(runs)] if judged_by(runs) == "validation" else []
    if any(data_settings(run).get("partition") == "overlapping" for run in runs):
        sentences.append(
            "Clients draw their data from one pool (data.partition = “overlapping”): one’s test sample may be "
            "another’s training sample, which flatters every method that shares anything."
        )
    return sentences


def uneven_terms(groups: Sequence[Group]) -> list[str]:
    """What makes the methods' numbers less comparable than the table suggests."""
    runs = [run for group in groups for run in group.runs]
    sentences = []
    if not same_data(runs):
        sentences.append(
            "The runs do not all have the same data and clients, so their numbers stand side by side "
            "but do not compare, and nothing is marked as best."
        )
    if judged_by(runs) == "both":
        by_validation = [group.label for group in groups if any(validation_share(run) > 0 for run in group.runs)]
        by_test = [group.label for group in groups if any(validation_share(run) == 0 for run in group.runs)]
        sentences.append(
            f"The scores are of two kinds: {listed(by_validation, 20)} {_be(by_validation)} judged by validation data "
            f"and {listed(by_test, 20)} by test data."
        )
    planned = {group.label: {run.info.get("rounds") for run in group.runs} for group in groups}
    if len({number for numbers in planned.values() for number in numbers}) > 1:
        each = [f"{label} {listed([str(n) for n in sorted(map(str, ns))])}" for label, ns in planned.items()]
        sentences.append(f"The runs were planned for different numbers of rounds: {listed(each, 20)}.")
    every_seed = {run.seed for run in runs}
    for group in groups:
        missing = sorted(every_seed - {run.seed for run in group.every_run})
        if missing:
            noun = "seed" if len(missing) == 1 else "seeds"
            sentences.append(f"{group.label} has no run with {noun} {listed([str(seed) for seed in missing])}.")
        differing = _differing_settings(group.runs)
        if differing:
            sentences.append(
                f"The runs of {group.label} differ in more than the seed ({listed(differing)}), so their "
                "mean mixes settings."
            )
    seen = {one.group.label for one in all_series(groups)}
    unseen = [group for group in groups if group.whole and group.label not in seen]
    sentences += [f"{group.label} was never evaluated." for group in unseen]
    return sentences


def _be(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _fate(run: Run) -> str:
    return "shown as far as it went" if run.evaluated else "not in any table: it was never evaluated"


def _differing_settings(runs: Sequence[Run]) -> list[str]:
    settings = [_flat(settings_of(run)) for run in runs]
    names = sorted({name for one in settings for name in one} - MAY_CHANGE_ON_RESUME)
    return [
        name
        for name in names
        if name.rsplit(".", 1)[-1] != "seed" and any(one.get(name) != settings[0].get(name) for one in settings)
    ]


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
