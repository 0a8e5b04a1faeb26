"""Sentences: what the numbers of a study and of a course mean, in plain words."""

from __future__ import annotations

from fedapm.theory.bounds import least_sigma
from fedapm.theory.course import Course
from fedapm.theory.rates import Rate
from fedapm.theory.study import Study

AGREE_BELOW = 1.0
"""Below this disagreement, what clients have in common outweighs what is each one's own."""


def bounds_sentence(study: Study) -> str:
    """Whether ρ and σ are as large as the descent lemma demands."""
    used, least = study.in_use, study.demanded
    if used is None:
        return f"The analysis is about FedAPM; it has no bounds, Lagrangian or rate for {study.label}."
    if least is None:
        return "The curvature is not known, so there is nothing to hold ρ and σ against."
    if used.meet(least):
        return (
            f"ρ = {number(used.rho)} and σ = {number(used.sigma)} meet the bounds of the descent lemma, as far as the "
            "curvature of these clients at this point can tell: with v_i solved exactly at u_i and server = “all” "
            "every round must lower the Lyapunov function."
        )
    needs = (("ρ", used.rho, least.rho), ("σ", used.sigma, max(least.sigma, least_sigma(used.rho))))
    short = " and ".join(_short(name, have, need) for name, have, need in needs if have < need)
    return (
        f"The descent lemma demands {short}: descent in every round is not guaranteed here. Its bounds are sufficient, "
        "not necessary."
    )


def _short(name: str, have: float, need: float) -> str:
    times = f", {number(need / have)} times less" if have > 0 else ""
    return f"{name} ≥ {number(need)} (in use: {number(have)}{times})"


def disagreement_sentence(study: Study) -> str:
    """Whether there is anything for a correction to correct."""
    ratio = study.disagreement
    if study.cancels:
        return "The clients' pulls at the shared part cancel: averaging several local steps would leave this point."
    if ratio is None:
        return "No client's model pulls at a shared part, so there is nothing to disagree about."
    if study.local_steps <= 1:
        return (
            f"Clients disagree by a factor of {number(ratio)}, but a round is one local step: its average is exact "
            "and does not drift."
        )
    if ratio < AGREE_BELOW:
        if not study.round:
            # an untrained network is wrong in the same way everywhere
            return (
                f"Clients agree where training begins (disagreement {number(ratio)}); look again after some rounds, "
                "when what they have in common is learned."
            )
        return f"Clients agree here (disagreement {number(ratio)}): averaging is enough."
    if ratio < study.clients - 1:
        return (
            f"Clients disagree by a factor of {number(ratio)}: averaging drifts, and correction has something to "
            "correct. A comparison says whether it pays."
        )
    return (
        f"Clients disagree by a factor of {number(ratio)}, as much as unrelated ones or more: expect FedAPM to need "
        "fewer rounds than averaging, or to end nearer a solution of the training problem."
    )


def descent_sentence(course: Course) -> str:
    """How often the Lyapunov function went down."""
    if not course.steps:
        return "ρ changes from round to round, so the values of the Lyapunov function do not compare."
    last = course.first + course.steps
    since = f" since round {course.first}, when ρ last changed" if course.rho_changed else ""
    if course.falls == course.steps:
        return f"The Lyapunov function went down in every round{since} ({course.steps} rounds, up to round {last})."
    return f"The Lyapunov function went down in {course.falls} of {course.steps} rounds{since}, up to round {last}."


def rate_sentence(rate: Rate | str) -> str:
    """Which of the paper's three rates a curve shows."""
    if isinstance(rate, str):
        return f"No rate can be read off the Lyapunov function: {rate}."
    where = f"rounds {rate.first} to {rate.last}"
    taken = f", {rate.window} rounds at a time" if rate.window > 1 else ""
    if rate.kind == "finite":
        return f"It came to rest in round {rate.last}: the paper's finite rate, exponent θ = 0."
    theta = f"exponent θ = {rate.exponent:.2f} ± {rate.error:.2f} in {where}{taken}"
    if rate.kind == "linear":
        shrinks = f"; what is left shrinks by {100 * (1 - (rate.factor or 1)):.2g}% a round" if rate.factor else ""
        return f"Its decrease matches the paper's linear rate, {theta}{shrinks}."
    if rate.kind == "sublinear":
        return f"Its decrease matches the paper's sublinear rate, {theta}; what is left falls like t^−{rate.power:.2g}."
    if rate.error > 0.5:
        return f"Its decreases scatter too much to tell a rate by ({where})."
    return f"Its decrease does not tell a linear from a sublinear rate: {theta}."


def sentences(study: Study | None, course: Course | None) -> list[str]:
    """Everything there is to say about a run.

    Args:
        study: What was measured where it stands, if it was.
        course: Its Lyapunov function, if it was recorded.
    """
    found = [bounds_sentence(study), disagreement_sentence(study)] if study is not None else []
    if course is not None:
        found += [descent_sentence(course), *([rate_sentence(course.rate())] if course.steps else [])]
    return found


def number(value: float) -> str:
    """A number to three digits, as people write it."""
    size = abs(value)
    if size == 0 or 1e-3 <= size < 999.5:
        text = f"{size:.3g}"
    else:
        text = f"{size:,.0f}" if 999.5 <= size < 1e6 else f"{size:.2e}"
    return f"−{text}" if value < 0 else text
