"""What a table says, in one sentence: who wins, by how much, and whether that is more than chance."""

from __future__ import annotations

from fedapm.report.numbers import counted, percent, signed
from fedapm.report.significance import Difference, paired_difference
from fedapm.report.study.tables import ACCURACY, AS_PUBLISHED, Entry, Table, Versus, rounds_to_fedalt

FEW = 0.0005
"""Below this a p-value is written as less than 0.001."""


def sentence(table: Table) -> str:
    """Who wins, and how FedAPM did."""
    scored, ours = table.scored, table.ours
    if not scored:
        return "No run ended, so there is nothing to compare."
    if ours is None:
        return f"{_named(scored[0])} has the highest accuracy; FedAPM has no complete run."
    if len(scored) == 1:
        return f"{_named(ours)} stands alone: no other method has a complete run."
    first = scored[0]
    if first is ours:
        return _ours_first(table, ours, scored[1])
    versus = table.versus.get(first.label)
    if versus is None or versus.difference.low is None:
        return (
            f"{_named(first)} has the highest accuracy; FedAPM has {_amount(ours)}. One seed does not show whether "
            "this is chance."
        )
    place = f"FedAPM is number {table.ranks[ours.label]} of {len(scored)} with {_amount(ours)}"
    if versus.difference.clear:
        return (
            f"{_named(first)} wins; {place} and loses to it by {points(-versus.difference.mean)} ({_evidence(versus)})."
        )
    return (
        f"{_named(first)} has the highest accuracy, but the two are level: {place}, {points(versus.difference.mean)} "
        f"behind ({_evidence(versus)})."
    )


def _ours_first(table: Table, ours: Entry, second: Entry) -> str:
    versus = table.versus.get(second.label)
    if versus is None or versus.difference.low is None:
        return (
            f"{_named(ours)} has the highest accuracy, before {_named(second)}. One seed does not show whether this is "
            "chance."
        )
    lead = points(-versus.difference.mean)
    if not versus.difference.clear:
        level = [e.label for e in table.scored[1:] if table.level_with_first(e)]
        others = f"; level with it are also {', '.join(level[1:])}" if len(level) > 1 else ""
        return f"{_named(ours)} and {_named(second)} are level: {lead} apart ({_evidence(versus)}){others}."
    return f"{_named(ours)} wins, {lead} ahead of {_named(second)} ({_evidence(versus)})."


def against_published_method(table: Table) -> str:
    """FedAPM beside FedAPM as published; empty without both."""
    ours, old = table.ours, table.entry(AS_PUBLISHED)
    difference = paired_difference(ours.accuracy.values, old.accuracy.values) if ours and old else None
    if ours is None or old is None or difference is None:
        return ""
    against = f"FedAPM as published ({_amount(old)})"
    if difference.low is None:
        return f"It has {signed(percent(difference.mean))} points against {against}."
    verdict = "level with" if not difference.clear else "ahead of" if difference.mean > 0 else "behind"
    return f"FedAPM is {verdict} {against}: {signed(percent(difference.mean))} points ({interval(difference)})."


def against_fedalt(table: Table) -> str:
    """How many of FedAlt's rounds FedAPM needs to FedAlt's final accuracy; empty where that cannot be said."""
    rounds = rounds_to_fedalt(table)
    if rounds is None:
        if table.ours is None or table.entry("fedalt") is None:
            return ""
        return "FedAPM does not reach FedAlt's final accuracy in every seed."
    ours, theirs = rounds
    share = f", a share of {ours / theirs:.2f}" if theirs else ""
    return f"To FedAlt's final accuracy FedAPM needs {ours:.1f} rounds and FedAlt {theirs:.1f}{share}."


def interval(difference: Difference) -> str:
    """The 95% interval of a difference in points, and how many seeds it rests on."""
    if difference.low is None or difference.high is None:
        return "one seed"
    ends = f"{signed(percent(difference.low))} to {signed(percent(difference.high))}"
    return f"95% interval {ends}, {counted(difference.seeds, 'seed')}"


def p_text(p: float | None) -> str:
    """A p-value with three decimals."""
    if p is None:
        return "–"
    return "< 0.001" if p < FEW else f"{p:.3f}"


def points(value: float) -> str:
    """A size in points of a per cent."""
    return f"{percent(abs(value))} points"


def _evidence(versus: Versus) -> str:
    """The interval of FedAPM minus the other, and the p-value."""
    difference = versus.difference
    assert difference.low is not None
    assert difference.high is not None
    low, high = -difference.high, -difference.low
    p = f"p {_with_sign(versus.p)}, after Holm's correction {_with_sign(versus.corrected, bare=True)}"
    return (
        f"FedAPM minus it: 95% interval {signed(percent(low))} to {signed(percent(high))}, "
        f"{counted(difference.seeds, 'seed')}, {p}"
    )


def _with_sign(p: float | None, bare: bool = False) -> str:
    text = p_text(p)
    return text if bare or text.startswith("<") else f"= {text}"


def _named(entry: Entry) -> str:
    return f"{entry.label} ({_amount(entry)})"


def _amount(entry: Entry) -> str:
    spread = ACCURACY.std_text(entry.accuracy)
    return f"{ACCURACY.mean_text(entry.accuracy)}{' ' + spread if spread else ''}%"
