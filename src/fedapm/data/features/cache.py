"""Computed features on disk, in shards, so that interrupted work resumes where it stopped.

A folder of features holds one folder for each way of computing them (the settings). It contains the shards, each named
after its position and a hash of what it was computed from, and an index, which is written last and lists the shards and
the items. Without an index the features are incomplete.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from fedapm.data.download import ProgressCallback
from fedapm.errors import FedapmError
from fedapm.runs.files import read_json, read_tensors, remove_leftovers, write_json, write_tensors

FORMAT = 1
INDEX = "index.json"
SHARDS = "*.safetensors"

Encode = Callable[[Sequence[int]], dict[str, Tensor]]
"""Computes the features of the items at some positions; the first dimension of each tensor counts the items."""


@dataclass(frozen=True)
class Item:
    """Something that features are computed from."""

    key: str
    """A stable name, such as its relative path."""
    stamp: str
    """A cheap fingerprint, such as the size of a file, or the text itself."""
    digest: Callable[[], str]
    """A fingerprint of the content, computed only when preparing."""


def file_item(key: str, path: Path) -> Item:
    """A file: its size is the stamp, its checksum the digest."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise FedapmError(f"{path} {_reason(error)}.") from None
    return Item(key, str(size), lambda: _file_digest(path))


def text_item(key: str, text: str) -> Item:
    """A text."""
    return Item(key, text, lambda: _sha256(text))


def bytes_item(key: str, content: bytes) -> Item:
    """Something in memory."""
    digest = hashlib.sha256(content).hexdigest()
    return Item(key, digest, lambda: digest)


def prepare(
    folder: Path,
    items: Sequence[Item],
    settings: Mapping[str, Any],
    encode: Encode,
    *,
    what: str,
    progress: ProgressCallback,
    shard: int = 256,
    prefix: bool = False,
) -> Path:
    """Compute the features that are missing.

    Args:
        folder: The folder for the features.
        items: What the features are computed from.
        settings: Everything that determines the features besides the items.
        encode: Computes the features of some items. Shards that differ in length in further dimensions are padded with
            zeros when they are loaded.
        what: The features' name in messages.
        progress: Called after each shard.
        shard: The number of items in a shard.
        prefix: Whether the items are the first ones of a longer list; features of more of them are kept and serve.

    Returns:
        The folder with the index and the shards.
    """
    if not items:
        raise FedapmError(f"{what}: there is nothing to compute features from.")
    home = _settings_folder(folder, settings)
    with _exclusive(home, what, progress, len(items)):
        remove_leftovers(home)
        if prefix and _has_more(home, items, settings):
            progress(what, len(items), len(items))
            return home
        progress(what, 0, len(items))
        shards: list[dict[str, Any]] = []
        layouts: list[dict[str, Any]] = []
        for start in range(0, len(items), shard):
            positions = range(start, min(start + shard, len(items)))
            entry, layout = _shard(home, items, settings, encode, positions, what)
            shards.append(entry)
            layouts.append(layout)
            progress(what, positions.stop, len(items))
        index = {
            "format": FORMAT,
            "settings": dict(settings),
            "tensors": _common_layout(layouts),
            "shards": shards,
            "items": _keys_and_stamps(items),
        }
        with _writing(home, what):
            write_json(home / INDEX, index)
            current = {entry["file"] for entry in shards}
            for path in home.glob(SHARDS):
                if path.name not in current:
                    path.unlink(missing_ok=True)
    return home


def load(
    folder: Path, items: Sequence[Item], settings: Mapping[str, Any], *, what: str, advice: str, prefix: bool = False
) -> dict[str, Tensor]:
    """Load the features of all items.

    Args:
        folder: The folder for the features.
        items: What the features were computed from.
        settings: The settings they were computed with.
        what: The features' name in messages.
        advice: The end of the message if they are missing, damaged or out of date.
        prefix: Whether features of these items and of more behind them serve as well.
    """
    home = _settings_folder(folder, settings)
    reason = _mismatch(home, items, settings, prefix)
    if reason:
        raise FedapmError(f"{what}: {reason}; {advice}")
    try:
        features = _concatenate(home, read_json(home / INDEX))
        return {name: values[: len(items)] for name, values in features.items()} if prefix else features
    except FedapmError as error:
        raise FedapmError(f"{what}: {str(error).rstrip('.')}; {advice}") from None
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError):
        raise FedapmError(f"{what}: {home / INDEX} is damaged; {advice}") from None


def complete(folder: Path, items: Sequence[Item], settings: Mapping[str, Any], prefix: bool = False) -> bool:
    """Whether there are features of these items, judged by the index and the file names."""
    return not _mismatch(_settings_folder(folder, settings), items, settings, prefix)


def _has_more(home: Path, items: Sequence[Item], settings: Mapping[str, Any]) -> bool:
    """Whether there are sound features of these items and of others behind them."""
    if _mismatch(home, items, settings, prefix=True) or not _mismatch(home, items, settings):
        return False
    try:
        _concatenate(home, read_json(home / INDEX))
    except (FedapmError, KeyError, TypeError, ValueError, AttributeError, RuntimeError):
        return False
    return True


def _shard(
    home: Path, items: Sequence[Item], settings: Mapping[str, Any], encode: Encode, positions: range, what: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    contents = _sha256(_canonical([FORMAT, settings, [[items[k].key, items[k].digest()] for k in positions]]))
    path = home / f"{positions.start:07d}-{contents[:16]}.safetensors"
    tensors = _read_shard(path, contents)
    if tensors is None:
        tensors = {name: values.detach().cpu() for name, values in encode(positions).items()}
        _check(tensors, items, positions, what)
        with _writing(home, what):
            write_tensors(path, tensors, {"contents": contents})
    layout = {n: {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape[1:])} for n, t in tensors.items()}
    return {"file": path.name, "contents": contents, "count": len(positions)}, layout


def _read_shard(path: Path, contents: str) -> dict[str, Tensor] | None:
    try:
        tensors, metadata = read_tensors(path)
    except FedapmError:
        return None
    return tensors if metadata.get("contents") == contents else None


def _check(tensors: Mapping[str, Tensor], items: Sequence[Item], positions: range, what: str) -> None:
    for name, values in tensors.items():
        if values.ndim == 0 or len(values) != len(positions):
            raise ValueError(f"{what}: {name} has the shape {tuple(values.shape)} for {len(positions)} items")
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            finite = torch.isfinite(values).flatten(1).all(1) if values.ndim > 1 else torch.isfinite(values)
            key = items[positions[int((~finite).nonzero()[0])]].key
            raise FedapmError(f"{what}: the features of {key} are not finite; leave it out or repair it.")


def _common_layout(layouts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The layout that fits every shard: the longest of each dimension."""
    first = layouts[0]
    for layout in layouts:
        if layout.keys() != first.keys() or any(
            layout[n]["dtype"] != first[n]["dtype"] or len(layout[n]["shape"]) != len(first[n]["shape"]) for n in first
        ):
            raise ValueError(f"shards of different kinds: {dict(first)} and {dict(layout)}")
    return {
        name: {
            "dtype": first[name]["dtype"],
            "shape": [max(sizes) for sizes in zip(*(layout[name]["shape"] for layout in layouts), strict=True)],
        }
        for name in first
    }


def _concatenate(home: Path, index: Mapping[str, Any]) -> dict[str, Tensor]:
    # allocated once and filled, because features are the largest thing in memory
    count = len(index["items"])
    features = {
        name: torch.zeros((count, *layout["shape"]), dtype=getattr(torch, layout["dtype"]))
        for name, layout in index["tensors"].items()
    }
    start = 0
    for entry in index["shards"]:
        path = home / entry["file"]
        tensors, metadata = read_tensors(path)
        if metadata.get("contents") != entry["contents"] or tensors.keys() != features.keys():
            raise FedapmError(f"{path} is not the file that was written.")
        stop = start + int(entry["count"])
        for name, values in tensors.items():
            # a shard may be shorter in further dimensions; the rest stays zero
            part = features[name][(slice(start, stop), *(slice(size) for size in values.shape[1:]))]
            if part.shape != values.shape or part.dtype != values.dtype:
                raise FedapmError(f"{path} does not fit the other features.")
            part.copy_(values)
        start = stop
    if start != count:
        raise FedapmError(f"{home / INDEX} is damaged.")
    return features


def _mismatch(home: Path, items: Sequence[Item], settings: Mapping[str, Any], prefix: bool = False) -> str:
    """Why the features of these items cannot be used, judged by the index and the file names; empty if they can."""
    if not (home / INDEX).is_file():
        started = home.is_dir() and any(home.glob(SHARDS))
        return f"the features in {home} are incomplete" if started else f"there are no features in {home}"
    try:
        index = read_json(home / INDEX)
        if index["format"] != FORMAT or _canonical(index["settings"]) != _canonical(settings):
            return f"the features in {home} were computed in another way"
        indexed = [(key, stamp) for key, stamp in index["items"]]
        missing = [entry["file"] for entry in index["shards"] if not (home / entry["file"]).is_file()]
    except (FedapmError, KeyError, TypeError, ValueError, AttributeError):
        return f"{home / INDEX} is damaged"
    for (key, stamp), (old_key, old_stamp) in zip(_keys_and_stamps(items), indexed, strict=False):
        if (key, stamp) != (old_key, old_stamp):
            change = f"{key} has changed" if key == old_key else f"{key} is in the place of {old_key}"
            return f"the features in {home} are out of date ({change})"
    if len(items) > len(indexed) or (len(items) < len(indexed) and not prefix):
        return f"the features in {home} are out of date ({len(indexed)} samples instead of {len(items)})"
    return f"the features in {home} are incomplete ({missing[0]} is missing)" if missing else ""


@contextmanager
def _exclusive(home: Path, what: str, progress: ProgressCallback, total: int) -> Iterator[None]:
    """Let one process work at a time; the next one finds the features complete."""
    with _writing(home, what):
        home.mkdir(parents=True, exist_ok=True)
        lock = FileLock(home / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress(f"{what} (waiting for another process)", 0, total)
            lock.acquire(poll_interval=0.2)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _writing(home: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FedapmError(
            f"{what}: features cannot be written to {home} ({error.strerror or error}); free some space or choose "
            "another folder (data.cache)."
        ) from None


def _settings_folder(folder: Path, settings: Mapping[str, Any]) -> Path:
    """The folder for one way of computing features."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", str(settings.get("encoder", "features")))
    return folder / f"{name}-{_sha256(_canonical([FORMAT, settings]))[:12]}"


def _keys_and_stamps(items: Sequence[Item]) -> list[tuple[str, str]]:
    """Keys and hashed stamps (a stamp may be a long text), as in the index."""
    return [(item.key, _sha256(item.stamp)[:16]) for item in items]


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=dict)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _file_digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FedapmError(f"{path} {_reason(error)}.") from None


def _reason(error: OSError) -> str:
    return "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror or error})"
