"""Chameleon's architecture as a target (Chameleon Team, 2024), and Anole-7B (Chern et al., 2024).

Captions become token ids. Prompts are padded on the left, and padding is masked. Image tokens are codes of the VQGAN
(id - 4): the head is cut down to them, which equals masking all other ids before every filter.

Attention sees rotary angles only as differences of positions, so a stream may start at any position. The official code
counts the unconditional stream from its own first token; here it ends at the same position as the conditional one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import nn

from search_spaces.params import Range
from search_spaces.trial import Sampling
from workers.models.checkpoint_files import WeightsError
from workers.models.families.catalogue import FAMILIES, Family
from workers.models.families.chameleon_files import CODES, ChameleonCheckpoint
from workers.models.families.token_prompts import TokenPrompts
from workers.models.target import Target
from workers.models.transformer import Transformer, TransformerConfig
from workers.models.vq import CHAMELEON, VQModel
from workers.models.weights import skip_init

BEGIN_TEXT, PADDING, END_IMAGE, BEGIN_IMAGE, END_TURN = 0, 1, 8196, 8197, 8710
SPECIAL_TOKENS = {"<eoss>": END_IMAGE, "<racm3:break>": BEGIN_IMAGE, "<reserved08706>": END_TURN}  # tokenizer spelling
SAMPLING = Sampling(temperature=1.0, top_k=2000, cfg=3.0)  # LANTERN's, for all models of this architecture
VOCABULARY_7B = 65536

Tokenizer = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class ImageFormat:
    """What a model of this architecture draws, and how it is prompted.

    prefix: text before the caption. suffix: ids after it. null: ids of the unconditional prompt. rows, cols: of the
    grid of codes. row_end: id of the fixed token after every row, if there is one. special_tokens: spelling and id of
    tokens that the tokenizer must have.
    """

    name: str
    prefix: str
    suffix: tuple[int, ...]
    null: tuple[int, ...]
    rows: int
    cols: int
    row_end: int | None = None
    special_tokens: Mapping[str, int] = field(default_factory=SPECIAL_TOKENS.copy)

    def parts(self, config: TransformerConfig, vocabulary: int, tokenizer: Tokenizer) -> nn.ModuleDict:
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
        body, conditioner = parts["transformer"], parts["conditioner"]
        assert isinstance(body, Transformer)
        assert isinstance(conditioner, TokenPrompts)
        end = None if self.row_end is None else conditioner.words.weight[self.row_end].detach().clone()
        target = Target(f"{self.name}-{size}", body, conditioner, codec, SAMPLING, row_end=end)
        return target.eval().requires_grad_(False)


ANOLE = ImageFormat(
    "anole", prefix="", suffix=(END_TURN, BEGIN_IMAGE), null=(BEGIN_TEXT, BEGIN_IMAGE), rows=32, cols=32
)  # 512 px


def load_tokenizer(path: str | Path, special_tokens: Mapping[str, int] = SPECIAL_TOKENS) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`, or of the folder that holds it. It adds no special tokens.

    Raises:
        WeightsError: the file is missing or not a tokenizer, or it lacks one of `special_tokens`.
    """
    from transformers import PreTrainedTokenizerFast  # lazy: the import takes seconds and other families skip it

    path = Path(path)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise WeightsError(f"{file}: no such file; give `tokenizer`, the tokenizer.json that came with the model")
    try:
        loaded: Any = PreTrainedTokenizerFast(tokenizer_file=str(file))  # type: ignore[no-untyped-call]
    except Exception as error:  # the library raises plain Exception
        raise WeightsError(f"{file}: not a tokenizer ({str(error).partition(chr(10))[0]})") from error
    backend = loaded.backend_tokenizer
    for token, expected in special_tokens.items():
        if (found := backend.token_to_id(token)) != expected:
            problem = "is missing" if found is None else f"is {found} in it"
            raise WeightsError(f"{file}: not Chameleon's tokenizer: {token} {problem}, not {expected}")
    return lambda text: list(backend.encode(text, add_special_tokens=False).ids)


@dataclass(frozen=True, slots=True)
class ChameleonFamily(Family):
    """Keys and loading of all models of this architecture."""

    transformer: Annotated[str, "folder (or file) of the model in Hugging Face's layout"]
    vq: Annotated[str | None, "the VQGAN's file (vqgan.ckpt); optional if the model contains its decoder"] = None
    tokenizer: Annotated[str | None, "tokenizer.json, or its folder; default: in the model's folder"] = None
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
        size = "7b" if (config.dim, config.n_layers) == (4096, 32) else f"{config.dim}x{config.n_layers}"
        return image.target(size, parts, checkpoint.codec(self.vq)).to(device)

    def build_on_meta(self, dtype: torch.dtype) -> Target:
        """The 7B target: 32 layers of width 4096 (Chameleon Team, 2024). Its tokenizer ignores the caption."""
        config = TransformerConfig(
            dim=4096, n_layers=32, n_heads=32, ffn_dim=11008, vocab_size=CODES, rope="line", qk_norm=True,
            **self._geometry,
        )  # fmt: skip
        parts = self.image.parts(config, VOCABULARY_7B, lambda text: []).to("meta", dtype)
        return self.image.target("7b", parts, skip_init(lambda: VQModel(CHAMELEON)).to("meta"))

    @property
    def _geometry(self) -> dict[str, Any]:
        """The transformer's config as far as prompts and images determine it."""
        image = self.image
        row_ends = image.row_end is not None
        return {"prompt_len": self.prompt_tokens, "rows": image.rows, "cols": image.cols, "row_ends": row_ends}


@FAMILIES.register
@dataclass(frozen=True, slots=True)
class Anole(ChameleonFamily):
    """Anole: square images in raster order, with nothing between the rows."""

    kind: ClassVar[str] = "anole"
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "anole-7b": {"transformer": "Anole-7b-v0.1", "vq": "vqgan.ckpt"}
    }

    @property
    def image(self) -> ImageFormat:
        return ANOLE
