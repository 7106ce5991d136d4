"""CLIP score: the mean cosine of images and their captions, by a CLIP that the user gives or by the
built-in one.

With `metrics.clip`, the folder of a CLIP (the papers use OpenAI's ViT-B/32), captions begin with "A
photo depicts " and are truncated to 77 tokens, and images are resized to 256 pixels before CLIP's
own preprocessing; the cosine is neither scaled nor clamped. The built-in one is transformers'
CLIPModel with a small config and a word-level tokenizer for the captions of scenes. Their cosines
are not comparable, so every number is stored with an `identity`. torchmetrics' CLIPScore does not
work here: it expects tensors from the towers, and transformers 5 returns other objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from search_spaces.params import as_tuples
from workers.metrics.clip_files import ClipTowers, folder_identity, load_clip_folder
from workers.metrics.networks import ScoreContext, Scorer, own_or_builtin, register_score
from workers.metrics.pixels import SIDE
from workers.models.checkpoint_files import WeightsError, content_hash, is_shapes_only
from workers.models.own_files import read_config, read_module
from workers.scenes.captions import SLOTS, caption, parse
from workers.scenes.images import IMAGE_SIZE

# imported where it is used: the import takes seconds, and not every process loads a CLIP
if TYPE_CHECKING:
    from transformers import CLIPConfig

KEY = "clip"
_PREFIX = "A photo depicts "
BUILTIN = Path(__file__).parents[1] / "models" / "builtin" / "scenes" / "clip.safetensors"
# with 2 as STOP, transformers would fall back to CLIP's old, wrong pooling
PAD = 0
START = 1
STOP = 3
_FUNCTION_WORDS = ("a", "at", "background", "of", "on", "the")
_SLOT_WORDS = set(" ".join(value for _, values in SLOTS for value in values).split())
_SLOT_WORDS -= {"none", "alone"}
WORDS = ("<pad>", "<start>", "<unused>", "<stop>", *sorted(_SLOT_WORDS.union(_FUNCTION_WORDS)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipConfig:
    """Sizes of both towers. `words` is the vocabulary in the order of the token ids."""

    dim: int = 96
    heads: int = 3
    ffn_dim: int = 256
    vision_layers: int = 4
    text_layers: int = 2
    patch: int = 8
    projection: int = 64
    text_len: int = 20
    image_size: int = IMAGE_SIZE
    words: tuple[str, ...] = WORDS

    @classmethod
    def from_mapping(cls, fields: Mapping[str, Any]) -> ClipConfig:
        """Raises WeightsError when its vocabulary is not that of the scenes, TypeError for fields
        of another config.
        """
        config = cls(**{key: as_tuples(value) for key, value in fields.items()})
        if config.words != WORDS:
            raise WeightsError("the CLIP's vocabulary is not that of the scenes: train it again")
        return config

    def transformers_config(self) -> CLIPConfig:
        """The same sizes as transformers' config."""
        from transformers import CLIPConfig

        shared = {
            "hidden_size": self.dim,
            "intermediate_size": self.ffn_dim,
            "num_attention_heads": self.heads,
            "projection_dim": self.projection,
        }
        text = shared | {
            "num_hidden_layers": self.text_layers,
            "vocab_size": len(self.words),
            "max_position_embeddings": self.text_len,
            "pad_token_id": PAD,
            "bos_token_id": START,
            "eos_token_id": STOP,
        }
        vision = shared | {
            "num_hidden_layers": self.vision_layers,
            "image_size": self.image_size,
            "patch_size": self.patch,
        }
        return CLIPConfig(text_config=text, vision_config=vision, projection_dim=self.projection)


class SceneClip(ClipTowers):
    """The built-in CLIP and its vocabulary."""

    identity = "untrained"

    def __init__(self, config: ClipConfig) -> None:
        super().__init__(config.transformers_config())
        self.config = config
        self._ids = {word: index for index, word in enumerate(config.words)}

    def tokens(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Token ids [n, text_len] of captions in their canonical form, and their mask (0 for
        padding).

        Raises:
            ValueError: a caption is not one of a scene.
        """
        ids = torch.full((len(captions), self.config.text_len), PAD)
        for row, text in enumerate(captions):
            words = [START, *(self._ids[word] for word in caption(parse(text)).split()), STOP]
            ids[row, : len(words)] = torch.tensor(words)
        return ids, (ids != PAD).long()

    def pixels(self, images: Tensor) -> Tensor:
        size = self.config.image_size
        if images.dim() != 4 or images.shape[1:] != (3, size, size):
            raise ValueError(
                f"the scenes CLIP takes images [n, 3, {size}, {size}] in [0, 1], got "
                f"{tuple(images.shape)}"
            )
        return images * 4 - 2


def load_clip(path: Path = BUILTIN) -> SceneClip:
    """The CLIP of a weight file whose header has its config; frozen, in evaluation mode, fp32.

    Raises:
        WeightsError: the file is missing, damaged, or of another model.
    """
    model, _ = read_module(
        path, "a scenes CLIP", lambda fields: SceneClip(ClipConfig.from_mapping(fields))
    )
    model.identity = _identity(path)
    return model.requires_grad_(False)


def _identity(path: Path) -> str:
    return f"scenes-clip@{content_hash(path)}"


def _load(context: ScoreContext) -> Scorer:
    if KEY in context.weights:
        folder = context.path(KEY)
        model = load_clip_folder(folder, side=SIDE).to(context.device)
        return Scorer(
            folder_identity("clip-photo256", folder),
            lambda images, captions: model.cosines(images, [_PREFIX + text for text in captions]),
        )
    path = own_or_builtin(context.folder, BUILTIN)
    scenes = cache(lambda: load_clip(path).to(context.device))
    # a check of the package's own file would import transformers: seconds
    if path != BUILTIN or not is_shapes_only():
        scenes()
    context.require_scenes("the scenes CLIP", ClipConfig.from_mapping(read_config(path)).image_size)
    return Scorer(_identity(path), lambda images, captions: scenes().cosines(images, captions))


register_score(
    "clip_score",
    unit="cosine",
    about=(
        "How well images match their captions: mean cosine of the CLIP that the score's identity "
        "names"
    ),
    load=_load,
    optional_weights=(KEY,),
)
