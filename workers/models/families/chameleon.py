"""Chameleon's architecture as a target (Chameleon Team, 2024), and Anole-7B (Chern et al., 2024).

Captions become token ids. Prompts are padded on the left, and padding is masked. Image tokens are
codes of the VQGAN (id - 4): the head is cut down to them, which equals masking all other ids before
every filter.

Attention sees rotary angles only as differences of positions, so a stream may start at any
position. The official code counts the unconditional stream from its own first token; here it ends
at the same position as the conditional one.

Checkpoints are in Hugging Face's layout, and their VQGAN is in taming's. Every tensor is loaded or
known to be unused. The norms of queries and keys have a row for each head or, as in Lumina-mGPT's
own files, one for all heads. The head keeps only the image ids: a target generates images. The
embedding keeps all ids, because prompts need them. Sizes come from the tensors' shapes.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from search_spaces.params import PathField, Range
from search_spaces.trial import Sampling
from workers.models.checkpoint_files import (
    WeightsError,
    describe_contents,
    load_tensors,
    read_json_object,
)
from workers.models.families.catalogue import FAMILIES, Family
from workers.models.families.conditioners import TokenPrompts
from workers.models.target import Target
from workers.models.transformer import Transformer, TransformerConfig
from workers.models.vq import (
    CHAMELEON,
    CODEC_LANDMARKS,
    VQConfig,
    VQModel,
    infer_config,
    load_codec,
)
from workers.models.weights import KeyMapping, hf_layer_mappings, load_weights, skip_init

BEGIN_TEXT = 0
PADDING = 1
END_IMAGE = 8196
BEGIN_IMAGE = 8197
END_TURN = 8710
# Ids of special tokens by their spelling in the tokenizer.
SPECIAL_TOKENS = {"<eoss>": END_IMAGE, "<racm3:break>": BEGIN_IMAGE, "<reserved08706>": END_TURN}
# LANTERN's sampling, for all models of this architecture.
SAMPLING = Sampling(temperature=1.0, top_k=2000, cfg=3.0)
VOCABULARY_7B = 65536

FIRST_IMAGE_ID = 4  # a code's id in the vocabulary is code + 4
CODES = 8192
IMAGE_IDS = slice(FIRST_IMAGE_ID, FIRST_IMAGE_ID + CODES)

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
_VQ = "model.vqmodel."
_LAYER = "model.layers.{l}"

Tokenizer = Callable[[str], list[int]]


def _vq_mappings(levels: int) -> list[KeyMapping]:
    """taming's names for a codec of n levels. Its decoder counts them from the finest, `VQModel`
    from the coarsest.
    """
    same_names = [
        *(
            f"{side}.{part}.{{...}}"
            for side in ("encoder", "decoder")
            for part in ("conv_in", "norm_out", "conv_out")
        ),
        "quantize.embedding.weight",
        "quant_conv.{...}",
        "post_quant_conv.{...}",
    ]
    mappings = [KeyMapping(name, name) for name in same_names]
    for side in ("encoder", "decoder"):
        for index, name in enumerate(("block_1", "attn_1", "block_2")):
            mappings.append(KeyMapping(f"{side}.mid.{name}.{{...}}", f"{side}.mid.{index}.{{...}}"))
    for level in range(levels):
        for side, direction, index in (
            ("encoder", "down", level),
            ("decoder", "up", levels - 1 - level),
        ):
            source = f"{side}.{direction}.{level}"
            target = f"{side}.conv_blocks.{index}"
            mappings.append(
                KeyMapping(f"{source}.block.{{b}}.{{...}}", f"{target}.res.{{b}}.{{...}}")
            )
            mappings.append(
                KeyMapping(
                    f"{source}.{direction}sample.conv.{{...}}",
                    f"{target}.{direction}sample.conv.{{...}}",
                )
            )
    return mappings


def _transformer_mappings(channels: int, levels: int) -> list[KeyMapping]:
    """Hugging Face's names of the transformer, with those of the codec, which `codec` loads."""
    return [
        KeyMapping(_EMBEDDING, "conditioner.words.weight"),
        KeyMapping(_EMBEDDING, "transformer.embed.weight", lambda parts: parts[0][IMAGE_IDS]),
        KeyMapping(_HEAD, "transformer.head.weight", lambda parts: parts[0][IMAGE_IDS]),
        KeyMapping("model.norm.weight", "transformer.norm.weight"),
        *hf_layer_mappings(_LAYER, "transformer.layers.{l}", channels),
        *(KeyMapping(f"{_VQ}{mapping.source}", None) for mapping in _vq_mappings(levels)),
    ]


class ChameleonCheckpoint:
    """The tensors of one checkpoint, a folder or a file, and the sizes that they imply."""

    def __init__(self, path: str | Path, *, highest_id: int) -> None:
        """`highest_id`: the last id that the family's prompts use.

        Raises:
            WeightsError: the file is missing, damaged, or not a Chameleon model in Hugging Face's
                layout.
        """
        self.path = Path(path)
        self.folder = self.path if self.path.is_dir() else self.path.parent
        self.tensors = load_tensors(path, (_EMBEDDING, _HEAD))
        # The VQGAN's tensors in the checkpoint, under the names of its own file.
        self._own_vqgan = {
            name.removeprefix(_VQ): self.tensors[name]
            for name in self.tensors
            if name.startswith(_VQ)
        }
        for name in (_EMBEDDING, f"{_LAYER.format(l=0)}.self_attn.q_norm.weight"):
            if name not in self.tensors:
                raise WeightsError(
                    f"{path}: not a Chameleon model in Hugging Face's layout: {name} is missing; "
                    "its first tensor is "
                    f"{next(iter(self.tensors), 'missing')}{describe_contents(self.tensors)}. "
                    "Give the folder that holds model.safetensors.index.json"
                )
        config = self.folder / "config.json"
        if config.is_file() and read_json_object(config).get("swin_norm"):
            raise WeightsError(
                f"{config}: swin_norm is on, as in Chameleon-30B, whose norms are placed "
                "differently; give a 7B checkpoint"
            )
        self.vocabulary = self._shape(_EMBEDDING)[0]
        for name in (_EMBEDDING, _HEAD):
            if self._shape(name)[0] <= highest_id:
                raise WeightsError(
                    f"{path}: {name} has {self._shape(name)[0]} rows, but this family uses ids up "
                    f"to {highest_id}: this is not its vocabulary"
                )

    def config(self, **geometry: Any) -> TransformerConfig:
        """The transformer's config. `geometry` are its fields for prompts and images.

        Raises:
            WeightsError: a tensor that determines a size is missing.
        """
        first = _LAYER.format(l=0)
        channels = self._shape(f"{first}.self_attn.q_norm.weight")[-1]
        found = {
            int(hit[1])
            for name in self.tensors
            if (hit := re.match(r"model\.layers\.(\d+)\.", name))
        }
        return TransformerConfig(
            dim=self._shape(_EMBEDDING)[1],
            n_layers=max(found) + 1,
            n_heads=self._shape(f"{first}.self_attn.q_proj.weight")[0] // channels,
            n_kv_heads=self._shape(f"{first}.self_attn.k_proj.weight")[0] // channels,
            head_dim=channels,
            ffn_dim=self._shape(f"{first}.mlp.gate_proj.weight")[0],
            vocab_size=CODES,
            rope="line",
            qk_norm=True,
            **geometry,
        )

    def fill(self, parts: torch.nn.ModuleDict, channels: int, dtype: torch.dtype) -> None:
        """Load {"transformer", "conditioner"}, using every tensor. Raises WeightsError for tensors
        that are missing or unknown.
        """
        mappings = _transformer_mappings(channels, len(_vqgan_config(self._own_vqgan).multipliers))
        load_weights(parts, self.tensors, mappings, where=self.path, dtype=dtype)

    def codec(self, vq: str | Path | None) -> VQModel:
        """The codec, in fp32, from a VQGAN file (`vqgan.ckpt`) or, without one, from the
        checkpoint.

        Raises:
            WeightsError: the file is not usable, its sizes do not fit the target, or its codebook
                differs from the checkpoint's; there is no file, and the checkpoint contains no
                decoder.
        """
        own = self._own_vqgan
        if vq is None and "decoder.conv_in.weight" not in own:
            raise WeightsError(
                f"{self.path}: contains no VQGAN decoder (Hugging Face's Chameleon leaves it out); "
                "give `vq`, the path of vqgan.ckpt"
            )
        tensors = own
        where: str | Path = self.path
        if vq is not None:
            tensors = load_tensors(vq, CODEC_LANDMARKS)
            where = vq
        codebook = own.get("quantize.embedding.weight")
        geometry = CHAMELEON
        if codebook is not None:
            geometry = replace(CHAMELEON, code_dim=codebook.shape[1])
        codec = vqgan(tensors, geometry, where=where)
        if codebook is not None and _differ(codebook.float(), codec.quantize.embedding.weight):
            raise WeightsError(
                f"{vq}: its codebook differs from the one in {self.path}: the two do not match"
            )
        return codec

    def _shape(self, name: str) -> torch.Size:
        if name not in self.tensors:
            raise WeightsError(
                f"{self.path}: missing weights (1): {name}. Give a whole Chameleon checkpoint"
            )
        return self.tensors[name].shape


def vqgan(
    tensors: Mapping[str, Tensor], geometry: VQConfig = CHAMELEON, *, where: str | Path
) -> VQModel:
    """Chameleon's codec, in fp32, from the tensors of its own file (`vqgan.ckpt`).

    Args:
        tensors: the file's tensors by name.
        geometry: config with the down-sampling and code width that the target needs.
        where: the file, for messages.

    Raises:
        WeightsError: tensors are missing or unknown, or the codec is another one.
    """
    config = _vqgan_config(tensors)
    training = KeyMapping("loss.{...}", None)  # the discriminator, in files kept from training
    mappings = [*_vq_mappings(len(config.multipliers)), training]
    return load_codec(tensors, config, mappings, codes=CODES, geometry=geometry, where=where)


def _vqgan_config(tensors: Mapping[str, Tensor]) -> VQConfig:
    return infer_config(tensors, CHAMELEON, "encoder.down", "decoder.up", "block")


def _differ(left: Tensor, right: Tensor) -> bool:
    """Whether two copies of a codebook differ by more than bfloat16 rounding; False on the meta
    device.
    """
    if left.is_meta or right.is_meta:
        return False
    return bool((left - right).abs().max() > 0.01 * right.abs().max())


@dataclass(frozen=True, slots=True)
class ImageFormat:
    """What a model of this architecture generates, and how it is prompted."""

    name: str
    prefix: str  # text before the caption
    suffix: tuple[int, ...]  # ids after the caption
    null: tuple[int, ...]  # ids of the unconditional prompt
    rows: int  # codes in a column
    cols: int  # codes in a row
    row_end: int | None = None  # id of the fixed token after every row, if there is one
    # Spelling and id of tokens that the tokenizer must have.
    special_tokens: Mapping[str, int] = field(default_factory=SPECIAL_TOKENS.copy)

    def parts(
        self, config: TransformerConfig, vocabulary: int, tokenizer: Tokenizer
    ) -> nn.ModuleDict:
        """A `transformer` and its `conditioner`, without weights."""

        def encode(caption: str) -> list[int]:
            return [BEGIN_TEXT, *tokenizer(self.prefix + caption), *self.suffix]

        def build() -> nn.ModuleDict:
            words = nn.Embedding(vocabulary, config.dim)
            conditioner = TokenPrompts(words, config.prompt_len, encode, self.null, PADDING)
            return nn.ModuleDict({"transformer": Transformer(config), "conditioner": conditioner})

        return skip_init(build)

    def target(self, size: str, parts: nn.ModuleDict, codec: VQModel) -> Target:
        """The target of a loaded `transformer` and `conditioner`."""
        body = parts["transformer"]
        conditioner = parts["conditioner"]
        assert isinstance(body, Transformer)
        assert isinstance(conditioner, TokenPrompts)
        end = None
        if self.row_end is not None:
            end = conditioner.words.weight[self.row_end].detach().clone()
        target = Target(f"{self.name}-{size}", body, conditioner, codec, SAMPLING, row_end=end)
        return target.eval().requires_grad_(False)


ANOLE = ImageFormat(
    "anole",
    prefix="",
    suffix=(END_TURN, BEGIN_IMAGE),
    null=(BEGIN_TEXT, BEGIN_IMAGE),
    rows=32,  # 512 pixels
    cols=32,
)


def load_tokenizer(
    path: str | Path, special_tokens: Mapping[str, int] = SPECIAL_TOKENS
) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`, or of the folder that holds it. It adds no special
    tokens.

    Raises:
        WeightsError: the file is missing or not a tokenizer, or it lacks one of `special_tokens`.
    """
    # Imported here: the import takes seconds, and other families do not need it.
    from transformers import PreTrainedTokenizerFast

    path = Path(path)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise WeightsError(
            f"{file}: no such file; give `tokenizer`, the tokenizer.json that came with the model"
        )
    try:
        loaded: Any = PreTrainedTokenizerFast(tokenizer_file=str(file))  # type: ignore[no-untyped-call]
    except Exception as error:  # the library raises plain Exception
        raise WeightsError(
            f"{file}: not a tokenizer ({str(error).partition(chr(10))[0]})"
        ) from error
    backend = loaded.backend_tokenizer
    for token, expected in special_tokens.items():
        if (found := backend.token_to_id(token)) != expected:
            problem = "is missing" if found is None else f"is {found} in it"
            raise WeightsError(
                f"{file}: not Chameleon's tokenizer: {token} {problem}, not {expected}"
            )
    return lambda text: list(backend.encode(text, add_special_tokens=False).ids)


@dataclass(frozen=True, slots=True)
class ChameleonFamily(Family):
    """Keys and loading of all models of this architecture."""

    transformer: Annotated[
        str, "folder (or file) of the model in Hugging Face's layout", PathField()
    ]
    vq: Annotated[
        str | None,
        "the VQGAN's file (vqgan.ckpt); optional if the model contains its decoder",
        PathField(),
    ] = None
    tokenizer: Annotated[
        str | None, "tokenizer.json, or its folder; default: in the model's folder", PathField()
    ] = None
    prompt_tokens: Annotated[int, "longest prompt", Range(8)] = 128

    @property
    @abstractmethod
    def image(self) -> ImageFormat:
        """The image's template and row ends, and its size in codes."""

    def load(self, device: torch.device, dtype: torch.dtype) -> Target:
        """The target; its name is the image format's, followed by the size.

        Raises:
            WeightsError: a file is missing, damaged, or of another family or size.
        """
        image = self.image
        highest = max(END_TURN, image.row_end or 0, *image.suffix)
        checkpoint = ChameleonCheckpoint(self.transformer, highest_id=highest)
        tokenizer = load_tokenizer(self.tokenizer or checkpoint.folder, image.special_tokens)
        config = checkpoint.config(**self._geometry)
        parts = image.parts(config, checkpoint.vocabulary, tokenizer)
        checkpoint.fill(parts, config.channels, dtype)
        if (config.dim, config.n_layers) == (4096, 32):
            size = "7b"
        else:
            size = f"{config.dim}x{config.n_layers}"
        return image.target(size, parts, checkpoint.codec(self.vq)).to(device)

    def build_on_meta(self, dtype: torch.dtype) -> Target:
        """The 7B target: 32 layers of width 4096 (Chameleon Team, 2024). Its tokenizer ignores the
        caption.
        """
        config = TransformerConfig(
            dim=4096,
            n_layers=32,
            n_heads=32,
            ffn_dim=11008,
            vocab_size=CODES,
            rope="line",
            qk_norm=True,
            **self._geometry,
        )
        parts = self.image.parts(config, VOCABULARY_7B, lambda text: []).to("meta", dtype)
        return self.image.target("7b", parts, skip_init(lambda: VQModel(CHAMELEON)).to("meta"))

    @property
    def _geometry(self) -> dict[str, Any]:
        """The transformer's config as far as prompts and images determine it."""
        image = self.image
        return {
            "prompt_len": self.prompt_tokens,
            "rows": image.rows,
            "cols": image.cols,
            "row_ends": image.row_end is not None,
        }


@FAMILIES.register
@dataclass(frozen=True, slots=True)
class Anole(ChameleonFamily):
    """Anole: square images in raster order, with nothing between the rows."""

    kind: ClassVar[str] = "anole"
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "anole-7b": {"transformer": "Anole-7b-v0.1", "vq": "vqgan.ckpt"}
    }
    on_hub: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "anole-7b": {
            "transformer": "hf://leloy/Anole-7b-v0.1-hf",
            "vq": "vqgan.ckpt",
            "drafters": {"eagle": "hf://jadohu/anole_drafter"},
        }
    }

    @property
    def image(self) -> ImageFormat:
        return ANOLE
