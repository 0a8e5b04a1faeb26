import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest
import torch
from matplotlib.backends.backend_svg import FigureCanvasSVG

from fedapm.report.figures import canvas

# librosa compiles itself the first time it is used: half a minute in a new environment, unless the result may be slow
os.environ.setdefault("NUMBA_OPT", "0")
torch.set_num_threads(1)
REPORTS = Path(__file__).parent / "report"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What mostly waits comes first, so that others are at work meanwhile."""
    items.sort(key=lambda item: item.get_closest_marker("deployment") is None)


def pytest_collection_finish() -> None:
    """A million objects of libraries and tests stay to the end: garbage is seldom looked for among them."""
    gc.set_threshold(100_000, 50, 100)


class Blank(FigureCanvasSVG):
    """An empty drawing."""

    def print_svg(self, filename: TextIO, **_: Any) -> None:
        filename.write('<svg viewBox="0 0 1 1"></svg>')


@pytest.fixture(autouse=True, scope="module")
def quick_figures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Figures of reports are drawn where reports are tested; elsewhere they would take most of a command's time."""
    with pytest.MonkeyPatch.context() as patch:
        if REPORTS not in request.path.parents:
            patch.setattr(canvas, "FigureCanvasSVG", Blank)
        yield


@pytest.fixture(autouse=True, scope="module")
def own_messages() -> Iterator[None]:
    """A command line that a module's tests call in this process takes the package's messages; others want them back."""
    logger = logging.getLogger("fedapm")
    before = logger.handlers, logger.propagate, logger.level
    yield
    logger.handlers, logger.propagate, level = before
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("fedapm.")]:
        logging.getLogger(name).setLevel(logging.NOTSET)
    logger.setLevel(level)


@pytest.fixture
def real_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test elsewhere that needs them."""
    monkeypatch.setattr(canvas, "FigureCanvasSVG", FigureCanvasSVG)
