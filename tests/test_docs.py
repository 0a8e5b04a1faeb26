"""What the documentation shows is run: examples, commands and generated pages."""

import re
import runpy
import shlex
import tomllib
import warnings
from functools import cache
from pathlib import Path

import click
import numpy as np
import pytest
import torch
import yaml

import fedapm
from fedapm.runs.records import load_run
from tests.helpers import plugin

with warnings.catch_warnings():
    # typer 0.20 asks click 8.5 for a name that click means to drop
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.main import get_command

    from fedapm.cli import app as cli

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language on a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)


def commands(page: Path) -> list[list[str]]:
    """The arguments of every fedapm command shown on a page."""
    shown = [line.strip().removeprefix("$ ") for block in blocks(page, "console") for line in block.splitlines()]
    words = [shlex.split(line.split(" & ")[0], comments=True) for line in shown if line.startswith("fedapm ")]
    return [line[1:] for line in words]


def run_file(text: str, folder: Path) -> dict:
    """Run a text as a file of its own, in a folder of its own."""
    path = folder / "shown.py"
    path.write_text(text, "utf-8")
    return runpy.run_path(str(path), run_name="shown")


def test_the_example_of_a_method_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = blocks(ROOT / "docs" / "how-to" / "add-a-method.md", "python")
    found = run_file(example, tmp_path)
    accuracy = found["result"].history["accuracy"]
    assert accuracy.iloc[-1] > accuracy.iloc[0] + 0.2
    assert found["without"].state.server.u.equal(found["plain"].state.server.u)
    assert not found["result"].state.server.p.equal(found["result"].state.server.p.zeros())


IN_TURN = """
import runpy, sys
for words in {shown}:
    sys.argv = ["fedapm", *words]
    try:
        runpy.run_module("fedapm", run_name="__main__")
    except SystemExit as stop:
        assert not stop.code, stop.code
    print("====")
exec({script!r})
"""


def test_the_example_of_a_package_works(tmp_path):
    page = ROOT / "docs" / "how-to" / "extend.md"
    (toml,), (module, script), shown = blocks(page, "toml"), blocks(page, "python"), commands(page)
    groups = tomllib.loads(toml)["project"]["entry-points"]
    plugin.install(tmp_path, "my_package", module, groups)
    # one process for all of them: most of the time goes into starting it
    done = plugin.python(tmp_path, "-c", IN_TURN.format(shown=shown, script=script))
    assert done.returncode == 0, done.stderr
    listed, _, scored = done.stdout.split("====\n")
    assert "FedAvg whose server goes only part of the way." in re.sub(r"\s+", " ", listed)
    run = load_run(tmp_path / "runs" / "half")
    assert run.info["method"] == "fed-half"
    assert 0 < run.rounds[-1]["evaluations"]["model"]["top2"]["mean"] <= 1
    assert "Top2" in (tmp_path / "runs" / "half" / "report.html").read_text("utf-8")
    assert (tmp_path / "runs" / "half" / "log.txt").read_text("utf-8").count("round") == 3
    assert "top2" in scored


@pytest.mark.parametrize(
    "page", ["README.md", "docs/how-to/own-data.md", "docs/how-to/split-a-network.md", "docs/how-to/new-clients.md"]
)
def test_the_python_on_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = blocks(ROOT / page, "python")
    assert shown
    run_file("\n".join(shown), tmp_path)


def test_how_to_use_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        # the page shows how TorchScript is loaded, and torch advises against TorchScript
        warnings.filterwarnings("ignore", r"`torch\.jit\.load` is deprecated", DeprecationWarning)
        found = run_file("\n".join(blocks(ROOT / "docs" / "how-to" / "use-a-model.md", "python")), tmp_path)
    expected = found["result"].predict("Oslo", found["x"][:5])
    assert torch.allclose(found["logits"], expected, atol=1e-5), "the last logits are those of safetensors"
    shown = re.findall(r"`(\w+)`", page_table(ROOT / "docs" / "how-to" / "use-a-model.md", "| field |"))
    assert {*shown} >= {*fedapm.read_about(tmp_path / "oslo.onnx")}, "every field is explained"


def page_table(page: Path, head: str) -> str:
    """The first column of a table on a page."""
    rows = page.read_text("utf-8").partition(head)[2].partition("\n\n")[0].splitlines()
    return "\n".join(row.split("|")[1] for row in rows[2:])


def test_the_walk_from_data_to_a_model_in_use(tmp_path, monkeypatch, capsys):
    page = ROOT / "docs" / "tutorial" / "your-data.md"
    (experiment,), shown, python = blocks(page, "toml"), commands(page), "\n".join(blocks(page, "python"))
    less = {
        "split": ["--rounds", "2"],
        "tune": ["--rounds", "2", "--trials", "1"],
        "compare": ["--rounds", "2", "--seeds", "0"],
    }
    monkeypatch.chdir(tmp_path)
    cli.app([*shown[0]], standalone_mode=False)
    monkeypatch.chdir(tmp_path / "my-project")
    runpy.run_path("my_data.py", run_name="__main__")
    Path("experiment.toml").write_text(experiment, "utf-8")
    order = ["data", "split", "tune", "compare", "report", "personalize", "export"]
    assert [line[0] for line in shown[1:]] == order
    for line in shown[1:]:
        cli.app([*line, *less.get(line[0], [])], standalone_mode=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "held out: person-9" in said
    advice = "Next: fedapm compare experiment.toml --methods fedapm,fedavg,local --tuned runs/tune"
    assert advice in said, "compare would refuse other methods than those that were tuned"
    assert "person-0.onnx: the network of client person-0 in ONNX" in said
    found = run_file(python, tmp_path)
    assert np.allclose(found["logits"], found["same"], atol=1e-5)
    assert found["new"].shape == (60, 3)


def checked(script: str) -> int:
    """What a script of the documentation says of the pages it writes."""
    return runpy.run_path(str(ROOT / "docs" / script))["main"](["--check"])


def test_the_generated_pages_are_up_to_date(capsys):
    assert checked("generate.py") == 0, capsys.readouterr().err


@pytest.mark.usefixtures("real_figures")
def test_the_results_are_those_of_the_summary(capsys):
    assert checked("results.py") == 0, capsys.readouterr().err
    assert (ROOT / "docs" / "study" / "summary.csv").stat().st_size < 500_000


@cache
def whole_command() -> click.Command:
    """All of fedapm; to put it together takes a while."""
    return get_command(cli.app)


def parsed(words: list[str]) -> list[str]:
    """The name of the command that these words mean, all of them accepted by its parser."""
    command, name = whole_command(), []
    while isinstance(command, click.Group):
        name.append(words[0])
        command, words = command.commands[words[0]], words[1:]
    command.make_context(" ".join(name), words)
    return name


def test_the_commands_on_all_pages_parse():
    shown = [parsed(line) for page in PAGES for line in commands(page) if not line[0].startswith("-")]
    assert len(shown) > 20
    assert ["flower", "run"] in shown
    assert ["data", "inspect"] in shown


def in_passing(page: Path) -> list[str]:
    """The fedapm commands in the sentences and tables of a page; they may be in parts."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)
    return re.findall(r"`(?:python -m )?fedapm ([a-z][^`]*)`", re.sub(r"\s+", " ", text))


def options(words: list[str]) -> set[str]:
    """What the command that the first words mean takes."""
    command = whole_command()
    for word in words:
        if not isinstance(command, click.Group):
            break
        command = command.commands[word]
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_commands_named_in_passing_exist():
    found = [(page, line) for page in PAGES for line in in_passing(page)]
    assert len(found) > 50
    for page, line in found:
        words = line.split()
        known = options(words)
        for word in words:
            assert not word.startswith("--") or word.partition("=")[0] in {*known, "--help"}, f"{page.name}: {line}"


def test_the_page_on_the_command_line_names_every_command_and_no_option_too_many():
    text = (ROOT / "docs" / "reference" / "cli.md").read_text("utf-8")
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    for name, group in whole_command().commands.items():
        for part in group.commands if isinstance(group, click.Group) else [""]:
            words = f"{name} {part}".split()
            known = options(words)
            body = sections[" ".join(words)]
            assert set(re.findall(r"`(--[a-z-]+)", body)) <= known, words


def test_every_page_is_reachable_from_the_front_page():
    """By links in the text alone; the menu is not counted."""
    docs = ROOT / "docs"
    linked = {
        (page.parent / target).resolve()
        for page in [docs / "index.md"]
        for target in re.findall(r"\]\(([^)#:]+\.md)", page.read_text("utf-8"))
    }
    assert set(docs.glob("how-to/*.md")) <= linked
    assert {page for page in docs.rglob("*.md") if page.name != "index.md"} <= linked


def test_every_page_is_in_the_menu_and_the_site_can_be_searched():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))

    def pages(entry):
        if isinstance(entry, str):
            return [entry]
        return [page for part in (entry.values() if isinstance(entry, dict) else entry) for page in pages(part)]

    assert sorted(pages(site["nav"])) == sorted(
        str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")
    )
    assert "search" in site["plugins"]


def test_the_commands_of_the_readme_work_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # a federation of processes is tests/flower's business, a whole paper tests/experiments'
    shown = [line for line in commands(README) if line[0] not in ("flower", "paper")]
    tiny = ["--rounds", "1", "--set", "data.clients=4"]
    less = {
        "run": tiny,
        "compare": tiny,
        "tune": [*tiny, "--trials", "1"],
        "sweep": [*tiny, "--seeds", "0"],
    }
    assert {line[0] for line in shown} == {"list", "report", "export", "theory", *less}
    for line in shown:
        cli.app([*line, *less.get(line[0], [])], standalone_mode=False)
    assert (tmp_path / "runs" / "several" / "report.html").is_file()
    assert (tmp_path / "client-3.safetensors").is_file()
