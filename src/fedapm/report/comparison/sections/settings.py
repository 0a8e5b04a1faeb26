"""What was run: data, parameters, versions and configuration."""

from __future__ import annotations

from fedapm.report.comparison import settings
from fedapm.report.page import Section
from fedapm.report.results import Results


def section(results: Results, sweep: bool = False) -> Section:
    """The section.

    Args:
        results: The runs.
        sweep: Whether the runs of a method differ in more than the seed, so that one of them stands for all.
    """
    context = {
        "sizes": settings.client_sizes(results.runs),
        "parameters": [] if sweep else settings.parameters(results.groups),
        "versions": settings.versions(results.every_run),
        "configs": settings.configs(results.groups),
        "sweep": sweep,
        "reword": results.reword,
    }
    return Section("settings", "Settings", "settings.html.j2", context)
