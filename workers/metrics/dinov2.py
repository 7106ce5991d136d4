"""Distances on DINOv2's features, which agree better with people's judgement than Inception's
(Stein et al. 2023).

As in that paper's code (dgm-eval), features are the class token of ViT-L/14 after the last
normalisation, of images resized to 224 x 224 in 8 bits by Pillow's bicubic filter and normalised by
ImageNet's mean and standard deviation; here they are first cut to squares of 256 pixels, as for
Inception. `metrics.dinov2` is a folder of transformers' Dinov2Model (facebook/dinov2-large), which
interpolates the positions of 518 pixels to those of 224; another size of the model gives other
features, under another identity.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from workers.metrics.clip_files import open_folder
from workers.metrics.definition import REFERENCE
from workers.metrics.estimate import Estimate
from workers.metrics.frechet import Gaussian, distance_to_reference
from workers.metrics.kid import kernel_distance, mean_kernel
from workers.metrics.metric import MetricInputs, register_metric
from workers.metrics.networks import Extractor, load_frozen, register_extractor
from workers.metrics.pixels import BICUBIC, IMAGENET, SIDE, squares, squashed_input
from workers.models.weights import KeyMapping

if TYPE_CHECKING:
    from transformers import Dinov2Config

_KEY = "dinov2"
_INPUT_SIZE = 224
_PROJECTIONS = {
    "attention.query": "q_proj",
    "attention.key": "k_proj",
    "attention.value": "v_proj",
    "output.dense": "o_proj",
}
_TABLE = (
    *(KeyMapping(f"{{...}}.attention.{file}.{{kind}}", f"{{...}}.attention.{own}.{{kind}}")
      for file, own in _PROJECTIONS.items()),
    KeyMapping("{...}", "{...}"),
)  # fmt: skip


class Dinov2Features(Extractor):
    """The class token of an image: 1024 features of ViT-L/14."""

    side = SIDE

    def __init__(self, config: Dinov2Config) -> None:
        from transformers import Dinov2Model

        super().__init__()
        self.model = Dinov2Model(config)
        self.width = config.hidden_size

    def forward(self, pixels: Tensor) -> Tensor:
        """Features [n, width] of normalised images [n, 3, 224, 224]."""
        features: Tensor = self.model(pixel_values=pixels).last_hidden_state[:, 0]
        return features

    def prepare(self, images: Tensor) -> Tensor:
        """The input of `forward` from images [n, 3, H, W] in [0, 1]."""
        return squashed_input(squares(images), _INPUT_SIZE, *IMAGENET, BICUBIC)


def load_dinov2(folder: Path) -> Dinov2Features:
    """The network of a folder in the Hugging Face layout. Raises WeightsError (see
    `open_folder`).
    """
    from transformers import Dinov2Config

    config, weights = open_folder(folder, Dinov2Config)
    return load_frozen(lambda: Dinov2Features(config), weights, _TABLE, part="model")


register_extractor(
    _KEY,
    role=_KEY,
    architecture="dinov2-bicubic224",
    load=load_dinov2,
    file="folder of DINOv2",
)


@register_metric(
    "fd_dinov2",
    direction="minimize",
    unit="features squared",
    needs=(_KEY, REFERENCE),
    covariance_of=_KEY,
)
def fd_dinov2(inputs: MetricInputs) -> Estimate:
    """Frechet distance of the images' DINOv2 features to the real images', at n images: comparable
    only at equal n.
    """
    reference = inputs.reference(_KEY).cached("gaussian", Gaussian.fit)
    return distance_to_reference(inputs.column(_KEY), reference, inputs.blocks)


@register_metric(
    "kd_dinov2", direction="minimize", unit="kernel", needs=(_KEY, REFERENCE), unbiased=True
)
def kd_dinov2(inputs: MetricInputs) -> Estimate:
    """Kernel distance (unbiased squared MMD, cubic kernel) of the images' DINOv2 features to the
    real images'.
    """
    reference = inputs.reference(_KEY)
    within = reference.cached("kid", mean_kernel)
    return kernel_distance(inputs.column(_KEY), reference.features, inputs.blocks, within=within)
