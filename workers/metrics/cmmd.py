"""CMMD: the squared maximum mean discrepancy of CLIP's embeddings under a Gaussian kernel
(Jayasumana et al. 2024).

As in the published code, embeddings of CLIP ViT-L/14 at 336 pixels have length 1, the kernel is
exp(-|x - y|^2 / 200), pairs of an image and itself count, and the value is 1000 times the
discrepancy. Images are resized in 8 bits by Pillow's bicubic filter; here they are first cut to
squares of 256 pixels, as for Inception. `metrics.clip_l336` is a folder of transformers' CLIP
(openai/clip-vit-large-patch14-336).
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from workers.metrics.clip_files import Clip, load_clip_folder
from workers.metrics.definition import REFERENCE
from workers.metrics.discrepancy import discrepancy, mean_within
from workers.metrics.estimate import Estimate
from workers.metrics.metric import MetricInputs, register_metric
from workers.metrics.networks import Extractor, register_extractor
from workers.metrics.pixels import SIDE

_KEY = "clip_l336"
_VARIANCE = 10.0**2
_SCALE = 1000.0


class ClipEmbeddings(Extractor):
    """The embedding of an image, of length 1."""

    side = SIDE
    batch = 16

    def __init__(self, clip: Clip) -> None:
        super().__init__()
        self.clip = clip
        self.width = clip.width

    def forward(self, pixels: Tensor) -> Tensor:
        """Embeddings [n, width] of pixels as `prepare` returns them."""
        embeddings = self.clip.clip.get_image_features(pixel_values=pixels).pooler_output
        return F.normalize(embeddings.float(), dim=1)

    def prepare(self, images: Tensor) -> Tensor:
        """The input of `forward` from images [n, 3, H, W] in [0, 1]."""
        return self.clip.pixels(images)


def load_embeddings(folder: Path) -> ClipEmbeddings:
    """The network of a folder. Raises WeightsError (see `load_clip_folder`)."""
    return ClipEmbeddings(load_clip_folder(folder, texts=False, side=SIDE))


register_extractor(
    _KEY,
    role=_KEY,
    architecture="clip-bicubic336",
    load=load_embeddings,
    file="folder of CLIP ViT-L/14 at 336 pixels",
)


def _gaussian(x: Tensor, y: Tensor) -> Tensor:
    """The Gaussian kernel [n, m] of features [n, d] and [m, d]."""
    return (torch.cdist(x, y).square() / (-2 * _VARIANCE)).exp()


def _mean_kernel(features: Tensor) -> float:
    return mean_within(features, _gaussian, with_self=True)


@register_metric("cmmd", direction="minimize", unit="kernel x 1000", needs=(_KEY, REFERENCE))
def _cmmd(inputs: MetricInputs) -> Estimate:
    """1000 times the squared MMD (Gaussian kernel) of the images' CLIP embeddings to the real
    images', at n images: comparable only at equal n.
    """
    reference = inputs.reference(_KEY)
    return discrepancy(
        inputs.column(_KEY),
        reference.features,
        inputs.blocks,
        _gaussian,
        with_self=True,
        within=reference.cached("cmmd", _mean_kernel),
        scale=_SCALE,
    )
