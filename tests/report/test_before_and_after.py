"""The sections about the closing phase and about clients that did not take part."""

import json
import re
from html import unescape

import pytest

from fedapm.report.comparison.page import render
from fedapm.runs.records import find_runs
from tests.report.fake_runs import Fake, write_fake


def tables(text: str, id: str) -> list[list[str]]:
    body = re.search(rf'<table id="{id}".*?</table>', text, re.S).group()
    rows = re.findall(r"<tr>(.*?)</tr>", body, re.S)
    return [
        [unescape(re.sub(r"<[^>]+>", "", c)).strip() for c in re.findall(r"<t[hd].*?</t[hd]>", r, re.S)] for r in rows
    ]


@pytest.fixture
def runs(tmp_path):
    for seed, shift in ((1, 0.0), (2, 0.1)):
        for method, label in (("fedapm", "FedAPM"), ("fedavg", "FedAvg")):
            folder = write_fake(tmp_path / method / str(seed), Fake(method, label, seed))
            if method == "fedavg":
                continue
            lines = (folder / "rounds.jsonl").read_text().splitlines()
            last = json.loads(lines[-1])
            before = json.loads(lines[-1])["evaluations"]
            before["model"]["accuracy"]["mean"] = 0.5 + shift
            last["evaluations"]["model"]["accuracy"]["mean"] = 0.7 + shift
            last["closing"] = {"epochs": 3, "bytes_down": 1, "before": before}
            (folder / "rounds.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
            scores = [({"accuracy": 0.2}, {"accuracy": 0.6}), ({"accuracy": 0.4}, {"accuracy": 0.8 + shift})]
            clients = [
                {"id": str(k), "train": 9, "start": "mean", "epochs": 2, "before": b, "after": a}
                for k, (b, a) in enumerate(scores)
            ]
            (folder / "unseen.json").write_text(json.dumps({"clients": clients}))
    return tmp_path


def test_what_the_closing_phase_changed(runs):
    text = render(find_runs(runs))
    assert tables(text, "closing-table")[1:] == [["FedAPM", "55.00 ± 7.07", "75.00 ± 7.07"]]
    assert "for 3 epochs" in text


def test_who_did_not_take_part(runs):
    text = render(find_runs(runs))
    assert tables(text, "unseen-table")[1:] == [["FedAPM", "30.00 ± 0.00", "72.50 ± 3.54", "75.00 ± 7.07"]]
    assert "2 clients took no part" in text


def test_folders_without_either_have_neither_section(tmp_path):
    write_fake(tmp_path, Fake("fedapm", "FedAPM"))
    text = render(find_runs(tmp_path))
    assert "closing-table" not in text
    assert "unseen-table" not in text
