"""Chameleon's architecture as a target, and Anole-7B (Chern et al., 2024; Chameleon Team, 2024) as it is drawn from.

Captions become token ids; prompts are padded on the left, and padding is hidden. The image's tokens are codes of the
VQGAN (id - 4): the head is cut down to them, which is what masking all other ids before every filter comes to.

Rotary angles enter attention as differences of positions only, so that a stream may start anywhere: the unconditional
stream, which officially counts from its own first token, stands here at the end of the prompt's room as the others do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import nn

from search_spaces.params import Params, Range
from search_spaces.trial import Sampling
from workers.models.checkpoint_files import WeightsError
from workers.models.families.catalogue import Family
from workers.models.families.chameleon_files import ChameleonCheckpoint
from workers.models.families.word_prompts import WordPrompts
from workers.models.target import Target
from workers.models.transformer import Transformer
from workers.models.weights import unfilled

BEGIN_TEXT, PADDING, END_IMAGE, BEGIN_IMAGE, END_TURN = 0, 1, 8196, 8197, 8710
NAMED = {"<eoss>": END_IMAGE, "<racm3:break>": BEGIN_IMAGE, "<reserved08706>": END_TURN}  # as the tokenizer spells them
SAMPLING = Sampling(temperature=1.0, top_k=2000, cfg=3.0)  # LANTERN's, for all models of this architecture
PROMPT_TOKENS = 128
ANOLE_SIDE = 32  # codes; 512 px

Tokenize = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Wording:
    """A prompt's parts: `lead` before the caption, ids `ending` after it; ids `null` are the unconditional prompt."""

    lead: str
    ending: tuple[int, ...]
    null: tuple[int, ...]

    def ids(self, caption: str, tokenize: Tokenize) -> list[int]:
        return [BEGIN_TEXT, *tokenize(self.lead + caption), *self.ending]


ANOLE_WORDING = Wording(lead="", ending=(END_TURN, BEGIN_IMAGE), null=(BEGIN_TEXT, BEGIN_IMAGE))


def load_tokenizer(path: str | Path, named: Mapping[str, int] = NAMED) -> Tokenize:
    """A text's token ids, without special ones, by a `tokenizer.json` (or the folder that holds it).

    Raises:
        WeightsError: no such file, not a tokenizer, or another model's (`named`: tokens with ids that it must have).
    """
    from transformers import PreTrainedTokenizerFast  # here, because it takes seconds and other families need none

    path = Path(path)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise WeightsError(f"{file}: no such file; give `tokenizer`, the tokenizer.json that came with the model")
    try:
        loaded: Any = PreTrainedTokenizerFast(tokenizer_file=str(file))  # type: ignore[no-untyped-call]
    except Exception as error:  # the library raises Exception itself
        raise WeightsError(f"{file}: not a tokenizer ({str(error).partition(chr(10))[0]})") from error
    tokenizer = loaded.backend_tokenizer
    for name, number in named.items():
        if (found := tokenizer.token_to_id(name)) != number:
            what = "is not in it" if found is None else f"is {found} in it"
            raise WeightsError(f"{file}: not Chameleon's tokenizer: {name} {what}, not {number}")

    def tokenize(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return tokenize


def load_target(
    name: str,
    transformer: str | Path,
    vq: str | Path | None,
    tokenize: Tokenize | str | Path | None,
    *,
    wording: Wording,
    rows: int,
    cols: int,
    row_end: int | None = None,
    named: Mapping[str, int] = NAMED,
    prompt_tokens: int = PROMPT_TOKENS,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Target:
    """A target of this architecture from local files.

    `name` gets the size behind it. `tokenize` is a tokenizer or its file; None: it lies beside the transformer's.
    `row_end`: id of the fixed token after every row. Without `vq`, and without a decoder in the checkpoint, the target
    has no codec.

    Raises:
        WeightsError: files that are missing, damaged, of another family or size.
        ValueError: no room for any prompt.
    """
    least = len(wording.ending) + 2
    if prompt_tokens < max(least, len(wording.null)):
        raise ValueError(f"prompt_tokens {prompt_tokens}: a prompt has {least - 1} beside its caption; give 64 or more")
    highest = max(END_TURN, row_end or 0, *wording.ending)
    checkpoint = ChameleonCheckpoint(transformer, highest_id=highest)
    if tokenize is None:
        tokenize = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    read = load_tokenizer(tokenize, named) if isinstance(tokenize, str | Path) else tokenize
    config = checkpoint.config(prompt_len=prompt_tokens, rows=rows, cols=cols, row_ends=row_end is not None)

    def build() -> nn.ModuleDict:
        words = nn.Embedding(checkpoint.vocabulary, config.dim)
        conditioner = WordPrompts(words, prompt_tokens, lambda text: wording.ids(text, read), wording.null, PADDING)
        return nn.ModuleDict({"transformer": Transformer(config), "conditioner": conditioner})

    parts = unfilled(build)
    checkpoint.fill(parts, config.channels, dtype)
    body, conditioner = parts["transformer"], parts["conditioner"]
    assert isinstance(body, Transformer)
    assert isinstance(conditioner, WordPrompts)
    end = None if row_end is None else conditioner.words.weight[row_end].detach().clone()
    size = "7b" if (config.dim, config.n_layers) == (4096, 32) else f"{config.dim}x{config.n_layers}"
    target = Target(f"{name}-{size}", body, conditioner, checkpoint.codec(vq), SAMPLING, row_end=end)
    return target.to(device).eval().requires_grad_(False)


def load_anole(
    transformer: str | Path,
    vq: str | Path | None = None,
    tokenizer: Tokenize | str | Path | None = None,
    *,
    side: int = ANOLE_SIDE,
    prompt_tokens: int = PROMPT_TOKENS,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Target:
    """Anole: square images in raster order, nothing between the rows. For the rest see `load_target`."""
    return load_target(
        "anole", transformer, vq, tokenizer, wording=ANOLE_WORDING, rows=side, cols=side,
        prompt_tokens=prompt_tokens, dtype=dtype, device=device,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChameleonFiles(Params):
    """The files of a model of this architecture."""

    transformer: Annotated[str, "folder (or file) of the model in Hugging Face's layout"]
    vq: Annotated[str | None, "the VQGAN's file (vqgan.ckpt); may be left out where the model holds its decoder"] = None
    tokenizer: Annotated[str | None, "tokenizer.json, or its folder; left out: it lies beside the model"] = None
    prompt_tokens: Annotated[int, "room for a prompt", Range(8)] = PROMPT_TOKENS


@dataclass(frozen=True, slots=True)
class AnoleFiles(ChameleonFiles):
    """An entry of family anole."""

    kind: ClassVar[str] = "anole"


def with_codec(target: Target, entry: ChameleonFiles) -> Target:
    """`target`, if it can turn tokens into images. WeightsError if its files lack the decoder."""
    if target.codec is None:
        raise WeightsError(
            f"{entry.transformer}: holds no VQGAN decoder (Hugging Face's Chameleon leaves it out); give `vq`, the "
            "path of vqgan.ckpt"
        )
    return target


def load_entry(entry: AnoleFiles, device: torch.device, dtype: torch.dtype) -> Target:
    """The target of an entry. WeightsError or ValueError as `load_target`."""
    target = load_anole(
        entry.transformer, entry.vq, entry.tokenizer, prompt_tokens=entry.prompt_tokens, dtype=dtype, device=device
    )
    return with_codec(target, entry)


FAMILY = Family(name="anole", entry=AnoleFiles, load=load_entry)
