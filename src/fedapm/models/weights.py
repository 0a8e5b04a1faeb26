"""Networks of the library transformers with published weights: from a package, a folder, or the hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from fedapm.core.extras import require
from fedapm.core.pretrained import load_transformer, quiet_libraries
from fedapm.errors import FedapmError

EXTRA = "lora"


def transformer(weights: str, packaged: Mapping[str, str], fetch: bool, instead: str = "") -> nn.Module:
    """A network without its pooler.

    Args:
        weights: A name in ``packaged``, a folder, or a repository on the hub.
        packaged: The packages with weights, by the name that settings give them.
        fetch: Whether a repository may be downloaded.
        instead: What else needs no download; the first of ``packaged`` if not given.
    """
    purpose = f"the network {weights}"
    transformers = require("transformers", EXTRA, purpose)
    folder = _folder(weights, packaged, fetch, purpose, instead or next(iter(packaged)))
    try:
        with quiet_libraries(EXTRA):
            module = load_transformer(transformers.AutoModel, folder)
    except Exception as error:  # the library raises many types
        reason = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
        raise FedapmError(f"no network can be loaded from {folder} ({reason}).") from None
    if hasattr(module, "pooler"):
        module.pooler = None  # type: ignore[assignment]  # its output is not used, and it has parameters
    return module


def _folder(weights: str, packaged: Mapping[str, str], fetch: bool, purpose: str, instead: str) -> str:
    if weights in packaged:
        return str(require(packaged[weights], "features", purpose).get_model_path())
    if Path(weights).expanduser().is_dir():
        return str(Path(weights).expanduser())
    hub = require("huggingface_hub", EXTRA, purpose)
    with quiet_libraries(EXTRA):
        for online in (False, True) if fetch else (False,):
            try:
                return str(hub.snapshot_download(weights, local_files_only=not online))
            except Exception:  # the exceptions differ between versions of the library
                continue
    advice = "check the network" if fetch else "allow the download (model.options.fetch = true)"
    raise FedapmError(
        f"{weights} is no folder, and cannot be had from the hub{'' if fetch else ' without a download'}; {advice}, "
        f"give a folder, or take {instead}, which is installed with fedapm[features]."
    )
