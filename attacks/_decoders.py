"""The decoders under atheris: ``python -m attacks._decoders -runs=N FOLDER``."""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import atheris  # type: ignore[import-not-found]

with atheris.instrument_imports(include=["fedapm"]):
    from fedapm.errors import FedapmError
    from fedapm.runs.files import parse_toml, read_json, read_tensors
    from fedapm.runs.records import JsonLines

SCRATCH = Path(tempfile.mkdtemp(prefix="fedapm-decoders-")) / "file"


def decode(data: bytes) -> None:
    """Give the bytes to every decoder; anything but the package's own error is a find."""
    SCRATCH.write_bytes(data)
    for reader in (read_json, read_tensors, lambda path: list(JsonLines(path))):
        with suppress(FedapmError):
            reader(SCRATCH)
    with suppress(FedapmError):
        parse_toml(data.decode("utf-8", "replace"), "text")


if __name__ == "__main__":
    atheris.Setup(sys.argv, decode)
    atheris.Fuzz()
