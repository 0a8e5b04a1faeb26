"""Small images through a frozen encoder: its features, reduced by principal components, in place of pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache as once
from typing import Any, ClassVar

import numpy as np
import torch

from fedapm.data.dataset import Labels, Pool, Source, federate, sample_order
from fedapm.data.features import cache
from fedapm.data.features.images import ImageEncoder, SmallImageEncoder
from fedapm.data.features.projection import project
from fedapm.data.federation import Federation
from fedapm.data.partition import PartitionRule
from fedapm.data.sets.encoded import EncodedSet, ModalityFeatures
from fedapm.data.sets.images import ImageSet
from fedapm.errors import FedapmError

Array = np.ndarray[Any, Any]


class EncodedImages(EncodedSet, ImageSet):
    """A version of an image data set, to be put before its class among a class's bases.

    The first images in the order of ``data.samples`` belong to no client: the principal components and the scale are
    computed from them, so that nothing of a client's data, and nothing of its test data, is in the features of another
    sample. Only images that are used are encoded.
    """

    features_name = SmallImageEncoder.name
    encoder: ClassVar[type[ImageEncoder]] = SmallImageEncoder
    fitted: ClassVar[int] = 5000
    """The number of images that belong to no client."""
    encoders = ("image",)
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "data": {"feature_dim": 128},
        "model": {"name": "mlp", "preset": "output", "options": {"hidden": [64]}},
        "solver": {"lr": 0.05, "batch_size": 20, "weight_decay": 0.005},
    }

    def labels(self, source: Source) -> Labels:
        """The classes of the clients' images."""
        whole = super().labels(source)
        used = np.sort(self._order(len(whole.targets), source)[self.fitted :])
        return Labels(whole.targets[torch.as_tensor(used)], whole.classes, whole.modalities)

    def read(self, source: Source) -> Pool:
        """The features of the clients' images, in the published order."""
        dim = source.feature_dim
        if dim is not None and dim > min(self.encoder.width, self.fitted):
            raise FedapmError(
                f"data.feature_dim = {dim} is too large: {self.features_name} has {self.encoder.width} features, and "
                f"components are computed from {self.fitted} images."
            )
        encoded = self.load_features(source)["image"]
        projected = project(encoded[self.fitted :], encoded[: self.fitted], dim)
        whole = super().labels(source)
        used = self._order(len(whole.targets), source)[self.fitted :]
        # encoded in the order of data.samples, which is random
        pool = Pool(whole.targets[torch.as_tensor(used)], whole.classes, whole.modalities, inputs=(projected,))
        return pool.at(np.argsort(used))

    def federation(self, source: Source, rule: PartitionRule, *, test_fraction: float, seed: int) -> Federation:
        """Distribute the features over clients."""
        return federate(self.read(source), rule, test_fraction=test_fraction, seed=seed, name=self.full_name)

    def features(self, source: Source) -> Sequence[ModalityFeatures]:
        """The encoder's features of the images that are used."""
        images = self.read_images(source).inputs[0]
        order = self._order(len(images), source)
        pixels = images[torch.as_tensor(order)].permute(0, 2, 3, 1).contiguous().numpy()
        load_encoder = once(lambda: self.encoder(fetch_weights=source.fetch_weights))
        return (
            ModalityFeatures(
                f"images of {self.name}",
                source.feature_folder(self.name) / "image",
                [cache.bytes_item(str(k), image.tobytes()) for k, image in zip(order.tolist(), pixels, strict=True)],
                dict(self.encoder.settings),
                lambda some: {"image": load_encoder()([pixels[k] for k in some])},
                load_encoder,
                prefix=True,
            ),
        )

    def _order(self, count: int, source: Source) -> Array:
        """The positions of all images that are used: those that belong to no client, then the clients'."""
        return sample_order(self.name, count)[: None if source.samples is None else self.fitted + source.samples]
