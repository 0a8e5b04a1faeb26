"""Reports that several tests read and none changes: a page takes a second to draw."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.report.fake_runs import COMPARISON, Fake, write_comparison, write_fake
from tests.report.pages import Shown, show


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Three methods, three seeds."""
    return show(write_comparison(tmp_path_factory.mktemp("compared")))


@pytest.fixture(scope="session")
def regression(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Three methods, three seeds, with quantities as targets."""
    fakes = tuple(replace(fake, regression=True) for fake in COMPARISON)
    return show(write_comparison(tmp_path_factory.mktemp("regression"), fakes))


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """One run in a folder of its own."""
    return show(write_fake(tmp_path_factory.mktemp("single") / "run", Fake("fedapm", "FedAPM")))


@pytest.fixture(scope="session")
def other_data(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Two runs on different data."""
    folder = tmp_path_factory.mktemp("other")
    write_fake(folder / "a", COMPARISON[0])
    write_fake(folder / "b", replace(COMPARISON[1], data="mnist"))
    return show(folder)
