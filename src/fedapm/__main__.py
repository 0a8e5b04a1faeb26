"""``python -m fedapm`` is the command line."""

from __future__ import annotations

from fedapm.cli.main import main

if __name__ == "__main__":
    main()
