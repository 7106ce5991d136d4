"""Aesthetic score: LAION's improved predictor (sac+logos+ava1, V2), a linear head on CLIP
ViT-L/14's image embedding.

`metrics.aesthetic` is its file (`sac+logos+ava1-l14-linearMSE.pth`), `metrics.clip_l14` the folder
of OpenAI's CLIP ViT-L/14 in the Hugging Face layout; scores on another CLIP of the same width would
be meaningless. The predictor was trained on ratings of pictures from 1 to 10; it does not read the
caption.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from workers.metrics.clip_files import Clip, folder_identity, load_clip_folder
from workers.metrics.networks import ScoreContext, Scorer, load_frozen, register_score
from workers.models.checkpoint_files import content_hash

KEY = "aesthetic"
CLIP_KEY = "clip_l14"
_WIDTHS = (1024, 128, 64, 16, 1)
_LAYERS = ("0", "2", "4", "6", "7")  # dropout was at 1, 3 and 5 during training


class LinearHead(nn.Module):
    """Five linear layers without activations, as ImageReward has them too: one number from an
    embedding.

    `layers.{0, 2, 4, 6, 7}` as in the published files.
    """

    def __init__(self, inputs: int, widths: Sequence[int] = _WIDTHS) -> None:
        super().__init__()
        sizes = zip(_LAYERS, (inputs, *widths), widths, strict=False)
        self.layers = nn.ModuleDict(
            {name: nn.Linear(fan_in, fan_out) for name, fan_in, fan_out in sizes}
        )

    def forward(self, embeddings: Tensor) -> Tensor:
        """Numbers [n] of embeddings [n, inputs]."""
        for name in _LAYERS:
            embeddings = self.layers[name](embeddings)
        return embeddings.squeeze(1)


@torch.no_grad()
def aesthetic_scores(clip: Clip, head: LinearHead, images: Tensor) -> Tensor:
    """Scores [n] of images [n, 3, H, W] in [0, 1], float32 on the CPU."""
    scores: Tensor = head(clip.embed_images(images))
    return scores.cpu()


def _load(context: ScoreContext) -> Scorer:
    path = context.path(KEY)
    folder = context.path(CLIP_KEY)
    clip = load_clip_folder(folder, texts=False).to(context.device)
    head = load_frozen(lambda: LinearHead(clip.width), path).to(context.device)
    identity = f"laion-aesthetic@{content_hash(path)}+{folder_identity('clip', folder)}"
    return Scorer(identity, lambda images, _: aesthetic_scores(clip, head, images))


register_score(
    "aesthetic",
    unit="points of 10",
    about="LAION's aesthetic predictor on CLIP ViT-L/14; it does not read the caption",
    load=_load,
    weights={KEY: "LAION's predictor", CLIP_KEY: "folder of CLIP ViT-L/14"},
)
