"""What the paper's authors published, beside what was measured here."""

from __future__ import annotations

from fedapm.report.comparison.published import SCORES, publication
from fedapm.report.page import Section
from fedapm.report.published import SOURCE
from fedapm.report.results import Results


def section(results: Results) -> Section | None:
    """The section; None where nothing was published on the data set."""
    published = publication(results.runs, results.rows)
    if published is None:
        return None
    context = {"results": results, "published": published, "scores": SCORES, "source": SOURCE}
    return Section("published", "Published", "published.html.j2", context)
