"""Folders of results: who may write to one, and whether what it holds may be continued."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedapm.errors import FedapmError
from fedapm.runs.config import changed_settings, read_config
from fedapm.runs.layout import LOCK, ROUNDS, SESSIONS, SPLIT, SPLIT_INFO, TIMINGS
from fedapm.runs.records import JsonLines, is_run, load_run

PATIENCE = 3.0
"""Seconds to wait for a folder: the worker processes of a command that was killed hold it a moment longer."""


@contextmanager
def locked(
    folder: Path, who: str = "fedapm command", advice: str = "wait for it or use another folder"
) -> Iterator[None]:
    """Hold a folder, which need not exist yet, for this process. The lock ends with the process, however that ends.

    Args:
        folder: The folder.
        who: What holds it, for the message of whoever comes second.
        advice: What to do about it, for the same message.

    Raises:
        FedapmError: If another process holds it.
    """
    if folder.exists() and not folder.is_dir():
        raise FedapmError(f"{folder} is a file; give a folder for the results.")
    path = _lock_path(folder)
    missing = [parent for parent in path.parents if not parent.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        raise FedapmError(f"another {who} is at work in {folder}; {advice}.") from None
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        lock.release()
        # a command that was refused leaves nothing behind
        for parent in missing:
            with suppress(OSError):
                parent.rmdir()


def is_locked(folder: Path) -> bool:
    """Whether a process on this machine works in a folder right now."""
    path = _lock_path(folder)
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True


def refuse_to_overwrite(folder: Path, searched: bool = False) -> None:
    """Refuse a folder that holds anything.

    Args:
        folder: The folder.
        searched: Whether it may hold the search of the split with which its run begins.
    """
    if folder.exists() and not folder.is_dir():
        raise FedapmError(f"{folder} is a file; give a folder for the run.")
    begun = (folder / SPLIT / SPLIT_INFO).is_file()
    ours = {SPLIT, SESSIONS} if begun and searched else set()
    if folder.is_dir() and any(path.name not in ours for path in folder.iterdir()):
        holds = "a run" if is_run(folder) else "the beginning of a run" if begun else ""
        what = f"already holds {holds}; continue it with --resume or" if holds else "is not empty;"
        raise FedapmError(f"{folder} {what} choose another folder.")


def refuse_foreign(folder: Path, info: str, command: str) -> None:
    """Refuse a folder that holds something, but not what a command writes.

    Args:
        folder: The folder.
        info: The file by which the command's own folders are known.
        command: The command's name.
    """
    if folder.is_dir() and not (folder / info).is_file() and any(folder.iterdir()):
        raise FedapmError(f"{folder} is not empty and not from fedapm {command}; use another folder.")


def check_settings(
    folder: Path,
    settings: Mapping[str, Any],
    advice: str,
    *,
    more_rounds: bool = False,
    also_changed: Iterable[str] = (),
) -> None:
    """Refuse to go on with a run that was begun with other settings.

    Args:
        folder: The run folder.
        settings: The settings it should have.
        advice: What to do about it, for the message.
        more_rounds: Whether the run may be made longer, also by a closing phase, which no round depends on; under a
            cosine schedule more rounds would be another run.
        also_changed: Further differences that were noticed.
    """
    old = read_config(folder)
    changed = changed_settings(old, settings)
    longer = settings.get("engine", {}).get("rounds", 0) > old.get("engine", {}).get("rounds", 0)
    if more_rounds and longer and settings.get("solver", {}).get("lr_schedule") != "cosine":
        changed = [name for name in changed if name != "engine.rounds"]
    if more_rounds:
        changed = [name for name in changed if name != "engine.final_personal_epochs"]
    changed += also_changed
    if changed:
        raise FedapmError(f"{folder} was run with other settings ({', '.join(changed)}); {advice}.")


def is_done(folder: Path, settings: Mapping[str, Any], advice: str, *, diverged: bool = False) -> bool:
    """Whether there is nothing left to do for a run, which must then have been run with these settings.

    Args:
        folder: The run folder.
        settings: The settings it should have.
        advice: What to do where it has others, for the message.
        diverged: Whether a run that diverged is done: it would do so again.
    """
    if not is_run(folder):
        return False
    run = load_run(folder)
    if not run.complete and not (diverged and run.diverged):
        return False
    check_settings(folder, settings, advice)
    return True


def rewind(folder: Path, last_round: int, files: Iterable[str] = (ROUNDS, TIMINGS)) -> list[dict[str, Any]]:
    """Cut a run's files of rounds back to a round; the records that are left.

    The closing phase is no part of them: whoever goes on does so without it, or does it again.
    """
    for name in files:
        JsonLines(folder / name).rewind(last_round)
    rounds = JsonLines(folder / ROUNDS)
    for row in [row for row in rounds if "closing" in row]:
        rounds.amend({k: v for k, v in row.items() if k != "closing"} | {"evaluations": row["closing"]["before"]})
    return list(rounds)


def _lock_path(folder: Path) -> Path:
    place = folder.absolute()
    return place.with_name(LOCK.format(name=place.name))
