"""A report as its reader sees it, and whether its markup is sound."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from rich.console import Console

from fedapm.cli.tables import summary
from fedapm.report import summary_table, write_report
from fedapm.runs.records import find_runs


def page_of(folder: Path) -> str:
    """The report over a folder."""
    return write_report(folder).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Shown:
    """A folder, the report over it, and what a reader sees of that."""

    folder: Path
    page: str
    words: str


def show(folder: Path) -> Shown:
    """Write the report over a folder and read it."""
    page = page_of(folder)
    return Shown(folder, page, words_of(page))


def words_of(page: str) -> str:
    """What a reader sees, without markup and in one line."""
    text = re.sub(r"<(style|svg)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


def terminal_of(folder: Path, width: int = 200) -> str:
    """The summary on a terminal of some width, in one line."""
    out = io.StringIO()
    Console(file=out, width=width).print(summary(summary_table(find_runs(folder))))
    return " ".join(out.getvalue().split())


class Tags(HTMLParser):
    """Opens and closes: collects ids and complains about what does not match."""

    EMPTY = frozenset({"meta", "path", "use", "rect", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


def check_markup(page: str) -> Tags:
    """Everything that must hold of any report."""
    tags = Tags()
    tags.feed(page)
    tags.close()
    assert tags.open == []
    assert len(tags.ids) == len(set(tags.ids))
    assert not tags.names & {"script", "img", "link", "iframe", "object"}
    addresses = re.findall(r'(?:href|src)="([^"]*)"', page) + re.findall(r"url\(([^)]*)\)", page)
    assert all(address.startswith("#") for address in addresses)
    assert {address[1:] for address in addresses} <= set(tags.ids)
    assert "NaN" not in page
    assert "None" not in words_of(page)
    return tags
