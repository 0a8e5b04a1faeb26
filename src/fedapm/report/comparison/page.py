"""The page of a comparison, or of a single run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedapm.report.comparison import heading
from fedapm.report.comparison.headline import headline_sentences
from fedapm.report.comparison.sections import (
    classes,
    clients,
    closing,
    curves,
    layers,
    privacy,
    published,
    settings,
    summary,
    targets,
    theory,
    unseen,
    warnings,
)
from fedapm.report.evaluated_on import notices
from fedapm.report.page import Page, Section
from fedapm.report.results import Results
from fedapm.runs.records import Run


def render(runs: Sequence[Run], levels: Mapping[str, float] | None = None) -> str:
    """The report over some runs as HTML.

    Args:
        runs: Every run to report on, of one method or several.
        levels: Targets that the comparison was given, by metric.
    """
    results = Results.of(runs)
    return Page(
        title=heading.title(results.groups),
        facts=heading.facts(results.groups),
        notice=notices(results.runs),
        headline=headline_sentences(results),
        sections=_sections(results, levels or {}),
        warnings=warnings.problems(results),
    ).render()


def _sections(results: Results, levels: Mapping[str, float]) -> list[Section]:
    """Every section that has something to show, in order. A new one needs a module, a template and a line here."""
    sections = (
        summary.section(results),
        closing.section(results),
        unseen.section(results),
        targets.section(results, levels),
        privacy.section(results),
        curves.section(results),
        published.section(results),
        clients.section(results),
        classes.section(results),
        layers.section(results),
        theory.section(results),
        warnings.section(results),
        settings.section(results),
    )
    return [section for section in sections if section is not None]
