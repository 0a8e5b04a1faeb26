"""What a search comes to, in plain sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedapm.core.candidates import EVERYTHING, NOTHING, ONLY_DIFFERENT
from fedapm.report.split.search import Gap, gap_text, score_text
from fedapm.tuning.split.results import Outcome

WHAT_TO_DO = {
    NOTHING: "Do not personalise here: no split is clearly better than one model for all.",
    ONLY_DIFFERENT: "Share all that the clients' networks have in common: no other split is clearly better.",
    EVERYTHING: "Share nothing here: every client does best with a model of its own.",
}


def advise(outcome: Outcome, metric: Mapping[str, Any], own_copies: bool = False) -> list[str]:
    """What to do, and on what evidence.

    Args:
        outcome: What a search found.
        metric: The description of the metric that counts.
        own_copies: Whether clients are scored with their own copies of the shared part.

    Returns:
        A few sentences. The first one says what to do.
    """
    chosen, best = outcome.chosen, outcome.best
    sentences = [WHAT_TO_DO.get(chosen.name, f"Make personal: {chosen.name}.")]
    name = "loss" if metric["name"] == "test_loss" else str(metric["title"])
    scored = f"{name[0].upper()}{name[1:]} on validation data: {score_text(metric, chosen.score)}"
    if outcome.lead is not None:
        reference = outcome.rows[0].name.removeprefix("nothing personal: ")
        scored += f", {_text(metric, outcome.lead)} better than {reference}"
    sentences.append(f"{scored}.")
    if best is not chosen and chosen.behind is not None:
        sentences.append(
            f"The best score is that of {best.name}, {_text(metric, chosen.behind)} ahead. That is within the noise, "
            "and more of the network would be personal."
        )
    if own_copies and chosen.name == NOTHING:
        sentences.append(
            "All parameters are shared then, but clients were scored with their own copies of them, as in a run "
            '(algorithm.evaluate = "local").'
        )
    return sentences


def _text(metric: Mapping[str, Any], gap: Gap) -> str:
    middle, interval = gap_text(metric, gap)
    return f"{middle} (95% interval {interval})" if interval else middle
