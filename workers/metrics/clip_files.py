"""CLIP models from a user's own files: Hugging Face folders, and open_clip's checkpoints by a table of names.

Both towers are transformers' CLIPModel. Every weight in the file must be used and every parameter filled; tokenizers
are read from the files next to the weights. Embeddings have length 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.metrics.networks import load_frozen
from workers.metrics.pixels import CLIP_MEAN, CLIP_STD, clip_input, squares
from workers.models.checkpoint_files import WeightsError, content_hash, read_json_object
from workers.models.weights import KeyMapping

if TYPE_CHECKING:  # imported where it is used: the import takes seconds, and not every process loads a CLIP
    from transformers import CLIPConfig, CLIPTokenizer

_WEIGHT_FILES = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin")
TOKENIZER_FILES = ("tokenizer.json", "vocab.json")
# Older files also hold the position ids 0, 1, 2, ...
_FOLDER_TABLE = (KeyMapping("{...}.position_ids", None), KeyMapping("{...}", "{...}"))


def _transpose(parts: Sequence[Tensor]) -> Tensor:
    """open_clip multiplies from the right, so its projections are stored transposed."""
    return parts[0].T


def _open_clip_block(source: str, target: str) -> tuple[KeyMapping, ...]:
    """One transformer layer {i} of open_clip, whose joint projection `_split_qkv` has cut into three."""
    names = {"attn.out_proj": "self_attn.out_proj", "ln_1": "layer_norm1", "ln_2": "layer_norm2"}
    names |= {f"attn.{part}_proj": f"self_attn.{part}_proj" for part in "qkv"}
    names |= {"mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2"}
    return tuple(KeyMapping(f"{source}.{{i}}.{a}.{{...}}", f"{target}.{{i}}.{b}.{{...}}") for a, b in names.items())


_OPEN_CLIP_TABLE = (
    KeyMapping("logit_scale", "logit_scale"),
    KeyMapping("attn_mask", None),  # a constant that older files hold
    KeyMapping("token_embedding.weight", "text_model.embeddings.token_embedding.weight"),
    KeyMapping("positional_embedding", "text_model.embeddings.position_embedding.weight"),
    KeyMapping("text_projection", "text_projection.weight", _transpose),
    KeyMapping("ln_final.{...}", "text_model.final_layer_norm.{...}"),
    KeyMapping("visual.class_embedding", "vision_model.embeddings.class_embedding"),
    KeyMapping("visual.positional_embedding", "vision_model.embeddings.position_embedding.weight"),
    KeyMapping("visual.conv1.weight", "vision_model.embeddings.patch_embedding.weight"),
    KeyMapping("visual.ln_pre.{...}", "vision_model.pre_layrnorm.{...}"),
    KeyMapping("visual.ln_post.{...}", "vision_model.post_layernorm.{...}"),
    KeyMapping("visual.proj", "visual_projection.weight", _transpose),
    *_open_clip_block("visual.transformer.resblocks", "vision_model.encoder.layers"),
    *_open_clip_block("transformer.resblocks", "text_model.encoder.layers"),
)


class Normalization(NamedTuple):
    """Mean and standard deviation of each channel, of pixels in 0..1."""

    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD


CLIP_NORMALIZATION = Normalization()


class ClipTowers(nn.Module):
    """Both towers of a CLIP. Subclasses tokenize captions and prepare pixels."""

    def __init__(self, config: CLIPConfig) -> None:
        from transformers import CLIPModel

        super().__init__()
        self.clip = CLIPModel(config)
        vision: Any = config.vision_config
        self.image_size, self.width = int(vision.image_size), int(config.projection_dim or 0)

    def tokens(self, captions: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        """Token ids [n, length] of captions, and their mask (0 for padding) where the model needs one."""
        raise NotImplementedError

    def pixels(self, images: Tensor) -> Tensor:
        """The image tower's input from images [n, 3, H, W] in [0, 1]."""
        raise NotImplementedError

    def embed_captions(self, captions: Sequence[str]) -> Tensor:
        """Embeddings [n, width] of captions."""
        return self.embed_tokens(*self.tokens(captions))

    def embed_tokens(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Embeddings [n, width] of token ids and their mask, both [n, length]."""
        device = self.clip.logit_scale.device
        mask = None if mask is None else mask.to(device)
        out = self.clip.get_text_features(input_ids=ids.to(device), attention_mask=mask).pooler_output
        return F.normalize(out.float(), dim=1)

    def embed_images(self, images: Tensor) -> Tensor:
        """Embeddings [n, width] of images [n, 3, H, W] in [0, 1]."""
        pixels = self.pixels(images).to(self.clip.logit_scale.device)
        return F.normalize(self.clip.get_image_features(pixel_values=pixels).pooler_output.float(), dim=1)

    @torch.no_grad()
    def cosines(self, images: Tensor, captions: Sequence[str]) -> Tensor:
        """Cosine [n] of each image [n, 3, H, W] with its own caption, float32 on the CPU."""
        return (self.embed_images(images) * self.embed_captions(captions)).sum(1).cpu()


class Clip(ClipTowers):
    """A published CLIP with its tokenizer and normalisation of pixels.

    side: images are first reduced to centre squares of this size (see `squares`). tokenizer None: images only.
    """

    def __init__(
        self,
        config: CLIPConfig,
        tokenizer: CLIPTokenizer | None,
        normalization: Normalization = CLIP_NORMALIZATION,
        side: int | None = None,
    ) -> None:
        super().__init__(config)
        self.tokenizer, self.normalization, self.side = tokenizer, normalization, side
        text: Any = config.text_config
        self.text_length = int(text.max_position_embeddings)

    def tokens(self, captions: Sequence[str]) -> tuple[Tensor, None]:
        """Ids of captions, truncated to the model's length with the end token kept.

        No mask: the embedding is read at the end token, whose causal attention does not reach the padding.
        """
        assert self.tokenizer is not None, "loaded for images only"
        tokens = self.tokenizer(
            list(captions), padding="max_length", truncation=True, max_length=self.text_length, return_tensors="pt"
        )
        return tokens["input_ids"], None

    def pixels(self, images: Tensor) -> Tensor:
        return clip_input(squares(images, self.side), self.image_size, *self.normalization)


def load_clip_folder(folder: Path, *, texts: bool = True, side: int | None = None) -> Clip:
    """The CLIP of a folder in the Hugging Face layout (config.json, weights and, for texts, the tokenizer's files).

    Frozen, in evaluation mode, fp32. texts, side: see `Clip`.

    Raises:
        WeightsError: no such folder; one of its files is missing, damaged, or of another model; it is named.
    """
    if not folder.is_dir():
        raise WeightsError(f"{folder}: no such folder; give a CLIP's folder with config.json and its weights")
    fields = read_json_object(folder / "config.json")
    if fields.get("model_type") != "clip":
        raise WeightsError(f"{folder / 'config.json'}: the model type is {fields.get('model_type')!r}, not clip")
    config = _clip_config(fields, folder / "config.json")
    weights = next((folder / name for name in _WEIGHT_FILES if (folder / name).is_file()), None)
    if weights is None:
        raise WeightsError(f"{folder}: it has no weights; it needs one of {', '.join(_WEIGHT_FILES)}")
    tokenizer = load_clip_tokenizer(folder, config) if texts else None
    return load_frozen(
        lambda: Clip(config, tokenizer, _normalization(folder), side), weights, _FOLDER_TABLE, part="clip"
    )


def load_open_clip(path: Path, config: CLIPConfig, tokenizer: CLIPTokenizer) -> Clip:
    """A checkpoint in open_clip's layout as a CLIPModel. Raises WeightsError (see `load_frozen`)."""
    return load_frozen(lambda: Clip(config, tokenizer), path, _OPEN_CLIP_TABLE, part="clip", split=_split_qkv)


def _clip_config(fields: Mapping[str, Any], where: Path) -> CLIPConfig:
    """transformers' config from its fields. Raises WeightsError, naming `where`, when they are not a CLIP's."""
    from transformers import CLIPConfig

    try:
        return CLIPConfig(**fields)
    except Exception as error:  # its validation raises errors of several libraries
        raise WeightsError(f"{where}: not the config of a CLIP: {error}") from error


def load_tokenizer(kind: Any, folder: Path, names: Sequence[str], source: str) -> Any:
    """A transformers tokenizer of class `kind` from a folder that has one of the files `names`; `source`: whose.

    Raises:
        WeightsError: the folder has no such file, or the tokenizer cannot be read.
    """
    if not any((folder / name).is_file() for name in names):
        raise WeightsError(f"{folder}: it has no tokenizer; copy {' or '.join(names)} there ({source})")
    try:
        return kind.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # a damaged file can raise anything
        raise WeightsError(f"{folder}: its tokenizer cannot be read ({error}); download it again") from error


def load_clip_tokenizer(folder: Path, config: CLIPConfig) -> CLIPTokenizer:
    """CLIP's tokenizer from a folder with tokenizer.json, or with vocab.json and merges.txt.

    Raises:
        WeightsError: there is none, it cannot be read, or its special tokens are not those of the model.
    """
    from transformers import CLIPTokenizer

    tokenizer: CLIPTokenizer = load_tokenizer(CLIPTokenizer, folder, TOKENIZER_FILES, "CLIP's, with merges.txt")
    text: Any = config.text_config
    end = tokenizer.eos_token_id
    # Old configs say 2, and transformers then takes the largest id for the end token.
    if len(tokenizer) > text.vocab_size or text.eos_token_id not in (2, end):
        raise WeightsError(
            f"{folder}: its tokenizer has {len(tokenizer)} words and the end token {end}, the model {text.vocab_size} "
            f"and {text.eos_token_id}; give the model's own tokenizer"
        )
    return tokenizer


def folder_identity(name: str, folder: Path) -> str:
    """The identity of scores by a CLIP folder: its name and the hash of all files that influence them."""
    files = [*_WEIGHT_FILES, *TOKENIZER_FILES, "config.json", "merges.txt", "preprocessor_config.json"]
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    hashes = [content_hash(folder / file) for file in sorted({*files, *shards}) if (folder / file).is_file()]
    combined = "\n".join(hashes).encode()
    return f"{name}@{hashlib.sha256(combined).hexdigest()[:16]}"


def _split_qkv(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """open_clip keeps query, key and value in one matrix: split it into three with their own names."""
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stem, joint, suffix = name.partition("attn.in_proj_")
        if not joint:
            result[name] = tensor
            continue
        for letter, weight in zip("qkv", tensor.chunk(3), strict=True):
            result[f"{stem}attn.{letter}_proj.{suffix}"] = weight
    return result


def _normalization(folder: Path) -> Normalization:
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return CLIP_NORMALIZATION
    fields = read_json_object(path)
    try:
        mean, std = (tuple(float(x) for x in fields[key]) for key in ("image_mean", "image_std"))
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{path}: image_mean or image_std is missing; download it again") from error
    return Normalization(mean, std)
