import os

import pytest
import torch

# librosa compiles itself the first time it is used: half a minute in a new environment, unless the result may be slow
os.environ.setdefault("NUMBA_OPT", "0")
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What mostly waits comes first, so that others are at work meanwhile."""
    items.sort(key=lambda item: item.get_closest_marker("deployment") is None)
