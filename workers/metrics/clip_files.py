"""CLIP models: both towers, and folders in the Hugging Face layout that a user gives.

Both towers are transformers' CLIPModel. Every weight in the file must be used and every parameter
filled; tokenizers are read from the files next to the weights. Embeddings have length 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.metrics.networks import load_frozen
from workers.metrics.pixels import CLIP_MEAN, CLIP_STD, clip_input, squares
from workers.models.checkpoint_files import WeightsError, content_hash, read_json_object
from workers.models.weights import KeyMapping

# imported where it is used: the import takes seconds, and not every process loads a CLIP
if TYPE_CHECKING:
    from transformers import CLIPConfig, CLIPTokenizer

_WEIGHT_FILES = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin")
TOKENIZER_FILES = ("tokenizer.json", "vocab.json")
C = TypeVar("C")
# mean and standard deviation by channel, of pixels in 0..1
Normalization = tuple[tuple[float, ...], tuple[float, ...]]
# Older files also hold the position ids 0, 1, 2, ...
_FOLDER_TABLE = (KeyMapping("{...}.position_ids", None), KeyMapping("{...}", "{...}"))


class ClipTowers(nn.Module):
    """Both towers of a CLIP. Subclasses tokenize captions and prepare pixels."""

    def __init__(self, config: CLIPConfig) -> None:
        from transformers import CLIPModel

        super().__init__()
        self.clip = CLIPModel(config)
        vision: Any = config.vision_config
        self.image_size = int(vision.image_size)
        self.width = int(config.projection_dim or 0)

    def tokens(self, captions: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        """Token ids [n, length] of captions, and their mask (0 for padding) where the model needs
        one.
        """
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
        out = self.clip.get_text_features(
            input_ids=ids.to(device), attention_mask=mask
        ).pooler_output
        return F.normalize(out.float(), dim=1)

    def embed_images(self, images: Tensor) -> Tensor:
        """Embeddings [n, width] of images [n, 3, H, W] in [0, 1]."""
        pixels = self.pixels(images).to(self.clip.logit_scale.device)
        return F.normalize(
            self.clip.get_image_features(pixel_values=pixels).pooler_output.float(), dim=1
        )

    @torch.no_grad()
    def cosines(self, images: Tensor, captions: Sequence[str]) -> Tensor:
        """Cosine [n] of each image [n, 3, H, W] with its own caption, float32 on the CPU."""
        return (self.embed_images(images) * self.embed_captions(captions)).sum(1).cpu()


class Clip(ClipTowers):
    """A published CLIP with its tokenizer and normalisation of pixels.

    Args:
        config: sizes of both towers.
        tokenizer: turns captions into token ids; None if only images are embedded.
        normalization: mean and standard deviation of each channel, for pixels in 0..1.
        side: pixels of the centre squares to which images are first reduced (see `squares`); None:
            images are left as they are.
    """

    def __init__(
        self,
        config: CLIPConfig,
        tokenizer: CLIPTokenizer | None,
        normalization: Normalization = (CLIP_MEAN, CLIP_STD),
        side: int | None = None,
    ) -> None:
        super().__init__(config)
        self.tokenizer = tokenizer
        self.normalization = normalization
        self.side = side
        text: Any = config.text_config
        self.text_length = int(text.max_position_embeddings)

    def tokens(self, captions: Sequence[str]) -> tuple[Tensor, None]:
        """Ids of captions, truncated to the model's length with the end token kept.

        No mask: the embedding is read at the end token, whose causal attention does not reach the
        padding.
        """
        assert self.tokenizer is not None, "loaded for images only"
        tokens = self.tokenizer(
            list(captions),
            padding="max_length",
            truncation=True,
            max_length=self.text_length,
            return_tensors="pt",
        )
        return tokens["input_ids"], None

    def pixels(self, images: Tensor) -> Tensor:
        return clip_input(squares(images, self.side), self.image_size, *self.normalization)


def open_folder(folder: Path, kind: Callable[..., C]) -> tuple[C, Path]:
    """The config, of class `kind`, of a folder in the Hugging Face layout, and its weight file.

    Raises:
        WeightsError: there is no such folder, its config is of another model, or it has no weights.
    """
    model = str(getattr(kind, "model_type", ""))
    if not folder.is_dir():
        raise WeightsError(
            f"{folder}: no such folder; give a {model} folder with config.json and its weights"
        )
    fields = read_json_object(folder / "config.json")
    if fields.get("model_type") != model:
        raise WeightsError(
            f"{folder / 'config.json'}: the model type is {fields.get('model_type')!r}, not {model}"
        )
    try:
        config = kind(**fields)
    except Exception as error:  # its validation raises errors of several libraries
        raise WeightsError(
            f"{folder / 'config.json'}: not the config of a {model} model: {error}"
        ) from error
    weights = next((folder / name for name in _WEIGHT_FILES if (folder / name).is_file()), None)
    if weights is None:
        raise WeightsError(
            f"{folder}: it has no weights; it needs one of {', '.join(_WEIGHT_FILES)}"
        )
    return config, weights


def load_clip_folder(folder: Path, *, texts: bool = True, side: int | None = None) -> Clip:
    """The CLIP of a folder in the Hugging Face layout (config.json, weights and, for texts, the
    tokenizer's files), frozen, in evaluation mode, in fp32.

    Args:
        folder: where the files are.
        texts: whether captions are embedded too, which needs the tokenizer.
        side: see `Clip`.

    Raises:
        WeightsError: there is no such folder, or one of its files, which the error names, is
            missing, damaged, or of another model.
    """
    from transformers import CLIPConfig

    config, weights = open_folder(folder, CLIPConfig)
    tokenizer = load_clip_tokenizer(folder, config) if texts else None
    return load_frozen(
        lambda: Clip(config, tokenizer, _normalization(folder), side),
        weights,
        _FOLDER_TABLE,
        part="clip",
    )


def load_tokenizer(kind: Any, folder: Path, names: Sequence[str], source: str) -> Any:
    """A transformers tokenizer, read from the files in a folder.

    Args:
        kind: class of the tokenizer.
        folder: folder with the tokenizer's files.
        names: files of which the folder must have at least one.
        source: what an error says about these files, such as the model that they belong to.

    Raises:
        WeightsError: the folder has no such file, or the tokenizer cannot be read.
    """
    if not any((folder / name).is_file() for name in names):
        raise WeightsError(
            f"{folder}: it has no tokenizer; copy {' or '.join(names)} there ({source})"
        )
    try:
        return kind.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # a damaged file can raise anything
        raise WeightsError(
            f"{folder}: its tokenizer cannot be read ({error}); download it again"
        ) from error


def load_clip_tokenizer(folder: Path, config: CLIPConfig) -> CLIPTokenizer:
    """CLIP's tokenizer from a folder with tokenizer.json, or with vocab.json and merges.txt.

    Raises:
        WeightsError: there is none, it cannot be read, or its special tokens are not those of the
            model.
    """
    from transformers import CLIPTokenizer

    tokenizer: CLIPTokenizer = load_tokenizer(
        CLIPTokenizer, folder, TOKENIZER_FILES, "CLIP's, with merges.txt"
    )
    text: Any = config.text_config
    end = tokenizer.eos_token_id
    # Old configs have 2 as the end token; transformers then takes the largest id instead.
    if len(tokenizer) > text.vocab_size or text.eos_token_id not in (2, end):
        raise WeightsError(
            f"{folder}: its tokenizer has {len(tokenizer)} words and the end token {end}, the "
            f"model {text.vocab_size} and {text.eos_token_id}; give the model's own tokenizer"
        )
    return tokenizer


def folder_identity(name: str, folder: Path) -> str:
    """The identity of scores by a CLIP folder: its name and the hash of all files that influence
    them.
    """
    files = [
        *_WEIGHT_FILES,
        *TOKENIZER_FILES,
        "config.json",
        "merges.txt",
        "preprocessor_config.json",
    ]
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    hashes = [
        content_hash(folder / file)
        for file in sorted({*files, *shards})
        if (folder / file).is_file()
    ]
    combined = "\n".join(hashes).encode()
    return f"{name}@{hashlib.sha256(combined).hexdigest()[:16]}"


def _normalization(folder: Path) -> Normalization:
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return CLIP_MEAN, CLIP_STD
    fields = read_json_object(path)
    try:
        mean, std = (tuple(float(x) for x in fields[key]) for key in ("image_mean", "image_std"))
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(
            f"{path}: image_mean or image_std is missing; download it again"
        ) from error
    return mean, std
