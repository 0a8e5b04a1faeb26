"""What went wrong, and what a reader should know about the data."""

from __future__ import annotations

from collections.abc import Sequence

from fedapm.core.metrics import TRAIN_LOSS
from fedapm.report.comparison.series import Group, all_series, client_scores, same_data
from fedapm.report.evaluated_on import data_settings, evaluated_on, validation_sentence, validation_share
from fedapm.report.numbers import counted, finite, listed, plural
from fedapm.report.page import Section
from fedapm.report.results import Results
from fedapm.report.settings import differing_settings
from fedapm.runs.records import Run

_STATUS = {
    "running": "is still running or was stopped without notice",
    "interrupted": "was interrupted",
    "diverged": "diverged: no client had a finite result any more",
}


def incomplete_runs(groups: Sequence[Group]) -> list[str]:
    """One sentence for each run that did not finish."""
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
                ids = {c.get("position", i): str(c.get("id", i)) for i, c in enumerate(run.info["clients"])}
                who = sorted({position for row in rows for position in row["dropped"]})
                names = [f"“{ids[i]}”" if i in ids else f"no. {i}" for i in who]
                count = sum(len(row["dropped"]) for row in rows)
                when = [row["round"] for row in rows]
                sentences.append(
                    f"{group.label}, seed {run.seed}: {counted(count, 'result')} not finite and not used, in "
                    f"{plural('round', when)} {listed(when)}, from {plural('client', names)} {listed(names)}."
                )
    return sentences


def clients_without_loss(groups: Sequence[Group]) -> list[str]:
    """One sentence for each run whose last training loss leaves clients out because theirs is not finite."""
    sentences = []
    for series in all_series(groups):
        for run in series.group.runs:
            losses = client_scores(series.last(run), TRAIN_LOSS.name)
            lost = sum(loss is None for loss in losses)
            if lost:
                sentences.append(
                    f"{series.name}, seed {run.seed}: {lost} of {counted(len(losses), 'client')} without a "
                    "finite training loss at the end; the mean leaves them out."
                )
    return sentences


def capped_solves(groups: Sequence[Group]) -> list[str]:
    """How often local solvers reached their limit on epochs before the accuracy that was asked for."""
    sentences = []
    for group in groups:
        rows = [row for run in group.runs for row in run.rounds if "missed" in (row.get("local") or {})]
        missed = int(sum(finite(row["local"]["missed"]) or 0 for row in rows))
        solves = sum(len(row.get("selected") or []) - len(row.get("dropped") or []) for row in rows)
        if missed and solves:
            sentences.append(
                f"{group.label}: {missed:,} of {solves:,} local solves ({100 * missed / solves:.0f}%) ended "
                "at the limit on epochs before they reached the accuracy ξ."
            )
    return sentences


def data_notices(runs: Sequence[Run]) -> list[str]:
    """What the scores are about, where it is not separate test data of each client."""
    sentences = [validation_sentence(runs)] if evaluated_on(runs) == "validation" else []
    if any(data_settings(run).get("partition") == "overlapping" for run in runs):
        sentences.append(
            "Clients draw their data from one pool (data.partition = “overlapping”): a test sample of one may be a "
            "training sample of another, which makes every method that shares anything look better than it is."
        )
    return sentences


def unequal_terms(groups: Sequence[Group]) -> list[str]:
    """What makes the methods' numbers less comparable than the table suggests."""
    runs = [run for group in groups for run in group.runs]
    sentences = []
    if not same_data(runs):
        sentences.append(
            "The runs do not all have the same data and clients, so their numbers do not compare and nothing is "
            "highlighted as best."
        )
    if evaluated_on(runs) == "both":
        by_validation = [group.label for group in groups if any(validation_share(run) > 0 for run in group.runs)]
        by_test = [group.label for group in groups if any(validation_share(run) == 0 for run in group.runs)]
        sentences.append(
            f"The scores are of two kinds: {listed(by_validation, 20)} {_be(by_validation)} evaluated on validation "
            f"data and {listed(by_test, 20)} on test data."
        )
    planned = {group.label: {run.info.get("rounds") for run in group.runs} for group in groups}
    if len({number for numbers in planned.values() for number in numbers}) > 1:
        each = [f"{label} {listed(sorted(map(str, numbers)))}" for label, numbers in planned.items()]
        sentences.append(f"The runs were planned for different numbers of rounds: {listed(each, 20)}.")
    every_seed = {run.seed for run in runs}
    for group in groups:
        missing = sorted(every_seed - {run.seed for run in group.every_run})
        if missing:
            sentences.append(f"{group.label} has no run with {plural('seed', missing)} {listed(missing)}.")
        differing = [name for name in differing_settings(group.runs) if name.rsplit(".", 1)[-1] != "seed"]
        if differing:
            sentences.append(
                f"The runs of {group.label} differ in more than the seed ({listed(differing)}), so their "
                "mean mixes settings."
            )
    sentences += [f"{group.label} was never evaluated." for group in groups if group.complete and not group.views]
    return sentences


def _be(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _fate(run: Run) -> str:
    return "shown as far as it went" if run.evaluated else "not in any table: it was never evaluated"


NO_PROBLEM = "Every run finished, no client’s result was left out, and all methods had the same data, seeds and rounds."


def problems(results: Results) -> list[str]:
    """One sentence for each thing that went wrong in a comparison."""
    return [
        *incomplete_runs(results.groups),
        *unequal_terms(results.groups),
        *dropped_clients(results.groups),
        *clients_without_loss(results.groups),
    ]


def section(results: Results) -> Section:
    """The section of a comparison."""
    notices = [*data_notices(results.runs), *capped_solves(results.groups)]
    return build(problems(results), notices, NO_PROBLEM)


def build(problems: Sequence[str], notices: Sequence[str], otherwise: str) -> Section:
    """The section of any page.

    Args:
        problems: What went wrong.
        notices: What did not, but matters for reading the numbers.
        otherwise: The sentence that stands there when nothing went wrong.
    """
    context = {"problems": problems, "notices": notices, "otherwise": otherwise}
    return Section("warnings", "Warnings", "warnings.html.j2", context)
