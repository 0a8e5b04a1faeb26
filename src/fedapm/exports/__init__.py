"""Models for use elsewhere: one client's, in one file with what it needs, as safetensors, ONNX or TorchScript.

docs/how-to/use-a-model.md shows how each is loaded.
"""

from fedapm.exports.description import Description
from fedapm.exports.formats import FORMATS, find_format, known_format, write_model
from fedapm.exports.reading import read_about, read_transform

__all__ = ["FORMATS", "Description", "find_format", "known_format", "read_about", "read_transform", "write_model"]
