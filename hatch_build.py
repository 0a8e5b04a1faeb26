"""The README as the package's page shows it, where there is no repository around it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


def with_absolute_links(text: str, address: str) -> str:
    """The text with links to files of the repository made links to an address.

    Args:
        text: Markdown.
        address: Where the repository's files are.

    Returns:
        The text; links to other sites and to its own headings stay as they are.
    """
    return re.sub(r"\]\((?!\w+:|#)([^)\s]+)\)", rf"]({address}/\1)", text)


class ReadmeHook(MetadataHookInterface):
    """Gives the metadata its long description."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README; its links lead to the files of this version.

        Args:
            metadata: The table ``project``, which is changed.
        """
        text = Path(self.root, "README.md").read_text("utf-8")
        address = f"{metadata['urls']['Source']}/blob/v{metadata['version']}"
        metadata["readme"] = {"content-type": "text/markdown", "text": with_absolute_links(text, address)}
