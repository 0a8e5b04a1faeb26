"""Write the first part of docs/results.md, its pictures and docs/results-in-full.md from the summary in docs/study.

python docs/results.py                  write them from docs/study
python docs/results.py runs/study       take what runs/study has into docs/study first; cases that it lacks stay
python docs/results.py --check          exit with 1 if the page or the picture is not what would be written
"""

from __future__ import annotations

import sys
from pathlib import Path

from markupsafe import Markup

from fedapm.errors import FedapmError
from fedapm.report.study.lines import read_lines
from fedapm.report.study.markdown import study_markdown, tables_markdown
from fedapm.report.study.merge import merge, read_summary, write_summary
from fedapm.report.study.overview import rank_figure
from fedapm.report.study.sweeps import read_sweeps, sweep_tables
from fedapm.report.study.tables import tables
from fedapm.runs.files import read_json
from fedapm.runs.layout import CARD, STUDY_INFO, SUMMARY, SWEEPS

DOCS = Path(__file__).parent
STUDY, PAGE, PICTURE = DOCS / "study", DOCS / "results.md", DOCS / "images" / "study-ranks.svg"
IN_FULL = DOCS / "results-in-full.md"
BEGIN, END = "<!-- Written by docs/results.py from docs/study/summary.csv. -->\n", "<!-- End of the study. -->\n"
HEAD = """# Results in full

Every table of the study that [Results](results.md) sums up: all methods and scores, what it costs to reach the best
rival's accuracy, the settings that the search chose, and published numbers. `python docs/results.py` writes this page
from `docs/study/summary.csv`; no number in it is typed by hand.
"""


def made() -> dict[Path, str]:
    """What the page and the picture should hold."""
    found = tables(read_lines(STUDY / SUMMARY))
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{PAGE} lacks the lines {BEGIN.strip()} and {END.strip()}")
    figure = PICTURE.relative_to(DOCS).as_posix()
    swept = {f"images/study-{table.setting}.svg": table for table in sweep_tables(read_sweeps(STUDY / SWEEPS))}
    part = study_markdown(found, read_json(STUDY / STUDY_INFO), read_json(STUDY / CARD), figure, swept)
    pictures = {DOCS / address: drawn(table.figure) for address, table in swept.items()}
    return {
        PAGE: f"{before}{BEGIN}\n{part}\n{END}{after}",
        IN_FULL: f"{HEAD}\n{tables_markdown(found)}",
        PICTURE: drawn(rank_figure(found)),
        **pictures,
    }


def drawn(figure: Markup) -> str:
    """A figure of a report as a file of its own, where no style sheet makes the marks of its tips transparent."""
    space = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return str(figure).replace("<svg ", f"<svg {space} ", 1).replace('class="tip"', 'class="tip" fill="none"')


def main(arguments: list[str]) -> int:
    """Write or check both files; the exit code."""
    if arguments and arguments[0] != "--check":
        parts = [STUDY, *map(Path, arguments)] if (STUDY / SUMMARY).is_file() else [*map(Path, arguments)]
        try:
            write_summary(STUDY, merge([read_summary(part) for part in parts]))
        except FedapmError as error:
            raise SystemExit(f"{error} A study writes them when its first part is done.") from None
    stale = [path for path, text in made().items() if not path.is_file() or path.read_text("utf-8") != text]
    if arguments == ["--check"]:
        for path in stale:
            print(f"{path} is not what python docs/results.py writes.", file=sys.stderr)
        return 1 if stale else 0
    for path, text in made().items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
