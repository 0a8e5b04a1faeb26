"""The tree is the architecture: every package stands in the contract that checks the direction of imports."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedapm"
IN_PARTS = {"fedapm.experiments"}
"""Packages whose modules stand in the contract one by one."""


def units() -> set[str]:
    """Everything that must stand in the contract."""
    found = set()
    for path in SOURCE.iterdir():
        if path.name == "__init__.py" or not (path.suffix == ".py" or (path / "__init__.py").is_file()):
            continue
        name = f"fedapm.{path.stem}"
        if name in IN_PARTS:
            parts = [*path.glob("*.py"), *(part.parent for part in path.glob("*/__init__.py"))]
            found |= {f"{name}.{part.stem}" for part in parts if part.stem != "__init__"}
        else:
            found.add(name)
    return found


def test_every_package_stands_in_the_contract_of_layers() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = [part.strip() for layer in contracts[0]["layers"] for part in layer.split("|")]
    assert sorted(layers) == sorted(units())


def test_the_root_holds_the_public_face_alone() -> None:
    assert sorted(p.name for p in SOURCE.glob("*.py")) == [
        "__init__.py",
        "__main__.py",
        "errors.py",
        "version.py",
    ]
