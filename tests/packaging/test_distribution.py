"""Wheel and source distribution: what is in them, and that they work where nothing else of this repository is."""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedapm.version import __version__

ROOT = Path(__file__).parents[2]
LEFTOVERS = [
    "runs/one/run.json",
    "examples/runs/one/rounds.jsonl",
    "examples/client-3.safetensors",
    "docs/mlflow.db",
    "site/index.html",
    "dist/fedapm-0.0.1.tar.gz",
    "src/fedapm/__pycache__/api.cpython-311.pyc",
    ".venv/bin/activate",
    "notes.txt",
    "data/motionsense.npz",
]
"""Files that lie about where people work; none of them may be published."""
DEMO = ["compare", "--data", "digits", "--methods", "fedapm,local", "--seeds", "0", "--rounds", "1"]


def python(
    *arguments: object,
    program: Path | str = sys.executable,
    cwd: Path,
    path: Path | None = None,
    timeout: float = 600,
) -> str:
    """What Python prints; of this repository it can import only what is in a path."""
    variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    variables |= {"PYTHONPATH": str(path)} if path else {}
    words = [str(program), *map(str, arguments)]
    variables |= {"OMP_NUM_THREADS": "1", "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    done = subprocess.run(words, cwd=cwd, env=variables, capture_output=True, text=True, check=False, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def published() -> list[str]:
    """The files of this tree that belong to the project."""
    if (ROOT / ".git").exists():
        known, new = ["git", "ls-files"], ["git", "ls-files", "--others", "--exclude-standard", "src", "tests"]
        said = [subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True) for words in (known, new)]
        return [name for done in said for name in done.stdout.splitlines() if (ROOT / name).is_file()]
    paths = [path for path in ROOT.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return [str(path.relative_to(ROOT)) for path in paths if path.name != "PKG-INFO"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's files, with leftovers among them."""
    folder = tmp_path_factory.mktemp("tree")
    for name in published():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    for name in LEFTOVERS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("left over", "utf-8")
    return folder


@pytest.fixture(scope="module")
def built(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and the wheel that is built from it."""
    pytest.importorskip("build", reason="the extra 'dist' is not installed")
    folder = tmp_path_factory.mktemp("dist")
    here = ["--no-isolation"] if find_spec("hatchling") else []
    python("-m", "build", *here, "--outdir", folder, tree, cwd=tree)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def source(built: Path) -> Path:
    (path,) = built.glob("*.tar.gz")
    return path


def test_the_source_distribution_is_the_repository_and_no_leftovers(source: Path) -> None:
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names == {*published(), "PKG-INFO"}


def test_the_wheel_is_the_package_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    about = f"fedapm-{__version__}.dist-info/"
    code = {name.removeprefix("src/") for name in published() if name.startswith("src/fedapm/")}
    assert {name for name in names if not name.startswith(about)} == code
    assert {"fedapm/py.typed", "fedapm/report/templates"} <= code | {str(Path(name).parent) for name in code}


def test_the_metadata_says_who_what_and_where(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        about = email.message_from_bytes(archive.read(f"fedapm-{__version__}.dist-info/METADATA"))
    assert about["Version"] == __version__
    assert about["Author"] == "fedapm developers"
    assert about["License-Expression"] == "Apache-2.0"
    links = dict(line.split(", ") for line in about.get_all("Project-URL", []))
    assert set(links) == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    assert all(link.startswith("https://") for link in links.values())
    kinds = about.get_all("Classifier", [])
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)} <= set(kinds)
    # on the package's page there is no repository for a link to lead into
    page = str(about.get_payload())
    assert f"]({links['Source']}/blob/v{__version__}/docs/how-to/own-data.md)" in page
    assert "](docs/" not in page


def test_twine_finds_nothing(built: Path) -> None:
    pytest.importorskip("twine", reason="the extra 'dist' is not installed")
    said = python("-m", "twine", "--no-color", "check", "--strict", *sorted(built.iterdir()), cwd=built)
    assert said.count("PASSED") == 2


def environment(folder: Path, *, empty: bool) -> Path:
    """The Python of a new environment; unless it is to be empty, packages of this one can be imported there too."""
    venv.create(folder, with_pip=empty)
    program = folder / "bin" / "python"
    if not empty:
        place = python("-c", "import sysconfig; print(sysconfig.get_path('purelib'))", program=program, cwd=folder)
        # fedapm itself may be installed here as a link (.pth), which Python does not follow from there
        Path(place.strip(), "here.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    return program


def assert_it_works(program: Path, cwd: Path) -> None:
    """Whether the installed package, and no other, does a small comparison."""
    look = "from importlib.util import find_spec; print(find_spec('fedapm').origin)"
    place = python("-c", look, program=program, cwd=cwd)
    assert Path(place.strip()).is_relative_to(program.parents[1])
    less = ["--set", "data.clients=4", "--out", "demo"]
    assert "FedAPM" in python(program.with_name("fedapm"), *DEMO, *less, program=program, cwd=cwd)
    assert "<html" in (cwd / "demo" / "report.html").read_text("utf-8")
    assert len(list((cwd / "demo").rglob("client-*.safetensors"))) == 2 * 4


def test_the_wheel_works_by_itself(wheel: Path, tmp_path: Path) -> None:
    program = environment(tmp_path / "venv", empty=False)
    pip = ["-m", "pip", "--python", program, "install", "--quiet", "--no-deps", "--no-index"]
    python(*pip, wheel, cwd=tmp_path)
    assert_it_works(program, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "source"])
def test_it_installs_into_an_empty_environment(kind: str, wheel: Path, source: Path, tmp_path: Path) -> None:
    program = environment(tmp_path / "venv", empty=True)
    pip = ["-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
    python(*pip, wheel if kind == "wheel" else source, program=program, cwd=tmp_path, timeout=1800)
    assert_it_works(program, tmp_path)


@pytest.mark.slow
def test_the_tests_of_the_source_distribution_are_complete(source: Path, tmp_path: Path) -> None:
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    collect = ["-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", "-m", ""]
    lines = python(*collect, cwd=folder, path=folder / "src").splitlines()
    found = {line.partition(":")[0] for line in lines if line.startswith("tests/")}
    assert found == {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
