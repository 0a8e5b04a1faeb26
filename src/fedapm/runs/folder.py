"""Folders of results: who may write to one, and whether what it holds may be continued."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedapm.errors import FedapmError
from fedapm.runs.config import changed_settings, read_config
from fedapm.runs.files import is_leftover, read_json, remove_leftovers
from fedapm.runs.layout import (
    CARD,
    CARD_TEXT,
    CHECKPOINTS,
    COMPARE_INFO,
    CONFIG,
    CONTRIBUTIONS,
    ENGINE,
    EVENTS,
    INFO,
    LOCK,
    LOGS,
    MESSAGES,
    MLFLOW,
    PAPER_INFO,
    REPORT,
    ROUNDS,
    ROWS,
    SESSIONS,
    SPLIT,
    SPLIT_INFO,
    SPLIT_PICTURE,
    STUDY_INFO,
    SUMMARY,
    SWEEP_INFO,
    TENSORBOARD,
    TIMINGS,
    TRANSFORM,
    TUNE_INFO,
    TUNED,
)
from fedapm.runs.records import JsonLines, is_run, load_run
from fedapm.runs.schema import RoundLine

logger = logging.getLogger(__name__)

PATIENCE = 3.0
"""Seconds to wait for a folder: the worker processes of a command that was killed hold it a moment longer."""


# run.json last: until it is gone, the rest is known to be the beginning of a run
BEGINNING = (ROUNDS, TIMINGS, ENGINE, CONFIG, TRANSFORM, EVENTS, MESSAGES, CHECKPOINTS, CONTRIBUTIONS, INFO)
"""What a run has before its first record."""
OF_LOGS = (TENSORBOARD.name, MLFLOW.name)

_HELD: ContextVar[frozenset[Path]] = ContextVar("held folders", default=frozenset())
"""Folders that this thread has entered; their locks are held further up."""


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
    if path in _HELD.get():
        yield
        return
    missing = [parent for parent in path.parents if not parent.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        raise FedapmError(f"another {who} is at work in {folder}; {advice}.") from None
    try:
        _sign(path, folder)
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        lock.release()
        # a command that was refused leaves nothing behind
        for parent in missing:
            with suppress(OSError):
                parent.rmdir()


@contextmanager
def entered(folder: Path) -> Iterator[None]:
    """Hold a folder for a whole command: what the command calls may lock it again."""
    with locked(folder):
        _remove_half_written(folder)
        token = _HELD.set(_HELD.get() | {_lock_path(folder)})
        try:
            yield
        finally:
            _HELD.reset(token)


def _remove_half_written(folder: Path) -> None:
    """Remove what a command that was killed left of the files that every folder of results has; other names stay."""
    common = (REPORT, CARD, CARD_TEXT, SESSIONS, SUMMARY, TUNED, SPLIT_PICTURE)
    for name in (*common, COMPARE_INFO, SWEEP_INFO, TUNE_INFO, SPLIT_INFO, PAPER_INFO, STUDY_INFO):
        for path in folder.glob(f".{name}.????????.tmp"):
            path.unlink(missing_ok=True)


def tidy(folder: Path) -> None:
    """Remove what killed processes left below a folder of ours: half-written files, and locks that nobody holds."""
    remove_leftovers(folder)
    for lock in folder.rglob(LOCK.format(name="*")):
        _forget(lock)


def _forget(lock: Path) -> None:
    """Remove a lock if the process that held it was killed."""
    if lock.exists():
        with suppress(Timeout, OSError), FileLock(lock, timeout=0):
            lock.unlink(missing_ok=True)


def _sign(path: Path, folder: Path) -> None:
    """Say where a lock was left behind, and whose it is now."""
    with suppress(OSError):
        if before := path.read_bytes()[:20]:
            process = before.decode("utf-8", "replace").strip()
            logger.warning(
                "process %s ended without giving %s back; its lock was taken over.", process, folder, stacklevel=3
            )
        path.write_text(f"{os.getpid()}\n")


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
    """Refuse a folder that holds anything but the beginning of a run that was cut off before its first record.

    Args:
        folder: The folder.
        searched: Whether it may hold the search of the split with which its run begins.
    """
    if folder.exists() and not folder.is_dir():
        raise FedapmError(f"{folder} is a file; give a folder for the run.")
    begun = (folder / SPLIT / SPLIT_INFO).is_file()
    ours = {SPLIT} if begun and searched else set()
    if not is_nothing_yet(folder, ours):
        holds = "a run" if is_run(folder) else "the beginning of a run" if begun else ""
        what = f"already holds {holds}; continue it with --resume or" if holds else "is not empty;"
        raise FedapmError(f"{folder} {what} choose another folder.")


def is_nothing_yet(folder: Path, also: Iterable[str] = ()) -> bool:
    """Whether a folder holds no result: at most what a start leaves that was killed before round 0 was recorded.

    Most of it is only recognised beside a run.json, which is written first: a config.toml or a folder of checkpoints
    by itself may be anybody's.

    Args:
        folder: The folder, which need not exist.
        also: Further names that it may hold.
    """
    if not folder.is_dir():
        return True
    ours = {SESSIONS, *also, *(BEGINNING if is_run(folder) else ())}
    ours |= {LOGS} if _holds_only(folder / LOGS, OF_LOGS) else set()
    if not _holds_only(folder, ours) or not _holds_only(folder / CHECKPOINTS, {ROWS}) or _says_complete(folder):
        return False
    return not (folder / ROUNDS).is_file() or b"\n" not in (folder / ROUNDS).read_bytes()


def _says_complete(folder: Path) -> bool:
    """Whether a run.json is that of a finished run, whose records must have been there."""
    try:
        return is_run(folder) and read_json(folder / INFO).get("status") == "complete"
    except FedapmError:
        return True


def clear_beginning(folder: Path) -> None:
    """Remove what :func:`is_nothing_yet` passes over, so that a run can begin; times and a search stay."""
    for name in ((*BEGINNING, *(f"{LOGS}/{name}" for name in OF_LOGS))) if folder.is_dir() else ():
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    for path in folder.iterdir() if folder.is_dir() else ():
        if is_leftover(path):
            path.unlink(missing_ok=True)


def _holds_only(folder: Path, names: Collection[str]) -> bool:
    return not folder.is_dir() or all(path.name in names or is_leftover(path) for path in folder.iterdir())


def refuse_foreign(folder: Path, info: str, command: str) -> None:
    """Refuse a folder that holds something, but not what a command writes.

    Args:
        folder: The folder.
        info: The file by which the command's own folders are known.
        command: The command's name.
    """
    if not folder.is_dir() or (folder / info).is_file():
        return
    # what a start that was killed at once leaves is nobody's work
    if any(path.name != SESSIONS and not is_leftover(path) for path in folder.iterdir()):
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


def check_same_run(folder: Path, info: Mapping[str, Any], advice: str) -> None:
    """Refuse to go on with a run of another method, network or data. Settings alone do not tell one's own apart.

    Args:
        folder: The run folder.
        info: What its run.json should say.
        advice: What to do about it, for the message.
    """
    old = load_run(folder).info
    before, now = old.get("digests", {}), info.get("digests", {})
    clients = [[(str(c.get("id")), c.get("train"), c.get("test")) for c in of["clients"]] for of in (old, info)]
    differs = {
        "another method": old["method"] != info["method"],
        "other clients": [c[0] for c in clients[0]] != [c[0] for c in clients[1]],
        "another network": "network" in before and before["network"] != now.get("network"),
        "other data": clients[0] != clients[1] or ("data" in before and before["data"] != now.get("data")),
    }
    if different := [what for what, is_so in differs.items() if is_so]:
        raise FedapmError(f"{folder} was run with {different[0]}; {advice}.")


def is_done(
    folder: Path,
    settings: Mapping[str, Any],
    advice: str,
    *,
    diverged: bool = False,
    info: Mapping[str, Any] | None = None,
) -> bool:
    """Whether there is nothing left to do for a run, which must then have been run with these settings.

    Args:
        folder: The run folder.
        settings: The settings it should have.
        advice: What to do where it has others, for the message.
        diverged: Whether a run that diverged is done: it would do so again.
        info: What its run.json should say of the method, the network and the data; not checked if not given.
    """
    if not is_run(folder):
        return False
    run = load_run(folder)
    if not run.complete and not (diverged and run.diverged):
        return False
    check_settings(folder, settings, advice)
    if info is not None:
        check_same_run(folder, info, advice)
    # nobody will take it over, because nobody runs this any more
    _forget(_lock_path(folder))
    return True


def rewind(folder: Path, last_round: int, files: Iterable[str] = (ROUNDS, TIMINGS)) -> list[dict[str, Any]]:
    """Cut a run's files of rounds back to a round; the records that are left.

    The closing phase is no part of them: whoever goes on does so without it, or does it again.
    """
    for name in files:
        JsonLines(folder / name).rewind(last_round)
    rounds = JsonLines(folder / ROUNDS)
    for row in [row for row in rounds if "closing" in row]:
        rounds.amend(before_closing(row))
    return list(rounds)


def records_until(folder: Path, last_round: int) -> list[dict[str, Any]]:
    """The records that :func:`rewind` would leave; nothing is touched."""
    rows = JsonLines(folder / ROUNDS, RoundLine)
    return [before_closing(row) for row in rows if row["round"] <= last_round]


def before_closing(row: dict[str, Any]) -> dict[str, Any]:
    """A record as it was before a closing phase, and as checkpoints know it."""
    if "closing" not in row:
        return row
    return {k: v for k, v in row.items() if k != "closing"} | {"evaluations": row["closing"]["before"]}


def _lock_path(folder: Path) -> Path:
    place = folder.absolute()
    return place.with_name(LOCK.format(name=place.name))
