"""Files that are either wholly there or not there at all, and never a pickle."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors

from fedapm.errors import FedapmError

WHOLE = 1 << 26
"""Bytes up to which a file of tensors is read whole before it is taken apart."""

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give an error of the disk the name of the file it is about: "no space left" by itself helps nobody."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            error.filename = str(path)
        raise


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a file so that a reader, or a machine that loses power, sees the old content or the new."""
    data = content.encode() if isinstance(content, str) else content
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            # mkstemp makes files private; a result is as readable as any other file the user makes
            mask = os.umask(0)
            os.umask(mask)
            Path(temporary).chmod(0o666 & ~mask)
            Path(temporary).replace(path)
        except BaseException:
            # a disk that fails twice must not hide its first error
            with suppress(OSError):
                Path(temporary).unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the file system can tell."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_leftovers(folder: Path) -> None:
    """Remove what a process that was killed in the middle of :func:`write_atomic` left behind."""
    for path in folder.rglob("*"):
        if is_leftover(path):
            path.unlink(missing_ok=True)


def is_leftover(path: Path) -> bool:
    """Whether a file is what a process that was killed in the middle of :func:`write_atomic` left behind."""
    return path.name.startswith(".") and path.name.endswith(".tmp") and path.is_file()


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file a person can read."""
    write_atomic(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, or say which file is broken."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FedapmError(f"{path} is missing.") from None
    except ValueError as error:
        raise FedapmError(f"{path} is not valid JSON ({first_line(error)}).") from None
    except RecursionError:
        raise FedapmError(f"{path} is not valid JSON (it is nested too deeply).") from None
    if not isinstance(content, dict):
        raise FedapmError(f"{path} should hold a JSON object.")
    return content


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, or say which file is broken."""
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        raise FedapmError(f"{path} does not exist.") from None
    except UnicodeDecodeError as error:
        raise FedapmError(f"{path} is not valid TOML: {error}.") from None
    return parse_toml(text, str(path))


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The tables of a TOML text, or one line that says where it is broken.

    Args:
        text: The text.
        where: What it is called in the message.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise FedapmError(f"{where} is not valid TOML: it is nested too deeply.") from None
    except ValueError as error:
        raise FedapmError(f"{where} is not valid TOML: {first_line(error)}.") from None


def first_line(error: object) -> str:
    """What an error says, cut to one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any] | None = None) -> None:
    """Write tensors and a JSON note as safetensors, with a checksum over both."""
    from safetensors.torch import save

    stored = {n: t.detach().to("cpu", copy=True).contiguous() for n, t in tensors.items()}
    note = json.dumps(about or {})
    # one key, because safetensors writes several in no fixed order and equal content should be equal bytes
    metadata = {"fedapm": json.dumps({"about": note, "sha256": _digest(stored, note)})}
    write_atomic(path, save(stored, metadata=metadata))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`write_tensors` wrote; a damaged file is an error that names it."""
    if not path.is_file():
        raise FedapmError(f"{path} is missing.")
    try:
        header, tensors = _tensors(path)
        metadata = json.loads(header.get("fedapm", "{}"))
        note = metadata.get("about", "{}")
        about = json.loads(note)
    except (
        safetensors.SafetensorError,
        ValueError,
        OSError,
        RuntimeError,
        LookupError,
        AttributeError,
        TypeError,
    ) as error:
        raise FedapmError(f"{path} is damaged and cannot be read ({first_line(error)}).") from None
    except RecursionError:
        raise FedapmError(f"{path} is damaged and cannot be read (it is nested too deeply).") from None
    if not isinstance(about, dict):
        raise FedapmError(f"{path} is damaged and cannot be read (its note is no JSON object).")
    if metadata.get("sha256") != _digest(tensors, note):
        raise FedapmError(f"{path} is damaged: its checksum does not match its content.")
    return tensors, about


def _tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata of a safetensors file, and its tensors."""
    from safetensors.torch import load

    if path.stat().st_size > WHOLE:
        with safetensors.safe_open(str(path), framework="pt") as file:
            return file.metadata() or {}, {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118 - not a dict
    # a file that is opened as above leaks a little memory with each tensor (safetensors 0.8)
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]).get("__metadata__", {}), load(content)


def _digest(tensors: Mapping[str, Tensor], note: str) -> str:
    import torch

    digest = hashlib.sha256(note.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()
