"""Language models of `transformers` whose vocabulary goes on with the codes of an image, through
the library's own forward (SimpleAR, Liquid).

The id of a code is the number of the tokenizer's tokens plus the code. An image follows its prompt
in raster order, without row ends and without a token at the end. The head is cut down to the codes,
which equals masking all other ids before every filter.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import nn

from search_spaces.params import ConfigError, PathField, Range
from search_spaces.trial import Sampling
from workers.models.checkpoint_files import WeightsError
from workers.models.families.catalogue import Family
from workers.models.families.conditioners import TokenPrompts
from workers.models.hf_files import HFTokenizer, load_pretrained
from workers.models.target import Target

PATCH = 16  # pixels per code along a side


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendedLM(Family):
    """Keys and loading of these families."""

    codes: ClassVar[int]  # number of codes, the last ids of the vocabulary
    sampling: ClassVar[Sampling]
    prefix: ClassVar[str]  # text of a prompt before the caption
    suffix: ClassVar[str]  # text after it
    null: ClassVar[str]  # the unconditional prompt
    special_tokens: ClassVar[tuple[str, ...]]  # those of the prompts

    checkpoint: Annotated[str, "folder of the model with its tokenizer", PathField()]
    image_size: Annotated[int, "side of the images, pixels", Range(PATCH)] = 512
    prompt_tokens: Annotated[int, "longest prompt", Range(8)] = 128

    @staticmethod
    @abstractmethod
    def model_class() -> Any:
        """The class of the model in the library."""

    @abstractmethod
    def published_config(self) -> Any:
        """The library's config of the published checkpoint.

        Raises:
            ValueError: the entry does not determine it.
        """

    @abstractmethod
    def codec(self, device: torch.device) -> nn.Module:
        """The codec of the entry's file.

        Raises:
            WeightsError: see `load`.
        """

    @abstractmethod
    def codec_on_meta(self) -> nn.Module:
        """A codec of the published sizes, on the meta device and without its file."""

    def check(self) -> None:
        if self.image_size % PATCH:
            raise ConfigError(
                ("image_size",), f"must be a multiple of {PATCH}, got {self.image_size}"
            )

    def load(self, device: torch.device, dtype: torch.dtype) -> Target:
        """Load the target.

        Raises:
            WeightsError: a file is missing, damaged, or of another family or vocabulary.
            ValueError: the unconditional prompt is longer than `prompt_tokens`.
        """
        codec = self.codec(device)
        folder = Path(self.checkpoint)
        whole = load_pretrained(folder, self.model_class(), dtype, renamed=False)
        tokenizer = HFTokenizer(folder)
        tokenizer.check_tokens(self.special_tokens)
        words = len(tokenizer)
        if whole.config.vocab_size != words + self.codes:
            raise WeightsError(
                f"{folder / 'config.json'}: vocab_size is {whole.config.vocab_size}, but "
                f"{words} tokens of the tokenizer and {self.codes} codes are "
                f"{words + self.codes}: it is not {self.kind}'s vocabulary; give a checkpoint of "
                "this family, with its own tokenizer"
            )
        return self._target(whole, words, tokenizer, codec).to(device)

    def build_on_meta(self, dtype: torch.dtype) -> Target:
        """The published target. Its tokenizer ignores the caption."""
        with torch.device("meta"):
            whole = self.model_class()(self.published_config()).to(dtype)
        words = whole.config.vocab_size - self.codes
        return self._target(whole, words, lambda text: [], self.codec_on_meta()).to("meta")

    def _target(
        self, whole: Any, words: int, encode: Callable[[str], list[int]], codec: nn.Module
    ) -> Target:
        """The target of a whole model, whose first ids are the tokenizer's."""
        from workers.models.hf_decoder import HFDecoder, decoder_config

        side = self.image_size // PATCH
        decoder = whole.model
        config = decoder_config(
            decoder.config, codes=self.codes, prompt_len=self.prompt_tokens, rows=side, cols=side
        )
        embedding = decoder.get_input_embeddings()
        device = embedding.weight.device
        with torch.no_grad():
            # Through the layer, not by its weight: Gemma's layer scales what it looks up, and
            # `HFDecoder` replaces it.
            embeds = embedding(torch.arange(words + self.codes, device=device))
        head = nn.Linear(config.dim, self.codes, bias=False, device=device, dtype=embeds.dtype)
        head.weight = nn.Parameter(whole.lm_head.weight.detach()[words:].clone())
        body = HFDecoder(config, decoder, embeds[words:], head)
        conditioner = TokenPrompts(
            nn.Embedding.from_pretrained(embeds[:words]),  # type: ignore[no-untyped-call]
            self.prompt_tokens,
            lambda caption: encode(self.prefix + caption + self.suffix),
            encode(self.null),
        )
        name = f"{self.kind}-{self.image_size}-{config.dim}x{config.n_layers}"
        target = Target(name, body, conditioner, codec, self.sampling)
        return target.eval().requires_grad_(False)
