"""Progress bars in a notebook: one output that is updated in place."""

from __future__ import annotations

import html
import sys
import time
from typing import Any, Protocol

SECONDS = 0.2
"""Between two updates of what is shown."""


class _Handle(Protocol):
    def update(self, content: Any) -> None:
        """Show something else in the same place."""


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ in ("ZMQInteractiveShell", "Shell")


class NotebookBars:
    """The bars of several tasks, in the order in which they came."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[int, int, str, str, str | None]] = {}
        self._began: dict[str, float] = {}
        self._handle: _Handle | None = None
        self._shown = 0.0

    def update(self, name: str, done: int, total: int, count: str, detail: str, left: str | None = None) -> None:
        """Move a task's bar; what is shown follows a few times a second, and always at the end."""
        self._began.setdefault(name, time.monotonic())
        self._rows[name] = (done, total, count, detail, left)
        if time.monotonic() - self._shown >= SECONDS or 0 < total <= done:
            self.show()

    def drop(self, name: str) -> None:
        """Take a task's bar away."""
        self._rows.pop(name, None)

    def show(self) -> None:
        """Show all bars now."""
        from IPython.display import HTML, display  # type: ignore[import-not-found,unused-ignore]

        content = HTML(self.as_html())
        self._shown = time.monotonic()
        if self._handle is None:
            self._handle = display(content, display_id=True)
        else:
            self._handle.update(content)

    def close(self) -> None:
        """Show where everything ended, if anything was shown."""
        if self._rows:
            self.show()

    def as_html(self) -> str:
        """All bars as a table."""
        rows = []
        for name, (done, total, count, detail, known) in self._rows.items():
            bar = f'<progress value="{done}" max="{total}"></progress>' if total else "<progress></progress>"
            spent = time.monotonic() - self._began[name]
            left = f"{spent * (total - done) / done:.0f} s left" if 0 < done < total else ""
            left = left if known is None else f"{known} left"
            cells = [html.escape(name), bar, html.escape(count), html.escape(detail), left]
            rows.append("<tr>" + "".join(f"<td style='text-align:left'>{cell}</td>" for cell in cells) + "</tr>")
        return f"<table>{''.join(rows)}</table>"
