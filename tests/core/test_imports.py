"""Functions of the user's own: where they are looked for, and what is said where they are not there."""

from pathlib import Path

import pytest

from fedapm.core.imports import call, load_object, source_files
from tests.helpers.unit import refused


def module(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder


def test_a_module_is_looked_for_in_the_folder_and_then_in_the_working_folder(tmp_path, monkeypatch):
    folder = module(tmp_path / "project", "near_module.py", "def make():\n    return 'near'\n")
    monkeypatch.chdir(module(tmp_path / "here", "far_module.py", "def make():\n    return 'far'\n"))
    assert load_object("near_module:make", folder, "data.factory")() == "near"
    assert load_object("far_module:make", folder, "data.factory")() == "far"
    assert load_object("collections:Counter", folder, "data.factory")("aa") == {"a": 2}


def test_two_projects_may_call_their_modules_alike(tmp_path):
    for name in ("one", "two"):
        module(tmp_path / name, "twin_module.py", f"def make():\n    return {name!r}\n")
    found = [load_object("twin_module:make", tmp_path / name, "data.factory")() for name in ("one", "two", "one")]
    assert found == ["one", "two", "one"]


def test_a_package_may_import_from_itself(tmp_path):
    module(tmp_path / "some_pack", "__init__.py", "")
    module(tmp_path / "some_pack", "inner.py", "value = 5\n")
    module(tmp_path / "some_pack", "outer.py", "from some_pack.inner import value\ndef get():\n    return value\n")
    assert load_object("some_pack.outer:get", tmp_path, "data.factory")() == 5
    assert set(source_files("some_pack.outer:get", tmp_path)) == {
        "some_pack/__init__.py",
        "some_pack/inner.py",
        "some_pack/outer.py",
    }


@pytest.mark.parametrize(
    ("reference", "text", "mentions"),
    [
        ("bad_module", "", ["bad_module", "my_module:my_function"]),
        ("bad_module.py:load", "", ["without folder and ending", "'bad_module:load'"]),
        ("bad module:load", "", ["my_module:my_function"]),
        ("bad_modul:load", "", ["no module 'bad_modul'", "'bad_module'"]),
        ("bad_module:lode", "def load():\n    pass\n", ["no 'lode'", "'load'"]),
        ("bad_module:load", "load = 3\n", ["int", "not a function"]),
        ("bad_module:load", "def load(:\n", ["line 1", "bad_module.py"]),
        ("bad_module:load", "import not_there_at_all\n", ["imports 'not_there_at_all'", "not installed"]),
        ("bad_module:load", "\n1 / 0\n", ["ZeroDivisionError", "line 2"]),
        ("json:load", "", ["'json'", "taken"]),
    ],
)
def test_what_cannot_be_imported_is_one_line(tmp_path, reference, text, mentions):
    module(tmp_path, "bad_module.py", text)
    module(tmp_path, "json.py", "")
    with refused("data.factory", *mentions):
        load_object(reference, tmp_path, "data.factory")


def test_options_and_what_is_filled_in():
    def make(classes, hidden=3):
        return classes, hidden

    given = {"classes": 4, "shapes": ((5,),)}
    assert call(make, given, {}, "model.factory", "model.options") == (4, 3)
    assert call(make, given, {"hidden": 9, "classes": 2}, "model.factory", "model.options") == (2, 9)
    with refused("'model.options.hiden'", "'hidden'"):
        call(make, given, {"hiden": 9}, "model.factory", "model.options")
    with refused("needs 'classes'", "model.options.classes"):
        call(make, {}, {}, "model.factory", "model.options")


def test_a_function_that_fails_is_one_line_with_the_place():
    def make():
        return {}["missing"]

    with refused("KeyError", "missing", "test_imports.py, line"):
        call(make, {}, {}, "data.factory", "data.options")
