"""Small images through a frozen encoder: its features, reduced by principal components, in place of pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache as once
from typing import Any, ClassVar

import torch

from fedapm.data.dataset import Pool, Source
from fedapm.data.features import cache
from fedapm.data.features.images import ImageEncoder, SmallImageEncoder
from fedapm.data.sets.encoded import ModalityFeatures
from fedapm.data.sets.images import ImageSet
from fedapm.data.sets.projected import ProjectedSet


class EncodedImages(ProjectedSet, ImageSet):
    """A version of an image data set; only images that are used are encoded."""

    features_name = SmallImageEncoder.name
    encoder: ClassVar[type[ImageEncoder]] = SmallImageEncoder
    fitted = 5000
    encoders = ("image",)
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "data": {"feature_dim": 128},
        "model": {"name": "mlp", "preset": "output", "options": {"hidden": [64]}},
        "solver": {"lr": 0.05, "batch_size": 20, "weight_decay": 0.005},
    }

    def read(self, source: Source) -> Pool:
        """The features of the clients' images, in the published order."""
        self.check_components(source, self.encoder.width, "image")
        # the labels of all images, not of the clients' alone
        whole = super(ProjectedSet, self).labels(source)
        return self.projected(whole, source, image=self.load_features(source)["image"])

    def features(self, source: Source) -> Sequence[ModalityFeatures]:
        """The encoder's features of the images that are used."""
        images = self.read_images(source).inputs[0]
        order = self.order(len(images), source)
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
