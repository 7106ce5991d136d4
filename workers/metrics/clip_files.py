"""CLIP models from a user's own files: Hugging Face folders, and open_clip's checkpoints by a table of names.

Towers are transformers' CLIPModel; weights are loaded by this project's own all-or-nothing check, tokenizers from the
files beside them. Embeddings have length 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from workers.metrics.pixels import CLIP_MEAN, CLIP_STD, clip_input
from workers.models.checkpoint_files import WeightsError, content_hash, load_tensors, read_json_object
from workers.models.weights import KeyMapping, load_weights, skip_init

if TYPE_CHECKING:  # imported where it is used: it takes seconds, and not every process loads one
    from transformers import CLIPConfig, CLIPTokenizer

AT_ONCE = 64
WEIGHT_FILES = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin")
TOKENIZER_FILES = ("tokenizer.json", "vocab.json")
# Older files hold the numbers 0, 1, 2, ... of the positions as well.
FOLDER_TABLE = (KeyMapping("{...}.position_ids", None), KeyMapping("{...}", "{...}"))


def _turned(parts: Sequence[Tensor]) -> Tensor:
    """open_clip multiplies from the right, so its projections are stored the other way round."""
    return parts[0].T


def _open_clip_block(source: str, target: str) -> tuple[KeyMapping, ...]:
    """One transformer layer {i} of open_clip, whose joint projection `_separated` has cut into three."""
    names = {"attn.out_proj": "self_attn.out_proj", "ln_1": "layer_norm1", "ln_2": "layer_norm2"}
    names |= {f"attn.{part}_proj": f"self_attn.{part}_proj" for part in "qkv"}
    names |= {"mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2"}
    return tuple(KeyMapping(f"{source}.{{i}}.{a}.{{...}}", f"{target}.{{i}}.{b}.{{...}}") for a, b in names.items())


OPEN_CLIP_TABLE = (
    KeyMapping("logit_scale", "logit_scale"),
    KeyMapping("attn_mask", None),  # a constant that older files hold
    KeyMapping("token_embedding.weight", "text_model.embeddings.token_embedding.weight"),
    KeyMapping("positional_embedding", "text_model.embeddings.position_embedding.weight"),
    KeyMapping("text_projection", "text_projection.weight", _turned),
    KeyMapping("ln_final.{...}", "text_model.final_layer_norm.{...}"),
    KeyMapping("visual.class_embedding", "vision_model.embeddings.class_embedding"),
    KeyMapping("visual.positional_embedding", "vision_model.embeddings.position_embedding.weight"),
    KeyMapping("visual.conv1.weight", "vision_model.embeddings.patch_embedding.weight"),
    KeyMapping("visual.ln_pre.{...}", "vision_model.pre_layrnorm.{...}"),
    KeyMapping("visual.ln_post.{...}", "vision_model.post_layernorm.{...}"),
    KeyMapping("visual.proj", "visual_projection.weight", _turned),
    *_open_clip_block("visual.transformer.resblocks", "vision_model.encoder.layers"),
    *_open_clip_block("transformer.resblocks", "text_model.encoder.layers"),
)


@dataclass(frozen=True, slots=True)
class Scaling:
    """What pixels of a channel, in 0..1, are reduced by and divided by."""

    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD


class Clip(nn.Module):
    """Both towers, their tokenizer and their way with pixels."""

    def __init__(self, config: CLIPConfig, tokenizer: CLIPTokenizer | None, scaling: Scaling | None = None) -> None:
        """tokenizer None: images only."""
        from transformers import CLIPModel

        super().__init__()
        self.clip = CLIPModel(config)
        self.tokenizer, self.scaling = tokenizer, scaling or Scaling()
        vision: Any = config.vision_config
        shared: Any = config.projection_dim
        self.image_size, self.text_length = int(vision.image_size), int(_text(config).max_position_embeddings)
        self.width = int(shared)

    @property
    def device(self) -> torch.device:
        return self.clip.logit_scale.device

    def embed_captions(self, captions: Sequence[str]) -> Tensor:
        """Embeddings [n, d] of captions; what is longer than the model reads is cut off, its end mark kept."""
        assert self.tokenizer is not None, "loaded for images only"
        found = self.tokenizer(
            list(captions), padding="max_length", truncation=True, max_length=self.text_length, return_tensors="pt"
        )
        # No mask: what follows the end mark cannot be seen from it, and the end mark is what is read.
        out = self.clip.get_text_features(input_ids=found["input_ids"].to(self.device)).pooler_output
        return F.normalize(out.float(), dim=1)

    def embed_pictures(self, pictures: Sequence[Image.Image]) -> Tensor:
        """Embeddings [n, d] of pictures."""
        pixels = clip_input(pictures, self.image_size, mean=self.scaling.mean, std=self.scaling.std)
        out = self.clip.get_image_features(pixel_values=pixels.to(self.device)).pooler_output
        return F.normalize(out.float(), dim=1)

    @torch.no_grad()
    def cosines(self, pictures: Sequence[Image.Image], captions: Sequence[str]) -> Tensor:
        """Cosine [n] of each picture with its own caption, float32 on the CPU."""
        if len(pictures) != len(captions):
            raise ValueError(f"{len(pictures)} images and {len(captions)} captions: give one caption per image")
        parts = []
        for start in range(0, len(captions), AT_ONCE):
            seen = self.embed_pictures(pictures[start : start + AT_ONCE])
            parts.append((seen * self.embed_captions(captions[start : start + AT_ONCE])).sum(1).cpu())
        return torch.cat(parts)


def load_clip_folder(folder: Path, *, texts: bool = True) -> Clip:
    """The CLIP of a folder as Hugging Face lays it out (config.json, weights, and for texts its tokenizer's files).

    Frozen, in evaluation mode, fp32.

    Raises:
        WeightsError: no such folder; a file of it is missing, damaged, or another model's; it is named.
    """
    if not folder.is_dir():
        raise WeightsError(f"{folder}: no such folder; give a CLIP's own, with config.json and its weights in it")
    fields = read_json_object(folder / "config.json")
    if fields.get("model_type") != "clip":
        raise WeightsError(f"{folder / 'config.json'}: of a model of type {fields.get('model_type')!r}, not clip")
    config = clip_config(fields, folder / "config.json")
    weights = next((folder / name for name in WEIGHT_FILES if (folder / name).is_file()), None)
    if weights is None:
        raise WeightsError(f"{folder}: no weights in it; it needs one of {', '.join(WEIGHT_FILES)}")
    tokenizer = load_clip_tokenizer(folder, config) if texts else None
    model = skip_init(lambda: Clip(config, tokenizer, _scaling(folder)))
    load_weights(model.clip, load_tensors(weights), FOLDER_TABLE, where=weights)
    return model.eval().requires_grad_(False)


def load_open_clip(path: Path, config: CLIPConfig, tokenizer: CLIPTokenizer) -> Clip:
    """A checkpoint in open_clip's layout as a CLIPModel; frozen, in evaluation mode, fp32.

    Raises:
        WeightsError: the file is missing, damaged, or of another model or size; it is named.
    """
    model = skip_init(lambda: Clip(config, tokenizer))
    load_weights(model.clip, _separated(load_tensors(path)), OPEN_CLIP_TABLE, where=path)
    return model.eval().requires_grad_(False)


def clip_config(fields: Mapping[str, Any], where: Path) -> CLIPConfig:
    """transformers' config of given sizes. Raises WeightsError, naming `where`, when they are no CLIP's."""
    from transformers import CLIPConfig

    try:
        return CLIPConfig(**fields)
    except Exception as error:  # its validation raises errors of several libraries
        raise WeightsError(f"{where}: not the config of a CLIP: {error}") from error


def load_clip_tokenizer(folder: Path, config: CLIPConfig) -> CLIPTokenizer:
    """CLIP's tokenizer from a folder with tokenizer.json, or with vocab.json and merges.txt.

    Raises:
        WeightsError: none is there, it cannot be read, or its marks are not the ones that the model knows.
    """
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise WeightsError(f"{folder}: no tokenizer in it; copy tokenizer.json, or vocab.json and merges.txt, there")
    from transformers import CLIPTokenizer

    try:
        tokenizer: CLIPTokenizer = CLIPTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # a damaged file can raise anything
        raise WeightsError(f"{folder}: its tokenizer cannot be read ({error}); download it again") from error
    text, end = _text(config), tokenizer.eos_token_id
    # 2 stands in old configs, where transformers takes the largest number for the end
    if len(tokenizer) > text.vocab_size or text.eos_token_id not in (2, end):
        raise WeightsError(
            f"{folder}: a tokenizer of {len(tokenizer)} words that ends captions by {end}, but the model knows "
            f"{text.vocab_size} and the end {text.eos_token_id}; give the model's own"
        )
    return tokenizer


def folder_identity(name: str, folder: Path) -> str:
    """What scores of a CLIP folder are told by: the hash of all that shapes them."""
    files = [*WEIGHT_FILES, *TOKENIZER_FILES, "config.json", "merges.txt", "preprocessor_config.json"]
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    there = [folder / file for file in sorted({*files, *shards}) if (folder / file).is_file()]
    return f"{name}@{combined_hash(there)}"


def combined_hash(paths: Sequence[Path]) -> str:
    """One hash for several files: the single one's own, else 16 hex digits over all of theirs."""
    hashes = [content_hash(path) for path in paths]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()[:16]


def _text(config: CLIPConfig) -> Any:
    """The text tower's config, which transformers' types leave open."""
    return config.text_config


def _separated(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """open_clip keeps query, key and value in one matrix: cut into three of their own names."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stem, joint, kind = name.partition("attn.in_proj_")
        if not joint:
            found[name] = tensor
            continue
        for part, piece in zip("qkv", tensor.chunk(3), strict=True):
            found[f"{stem}attn.{part}_proj.{kind}"] = piece
    return found


def _scaling(folder: Path) -> Scaling:
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return Scaling()
    fields = read_json_object(path)
    try:
        mean, std = (tuple(float(x) for x in fields[key]) for key in ("image_mean", "image_std"))
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{path}: does not say image_mean and image_std; download it again") from error
    return Scaling(mean, std)
