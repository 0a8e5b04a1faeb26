"""CIFAR-100 (Krizhevsky 2009) as published: the folder ``cifar-100-binary`` or ``cifar-100-python``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedapm.data.download import Archive, Origin
from fedapm.data.sets.cifar import CIFAR, Layout
from fedapm.data.sets.cifar10 import CIFAR10
from fedapm.data.sets.files import read_text
from fedapm.errors import FedapmError


class CIFAR100(CIFAR):
    """60,000 images of a hundred classes; the twenty coarse classes are not used."""

    name = "cifar100"
    about = "CIFAR-100, 60,000 images of a hundred classes; needs --data-root"
    title = "CIFAR-100"
    binary = Layout("binary", "cifar-100-binary", "cifar-100-binary.tar.gz", ".bin")
    python = Layout("python", "cifar-100-python", "cifar-100-python.tar.gz", "")
    files = {"train": 50_000, "test": 10_000}
    label_bytes = 2
    label_key = "fine_labels"
    count = 100
    mean = (0.5071, 0.4865, 0.4409)
    std = (0.2673, 0.2564, 0.2762)
    origin = Origin(
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        license="no licence stated; cite Krizhevsky 2009",
        layout="cifar-100-binary or cifar-100-python",
        archives=(
            Archive(
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                "md5:03b5dce01913d631647c71ecec9e9cb8",
                "cifar-100-binary",
            ),
        ),
    )
    defaults = {
        "data": {"partition": "dirichlet", "concentration": 0.5},
        "model": {"name": "resnet18", "preset": "output"},
        "solver": CIFAR10.defaults["solver"],
        "engine": {"evaluate_every": 10},
    }

    def class_names(self, folder: Path, layout: Layout) -> tuple[str, ...]:
        """The names in the files beside the images; numbers if there are none."""
        path = folder / ("fine_label_names.txt" if layout is self.binary else "meta")
        if not path.is_file():
            return tuple(map(str, range(self.count)))
        if layout is self.binary:
            names: Any = read_text(path, f"unpack {layout.archive} again").split()
        else:
            names = self.unpickle(path, max_bytes=2**20).get("fine_label_names")
        if not isinstance(names, list) or len(names) != self.count or {type(n) for n in names} != {str}:
            raise FedapmError(f"{path} does not name {self.count} classes; unpack {layout.archive} again.")
        return tuple(names)
