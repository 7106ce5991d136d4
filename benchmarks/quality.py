"""Image quality of a setting, with uncertainties: fid, drift, and on scenes caption accuracy and
CLIP score.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from workers.data.reference import real_images
from workers.decoding.state import Request
from workers.metrics.caption_accuracy import image_accuracies
from workers.metrics.clip_score import load_clip
from workers.metrics.estimate import BLOCKS, Estimate, block_mean
from workers.metrics.features import load_features
from workers.metrics.frechet import Gaussian, difference, distance_between, distance_to_reference
from workers.models.target import Target
from workers.scenes.images import IMAGE_SIZE, render, sample_attributes

# held out from all training (seed 0) and from the captions drawn (seed 1)
REFERENCE_SEED, REFERENCE_SCENES = 2, 4096


@dataclass(frozen=True, slots=True)
class Quality:
    """`fid`: to real images. `drift`: to vanilla's images of the same captions. `gain`: fid minus
    vanilla's, paired.
    """

    fid: Estimate
    drift: Estimate | None
    gain: Estimate | None
    scores: Mapping[str, Estimate]  # of scenes: caption_accuracy and clip_score


class Judge:
    """The nets and the reference, computed once for all settings.

    The reference is a folder of real images of what the captions describe; None: scenes. The
    features are those of the built-in scenes' network, whatever the images show.
    """

    def __init__(
        self, target: Target, requests: Sequence[Request], folder: Path | None = None
    ) -> None:
        self.target, self.captions = target, [request.caption for request in requests]
        self.features = load_features()
        self.clip = None
        if folder is None:
            self.clip = load_clip()
            real: Iterable[Tensor] = [real_scenes(REFERENCE_SEED, REFERENCE_SCENES)]
        else:
            real = real_images(folder, size=IMAGE_SIZE).batches()
        self.reference = Gaussian.fit(torch.cat([self.features.extract(batch) for batch in real]))
        self.vanilla: Tensor | None = None

    def __call__(self, tokens: Tensor) -> Quality:
        """Quality of token rows [n, image_len], in the order of the requests. The first call's
        images are the drift's origin.
        """
        return self.judge(
            torch.cat(
                [
                    self.target.decode(part.to(self.target.device)).cpu()
                    for part in torch.split(tokens, 256)
                ]
            )
        )

    def judge(self, images: Tensor) -> Quality:
        """Quality of images [n, 3, H, W]."""
        features = self.features.extract(images)
        paired, blocks = self.vanilla is not None, torch.arange(len(images)) % BLOCKS
        if self.vanilla is None:
            self.vanilla = features
        return Quality(
            fid=distance_to_reference(features, self.reference, blocks),
            drift=distance_between(features, self.vanilla, blocks) if paired else None,
            gain=difference(features, self.vanilla, self.reference, blocks) if paired else None,
            scores=self._scores(images, features, blocks),
        )

    def _scores(self, images: Tensor, features: Tensor, blocks: Tensor) -> dict[str, Estimate]:
        """The scores of scenes, by name; none of other images."""
        if self.clip is None:
            return {}
        accuracies = image_accuracies(self.features, features, self.captions)
        return {
            "caption_accuracy": block_mean(accuracies, blocks),
            "clip_score": block_mean(self.clip.cosines(images, self.captions), blocks),
        }


def real_scenes(seed: int, count: int) -> Tensor:
    """Scenes 0..count-1 of a seed as images [count, 3, H, W]."""
    indices = range(count)
    parts = [indices[start : start + 512] for start in range(0, count, 512)]
    return torch.cat([render(sample_attributes(seed, part), seed, part) for part in parts])
