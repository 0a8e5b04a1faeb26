"""What stands between a method and the wire: messages are bounded, compressed and rounded, and no method knows of it.

A client keeps what the server was told, not what it wished to tell. What is withheld is sent in a later round.
"""

from fedapm.uploads.broadcast import Announced
from fedapm.uploads.layer import layer_of
from fedapm.uploads.masks.method import Masked
from fedapm.uploads.method import Transmitted, transmitted
from fedapm.uploads.robust import Screening, screened
from fedapm.uploads.settings import UploadSettings
from fedapm.uploads.transform import Transform

__all__ = [
    "Announced",
    "Masked",
    "Screening",
    "Transform",
    "Transmitted",
    "UploadSettings",
    "layer_of",
    "screened",
    "transmitted",
]
