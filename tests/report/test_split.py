"""The page and the picture of a search of the split: what they say, safely and the same each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedapm.core.metrics import ACCURACY, TEST_LOSS
from fedapm.report import write_report
from fedapm.report.split.search import Gap, bytes_text, gap_text, read_search, score_text, share_text
from fedapm.runs.files import write_json
from tests.helpers.unit import refused
from tests.report.pages import check_markup, words_of

ROWS: list[dict[str, Any]] = [
    {"name": "nothing personal: one model for all", "share": 0.0, "verdict": "worse", "score": 0.7, "bytes": 52_000.0},
    {"name": "<b>last</b> layer (fc)", "share": 0.05, "verdict": "chosen", "score": 0.9, "bytes": 50_000.0},
    {"name": "biases", "share": 0.016, "verdict": "dropped", "score": 0.6, "bytes": 51_000.0},
    {"name": "everything personal: local training", "share": 1.0, "verdict": "diverged", "score": None, "bytes": 8.0},
]


def write_search(folder: Path, **changed: Any) -> Path:
    """The record of a search."""
    rows = []
    for row in ROWS:
        score = row["score"]
        last = row["verdict"] in ("chosen", "worse")
        history = [] if score is None else [[2, score - 0.1], *([[4, score]] if last else [])]
        behind = None if score is None else {"mean": 0.9 - score, "low": 0.85 - score, "high": 0.95 - score}
        rows.append(row | {"personal": [], "shared": [], "rounds": 4, "history": history, "behind": behind})
    arguments = {"metric": ACCURACY.describe(), "seeds": [0, 1], "clients": 20, "method": "FedAPM"}
    content = {"status": "complete", "arguments": arguments, "settings": {"data": {"name": "digits"}}}
    write_json(folder / "split.json", content | {"advice": ["Make it so."], "rows": rows} | changed)
    return folder


def test_the_page_says_what_was_found(tmp_path: Path) -> None:
    page = write_report(write_search(tmp_path)).read_text("utf-8")
    check_markup(page)
    words = words_of(page)
    assert "The split of FedAPM on digits" in words
    assert "Make it so." in words
    assert "No test data was used." in words
    assert "nothing personal: one model for all 0% 4 70.0% 20.0 15.0 to 25.0 52.0 kB worse" in words
    assert "everything personal: local training 100% 4 – – 8 B diverged" in words
    assert "<b>last" not in page


def test_equal_searches_give_equal_files(tmp_path: Path) -> None:
    first, second = write_search(tmp_path / "a"), write_search(tmp_path / "b")
    for folder in (first, second):
        write_report(folder)
    for name in ("report.html", "split.png"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"status": "running"}, ["not finished"]),
        ({"rows": [{"name": 1}]}, ["not the record"]),
        ({"arguments": {"metric": 0.5}}, ["split.json", "arguments.metric"]),
        ({"arguments": {"metric": {}}}, ["split.json", "arguments.metric.title"]),
        ({"chosen": {"personal": None}}, ["split.json", "chosen.personal"]),
    ],
)
def test_what_is_no_finished_search_is_refused(changed: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    with refused(*words):
        read_search(write_search(tmp_path, **changed))


def test_numbers_are_written_for_people() -> None:
    percent, loss = ACCURACY.describe(), TEST_LOSS.describe()
    assert (score_text(percent, 0.8768), score_text(loss, 0.87654), score_text(loss, None)) == ("87.7%", "0.8765", "–")
    assert gap_text(percent, Gap(0.021, -0.005, 0.047)) == ("2.1 points", "−0.5 to 4.7")
    assert gap_text(loss, Gap(-0.00001, None, None)) == ("−1e−05", "")
    assert [share_text(share) for share in (0, 0.0012, 0.37, 0.9988, 1)] == ["0%", "0.12%", "37%", "99.88%", "100%"]
    assert [bytes_text(count) for count in (8, 52_567, 3_200_000)] == ["8 B", "52.6 kB", "3.20 MB"]
