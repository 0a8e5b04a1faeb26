"""Description: what somebody has to know to use a client's model."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedapm.core.transform import Form, Transform
from fedapm.errors import FedapmError

OUTPUT = "output"
"""What the output of an ONNX model is called."""
SCRIPT = "torchscript"
"""The field that holds a scripted transform, in base 64."""


@dataclass(frozen=True)
class Description:
    """What somebody has to know to use a client's model."""

    client: str
    view: str
    round: int
    info: Mapping[str, Any]
    """What run.json says."""
    scores: Mapping[str, float | None] = field(default_factory=dict)
    scored_on: str = "test"
    """Which samples the scores are of: test, validation or training."""
    transform: Transform | None = None

    @property
    def input_types(self) -> list[str]:
        """The types of the network's inputs; none where the run does not say."""
        return [str(name) for name in self.info.get("input_types", ())]

    @property
    def network_inputs(self) -> tuple[Form, ...]:
        """The shape of each input of the network, of one sample, and its type."""
        shapes, types = self.info.get("input_shapes"), self.info.get("input_types")
        if not shapes or not types:
            raise FedapmError("the run does not say what its inputs were; an earlier version made it, so run it again.")
        return tuple((tuple(shape), str(dtype)) for shape, dtype in zip(shapes, types, strict=True))

    def inputs(self, *, included: bool) -> tuple[Form, ...]:
        """The inputs that a file takes.

        Args:
            included: Whether the file contains the transform, and so takes raw inputs.
        """
        return self.transform.raw if included and self.transform is not None else self.network_inputs

    def about(self, *, included: bool = False, embedded: bool = False) -> dict[str, Any]:
        """All of it, for JSON.

        Args:
            included: Whether the file contains the transform, and so takes raw inputs.
            embedded: Whether a scripted transform is to be stored here, because the file has no other place for it.
        """
        info = self.info
        known = bool(info.get("input_shapes") and info.get("input_types"))
        forms = self.inputs(included=included) if known else ()
        return {
            "client": self.client,
            "method": info["method"],
            "round": self.round,
            "view": self.view,
            "data": info.get("data"),
            "network": info.get("model"),
            "inputs": [
                {"name": name, "shape": ["batch", *shape], "dtype": dtype}
                for name, (shape, dtype) in zip(input_names(forms), forms, strict=True)
            ],
            "output": "logits" if info.get("classes", 1) else "values",
            "class_names": list(info.get("class_names", ())),
            "labels": list(info.get("labels", ())),
            "transform": self._transform(included, embedded),
            "scores": dict(self.scores),
            "scored_on": self.scored_on,
            "split": dict(info.get("split", {})),
            "fedapm": info.get("fedapm"),
        }

    def _transform(self, included: bool, embedded: bool) -> dict[str, Any] | None:
        if self.transform is None:
            return None
        content = self.transform.content() if embedded else None
        script = {SCRIPT: base64.b64encode(content).decode()} if content is not None else {}
        return {**self.transform.describe(), "included": included, **script}


def input_names(forms: Sequence[Form]) -> list[str]:
    """What the inputs of an exported model are called: as the arrays of a data file."""
    return ["x"] if len(forms) == 1 else [f"x{k}" for k in range(1, len(forms) + 1)]
