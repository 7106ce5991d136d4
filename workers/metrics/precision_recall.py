"""Improved precision and recall (Kynkaanniemi et al. 2019): are images realistic, and do they cover
the real ones?

A set's manifold is the union of balls around its features; each ball reaches to the k-th nearest
other feature. Precision is the share of images inside the real images' manifold, recall the share
of real images inside the images'. Both depend on the sizes of the sets: compare at equal n and with
one reference.

They are computed on the sweep's features, or as in the paper on VGG-16's second fully connected
layer when its weights are given: torchvision's file for ImageNet (`vgg16-397923af.pth`:
features.{0..28}, classifier.{0, 3, 6}), read without torchvision. Features are the 4096 of
classifier.3 before its ReLU, as in the published evaluation scripts; images are resized to 224 x
224 (here from 256-pixel squares) and normalised by ImageNet's mean and standard deviation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.metrics.definition import FEATURES, MANIFOLD, REFERENCE
from workers.metrics.estimate import Estimate, MetricUnavailable, block_mean, block_sizes
from workers.metrics.metric import MetricInputs, ReferenceFeatures, register_metric
from workers.metrics.networks import Extractor, load_frozen, register_extractor
from workers.metrics.pixels import IMAGENET, SIDE, squares, squashed_input
from workers.models.weights import KeyMapping

_NEAREST = 3
_DISTANCES_PER_CHUNK = 1 << 23  # float64: 64 MiB
_ROUNDING = 1e-7  # error of a distance computed by products, relative to the norms of both points
_WIDTH = 4096
_INPUT_SIZE = 224
# Channels of the convolutions; 2 x 2 max pooling follows each stage.
_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
# The layer of the class logits is not loaded.
_TABLE = (KeyMapping("classifier.6.{...}", None), KeyMapping("{...}", "{...}"))


def radii(features: Tensor, k: int = _NEAREST) -> Tensor:
    """Distance [n] of each row [n, d] to its k-th nearest other row.

    Raises:
        MetricUnavailable: there are at most k rows.
    """
    return torch.cat([distances[:, k - 1] for _, distances, _ in _nearest(features, k)])


def inside(points: Tensor, centres: Tensor, reach: Tensor) -> Tensor:
    """Whether points [n, d] are in a ball around one of the centres [m, d]; bool [n, s] for s sets
    of radii [m, s].
    """
    parts = []
    for part in torch.split(points.double(), max(1, _DISTANCES_PER_CHUNK // centres.shape[0])):
        distances = _distances(part, centres)
        parts.append(
            torch.stack([(distances <= column).any(1) for column in reach.unbind(1)], dim=1)
        )
    return torch.cat(parts)


def precision(features: Tensor, blocks: Tensor, reference: Tensor, reach: Tensor) -> Estimate:
    """Share of images [n, d] inside the manifold of the reference [m, d] with radii [m]; jackknife
    over blocks [n].
    """
    real = inside(features, reference, reach[:, None])[:, 0]
    return block_mean(real.double(), blocks)


def recall(features: Tensor, blocks: Tensor, reference: Tensor, k: int = _NEAREST) -> Estimate:
    """Share of the reference [m, d] inside the manifold of images [n, d], with the jackknife over
    blocks [n].

    Raises:
        MetricUnavailable: fewer than two blocks, or too few images outside of one for k neighbours.
    """
    sizes = block_sizes(blocks)
    largest = int(sizes.max())  # a row has at most this many neighbours in one block
    nearest = list[Tensor]()
    for rows, distances, neighbours in _nearest(features, k + largest):
        nearest.append(_reaches(distances, blocks[neighbours], blocks[rows], sizes.numel(), k))
    shares = inside(reference, features.double(), torch.cat(nearest)).double().mean(0)
    return Estimate.from_replicates(shares, features.shape[0])


def _reaches(distances: Tensor, block: Tensor, own: Tensor, blocks: int, k: int) -> Tensor:
    """The radii [n, 1 + blocks] of n rows' balls, among all images and without each block.

    Args:
        distances: [n, m] distances to the nearest other rows, ascending.
        block: [n, m] blocks of these neighbours.
        own: [n] blocks of the rows themselves.
        blocks: number of blocks.
        k: a ball reaches to the k-th neighbour.
    """
    columns = [distances[:, k - 1]]
    for left_out in range(blocks):
        rank = (block != left_out).cumsum(1) == k
        reach = distances.gather(1, rank.int().argmax(1, keepdim=True))[:, 0]
        columns.append(torch.where(own == left_out, -1.0, reach))  # an empty ball
    return torch.stack(columns, dim=1)


def _nearest(features: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Some rows at a time: their indices [n], and distances and indices [n, count] of their nearest
    other rows, ascending.
    """
    x = features.double()
    if x.shape[0] <= count:
        raise MetricUnavailable(
            f"{x.shape[0]} images are too few for manifolds of {_NEAREST} nearest neighbours"
        )
    for rows in torch.split(torch.arange(x.shape[0]), max(1, _DISTANCES_PER_CHUNK // x.shape[0])):
        distances = _distances(x[rows], x)
        distances[torch.arange(rows.numel()), rows] = torch.inf
        yield rows, *distances.topk(count, dim=1, largest=False, sorted=True)


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """[n, m], computed by products, which is many times faster than by differences. Values within
    the rounding error become 0, because equal features must have distance 0.
    """
    centre = b.double().mean(0)
    a, b = a.double() - centre, b.double() - centre
    distances = torch.cdist(a, b, compute_mode="use_mm_for_euclid_dist")
    return distances.masked_fill_(
        distances < _ROUNDING * (a.norm(dim=1)[:, None] + b.norm(dim=1)), 0.0
    )


def _features(inputs: MetricInputs) -> tuple[Tensor, ReferenceFeatures]:
    """Features of the images and of the real ones, by the manifold's extractor if there is one,
    else the sweep's.
    """
    column = MANIFOLD if MANIFOLD in inputs.references else FEATURES
    return inputs.column(column), inputs.reference(column)


@register_metric(
    "precision", direction="maximize", unit="share", needs=(FEATURES, REFERENCE), unbiased=True
)
def _precision(inputs: MetricInputs) -> Estimate:
    """Share of images whose features are inside the real images' manifold (k = 3 nearest
    neighbours).
    """
    features, reference = _features(inputs)
    return precision(features, inputs.blocks, reference.features, reference.cached("radii", radii))


@register_metric("recall", direction="maximize", unit="share", needs=(FEATURES, REFERENCE))
def _recall(inputs: MetricInputs) -> Estimate:
    """Share of real images whose features are inside the images' manifold (k = 3 nearest
    neighbours).
    """
    features, reference = _features(inputs)
    return recall(features, inputs.blocks, reference.features)


class VggFeatures(Extractor):
    """4096 features of an image."""

    side = SIDE

    def __init__(self, stages: Sequence[Sequence[int]] = _STAGES, width: int = _WIDTH) -> None:
        """`stages`: channels of the convolutions; `width`: number of features."""
        super().__init__()
        self.width = width
        layers: list[nn.Module] = []
        channels = 3
        for stage in stages:
            for out_channels in stage:
                layers += [nn.Conv2d(channels, out_channels, 3, padding=1), nn.ReLU(inplace=True)]
                channels = out_channels
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        cells = (_INPUT_SIZE // 2 ** len(stages)) ** 2
        self.classifier = nn.ModuleDict(
            {"0": nn.Linear(channels * cells, width), "3": nn.Linear(width, width)}
        )

    def forward(self, x: Tensor) -> Tensor:
        """Features [n, 4096] of normalised images [n, 3, 224, 224]."""
        hidden = F.relu(self.classifier["0"](self.features(x).flatten(1)), inplace=True)
        features: Tensor = self.classifier["3"](hidden)
        return features

    def prepare(self, images: Tensor) -> Tensor:
        """The input of `forward` from images [n, 3, H, W] in [0, 1]."""
        return squashed_input(squares(images), _INPUT_SIZE, *IMAGENET)


def load_vgg(
    path: Path, *, stages: Sequence[Sequence[int]] = _STAGES, width: int = _WIDTH
) -> VggFeatures:
    """The network of a weight file in torchvision's layout. Raises WeightsError (see
    `load_frozen`).
    """
    return load_frozen(lambda: VggFeatures(stages, width), path, _TABLE)


register_extractor("vgg", role="manifold", architecture="vgg16-fc2", load=load_vgg)
