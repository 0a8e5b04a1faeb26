"""Functions and classes of the user's own, named in an experiment file as ``package.module:name``."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from fedapm.errors import FedapmError, did_you_mean

_FROM: dict[str, Path] = {}
"""The folder that each module of the user's own was imported from, by its first name."""


def load_object(reference: str, folder: Path | None, setting: str) -> Callable[..., Any]:
    """Import what a setting names.

    Args:
        reference: A module and a name in it, as ``package.module:name``.
        folder: Where modules are looked for first, before the working folder and installed packages.
        setting: The setting, for messages.

    Returns:
        The function or class.

    Raises:
        FedapmError: There is no such thing, or importing it fails; the message is one line.
    """
    said = f"{setting} = {reference!r}"
    module_name, colon, name = reference.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        better = Path(module_name).stem
        raise FedapmError(f"{said}: write the module without folder and ending, as in {better + ':' + name!r}.")
    parts = module_name.split(".")
    if not (colon and name.isidentifier() and all(part.isidentifier() for part in parts)):
        raise FedapmError(f"{said}: write it as a module and a name, as in 'my_module:my_function'.")
    folders = [path.resolve() for path in (folder, Path.cwd()) if path is not None]
    module = _import(module_name, folders, said)
    if not hasattr(module, name):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise FedapmError(f"{said}: {module_name} has no {name!r}; {did_you_mean(name, known)}")
    found = getattr(module, name)
    if not callable(found):
        raise FedapmError(f"{said}: it is a {type(found).__name__}, not a function or class.")
    return found  # type: ignore[no-any-return]


def own_modules() -> list[ModuleType]:
    """The modules of the user's own that were imported, which other machines need not have."""
    return [module for name, module in sys.modules.items() if name.partition(".")[0] in _FROM]


def call(
    function: Callable[..., Any], arguments: Mapping[str, Any], given: Mapping[str, Any], setting: str, options: str
) -> Any:
    """Call a function of the user's own with the options of the settings.

    Args:
        function: The function.
        arguments: What it is given if it has parameters of these names and no option sets them.
        given: The options.
        setting: The setting that names it, for messages.
        options: The table of the options, for messages.

    Raises:
        FedapmError: An option is unknown or missing, or the function fails.
    """
    parameters = parameters_of(function)
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    title = getattr(function, "__name__", type(function).__name__)
    for option in given:
        if option not in names and not anything:
            hint = did_you_mean(option, names) if names else "it takes none."
            raise FedapmError(f"unknown setting '{options}.{option}' of {title}; {hint}")
    filled = {name: value for name, value in arguments.items() if name in names} | dict(given)
    for p in parameters:
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in filled:
            raise FedapmError(f"{setting}: {title} needs {p.name!r}; set {options}.{p.name}.")
    try:
        return function(**filled)
    except FedapmError:
        raise
    except Exception as error:
        raise FedapmError(f"{setting}: {title} failed with {described(error)}") from error


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function or of a class; none where Python cannot tell."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def described(error: BaseException) -> str:
    """An error of foreign code in one line: its kind, what it says, and where in the user's file it came from."""
    text = (str(error).strip() or "no message").splitlines()[0].rstrip(".")
    at = place(error)
    return f"{type(error).__name__}: {text}{f' ({at})' if at else ''}."


def place(error: BaseException) -> str:
    """Where in the user's own files an error came from, such as "my_data.py, line 3"; empty where it did not."""
    frames = traceback.extract_tb(error.__traceback__)
    installed = ("site-packages", "dist-packages", "importlib", "<frozen", str(Path(__file__).parents[1]))
    own = [f for f in frames if not any(part in f.filename for part in installed)]
    return f"{Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""


def source_files(reference: str, folder: Path | None) -> dict[str, Path]:
    """The files of the module that a reference names, by their path from its folder; none where it is installed.

    A package has all its files in it; a module has itself and the modules beside it, which it may import.
    """
    top = reference.partition(":")[0].partition(".")[0]
    for place in [path.resolve() for path in (folder, Path.cwd()) if path is not None]:
        if (place / top / "__init__.py").is_file():
            return {str(path.relative_to(place)): path for path in sorted((place / top).rglob("*.py"))}
        if (place / f"{top}.py").is_file():
            return {path.name: path for path in sorted(place.glob("*.py"))}
    return {}


def _import(name: str, folders: list[Path], said: str) -> Any:
    top = name.partition(".")[0]
    for folder in folders:
        if PathFinder.find_spec(top, [str(folder)]) is None:
            continue
        if top in sys.modules and _FROM.get(top) != folder:
            if top not in _FROM:
                raise FedapmError(
                    f"{said}: the name {top!r} is taken by a module of Python or of an installed package; call "
                    f"{folder / top}.py something else."
                )
            # another project with a module of the same name
            for loaded in [key for key in sys.modules if key == top or key.startswith(f"{top}.")]:
                del sys.modules[loaded]
        _FROM[top] = folder
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        sys.path.insert(0, str(folder))
        break
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            near = [path.stem for folder in folders for path in folder.glob("*.py")]
            hint = did_you_mean(error.name, near) if near else "there is no Python file."
            raise FedapmError(f"{said}: there is no module {error.name!r} in {folders[0]}; {hint}") from None
        raise FedapmError(f"{said}: it imports {error.name!r}, which is not installed.") from None
    except FedapmError:
        raise
    except SyntaxError as error:
        raise FedapmError(f"{said}: {error.filename}, line {error.lineno}: {error.msg}.") from None
    except Exception as error:
        raise FedapmError(f"{said}: importing it failed with {described(error)}") from error
