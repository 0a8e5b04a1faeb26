"""Adapters: small trained matrices inside a large frozen network, through the library peft.

The frozen network, the base, is the same for all clients. It is held once, and neither sent nor saved.
"""

from fedapm.adapters.base import AdaptedNetwork
from fedapm.adapters.inject import adapted
from fedapm.adapters.settings import LoraSettings

__all__ = ["AdaptedNetwork", "LoraSettings", "adapted"]
