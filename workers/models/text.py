"""Captions for text-conditional targets: LlamaGen's caption cleaning, and T5 features.

`clean_caption` follows the rules that LlamaGen took from DeepFloyd IF for its T5 features. It
handles URL quoting, URLs and bare domains, HTML tags and entities, @nicknames, CJK characters,
typographic dashes and quotes, IP addresses, article ids and `#numbers`, file names, resolutions,
shop boiler-plate, runs of punctuation, and loose punctuation at the ends. Two differences: there is
no repair of wrongly decoded text ("Ã©") by ftfy, and URLs are removed completely, while the
original leaves the query string of some.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from functools import lru_cache, partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote_plus

import torch
from torch import Tensor, nn

from workers.models.checkpoint_files import WeightsError
from workers.models.hf_files import HFTokenizer, load_pretrained

CAPTION_TOKENS = 120  # tokens of LlamaGen's prompts
_CACHE_SIZE = 128  # captions; the features of one by flan-t5-xl take half a megabyte in bfloat16


class TextEncoder(Protocol):
    """Captions to features [B, L, F] and their validity [B, L] (bool; padding is at the right)."""

    def __call__(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]: ...


class T5Encoder:
    """T5's encoder and tokenizer from a local folder, as `save_pretrained` lays it out.

    Captions are encoded one at a time, each padded to `CAPTION_TOKENS`, so a caption's features do
    not depend on its batch. This takes little time compared with generating an image. The features
    of the latest captions are cached.
    """

    # Captions encoded at once; more than 1 is faster, but changes the last bits of a caption's
    # features.
    batch_size: int = 1

    def __init__(
        self,
        folder: str | Path,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """
        Raises:
            WeightsError: the folder holds no T5 encoder with its tokenizer.
        """
        # Imported here: the import takes seconds, and most targets do not need it.
        from transformers import T5EncoderModel

        class Encoder(T5EncoderModel):  # type: ignore[no-untyped-call]
            # A checkpoint may also hold the decoder and the head, which are not loaded.
            _keys_to_ignore_on_load_unexpected = [r"^decoder\.", r"^lm_head\."]  # noqa: RUF012

        if not Path(folder).is_dir():
            raise WeightsError(
                f"{folder}: no such folder; give the folder of a T5 encoder (flan-t5-xl for "
                "LlamaGen)"
            )
        tokenizer = HFTokenizer(folder).library
        # T5's output projections overflow in float16
        keep = ".wo." if dtype == torch.float16 else ""
        model = load_pretrained(folder, Encoder, dtype, keep=keep, renamed=False)
        self._model: nn.Module = model.to(device)
        self.width = int(model.config.d_model)  # number of features
        # Not methods: a cache of a bound method is a reference cycle, which would hold the memory
        # of an encoder that is no longer used.
        self._encode = partial(_encode, tokenizer, model)
        self._encode_cached = lru_cache(_CACHE_SIZE)(self._encode)

    @property
    def bytes(self) -> int:
        """Size of the encoder's parameters in bytes."""
        return sum(parameter.nbytes for parameter in self._model.parameters())

    def __call__(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Features [B, tokens, F] and validity [B, tokens] of the cleaned captions; longer captions
        are truncated.
        """
        if next(self._model.parameters()).is_meta:
            shape = (len(captions), CAPTION_TOKENS)
            return torch.empty(*shape, self.width, device="meta"), torch.empty(
                shape, dtype=torch.bool, device="meta"
            )
        if self.batch_size > 1:  # not cached: features would depend on earlier batches
            parts = [
                self._encode(captions[start : start + self.batch_size])
                for start in range(0, len(captions), self.batch_size)
            ]
        else:
            parts = [self._encode_cached((caption,)) for caption in captions]
        features, valid = zip(*parts, strict=True)
        return torch.cat(features), torch.cat(valid)


@torch.inference_mode()
def _encode(tokenizer: Any, model: Any, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
    inputs = tokenizer(
        [clean_caption(clean_caption(caption)) for caption in captions],  # twice, as LlamaGen does
        max_length=CAPTION_TOKENS,
        padding="max_length",
        truncation=True,
        return_tensors="pt",
    ).to(model.device)
    features = model(inputs.input_ids, attention_mask=inputs.attention_mask).last_hidden_state
    return features, inputs.attention_mask.bool()


class _Text(HTMLParser):
    """Collects the text between tags."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def _without_tags(text: str) -> str:
    parser = _Text()
    parser.feed(text)
    parser.close()
    return "".join(parser.parts)


_CJK = "\u31c0-\u31ef\u31f0-\u31ff\u3200-\u32ff\u3300-\u33ff\u3400-\u4dbf\u4dc0-\u4dff\u4e00-\u9fff"
_DASHES = (
    "\u002d\u058a\u05be\u1400\u1806\u2010-\u2015\u2e17\u2e1a\u2e3a\u2e3b"
    "\u2e40\u301c\u3030\u30a0\ufe31\ufe32\ufe58\ufe63\uff0d"
)
_SYMBOLS = r"[#®•©™&@·º½¾¿¡§~()\[\]{}|\\/*]+"

# Applied in order: _BEFORE, then tags and entities are resolved, then the other lists.
_BEFORE = (
    (r"<person>", "person"),
    (r"\bhttps?:/{1,3}[\w./?&=%#+~:;,@!-]*", ""),
    (r"\bwww\.[\w./?&=%#+~:;,@!-]*", ""),
    (r"\b[a-z0-9.-]+\.(?:com|co|ru|net|org|edu|gov|it)\b[\w/-]*(?!@)", ""),
)
_RULES = (
    (r"@[\w\d]+\b", ""),
    (rf"[{_CJK}]+", ""),
    (rf"[{_DASHES}]+", "-"),
    (r"[`´«»“”¨]", '"'),
    (r"[‘’]", "'"),
    (r"&(quot|amp);?", ""),
    (r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}", " "),
    (r"\d:\d\d\s+$", ""),
    (r"\\n", " "),
    (r"#\d{1,3}\b", ""),
    (r"#\d{5,}\b", ""),
    (r"\b\d{6,}\b", ""),
    (r"\b[\w-]+\.(?:jpe?g|png|bmp|webp|eps|pdf|apk|mp4)\b", ""),
    (r"[\"']{2,}", '"'),
    (r"\.{2,}", " "),
    (_SYMBOLS, " "),
    (r"\s+\.\s+", " "),
)
_BOILERPLATE = (
    # article ids: jc6640, jc6640vc, 6640vc231
    (r"\b(?:[a-z]{1,3}\d{3,15}|[a-z]+\d+[a-z]+|\d+[a-z]+\d+)\b", ""),
    (r"(worldwide\s+)?(free\s+)?shipping", ""),
    (r"(free\s)?download(\sfree)?", ""),
    (r"\bclick\b\s(?:for|on)\s\w+", ""),
    (r"\b(?:png|jpe?g|bmp|webp|eps|pdf|apk|mp4)(\simages?)?", ""),
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[a-z]+\d+[a-z]+\d+[a-z\d]*\b", " "),
    (r"\b\d+\.?\d*[xх×]\d+\.?\d*\b", ""),
    (r"\b\s+:\s+", ": "),
    (r"(\D[,./])\b", r"\1 "),
    (r"\s+", " "),
)
_ENDS = (
    (r"^[\"'](.+)[\"']$", r"\1"),
    (r"^['_,:;-]", ""),
    (r"['_,:+-]$", ""),
    (r"^\.\S+$", ""),
)


def clean_caption(caption: str) -> str:
    """One pass of the cleaning (LlamaGen applies two). Always lower case."""
    text = _apply(_BEFORE, unquote_plus(caption).strip().lower())
    text = _apply(_RULES, _without_tags(text))
    if len(re.findall(r"[-_]", text)) > 3:  # this-is-my-cute-cat
        text = re.sub(r"[-_]", " ", text)
    text = html.unescape(html.unescape(text)).strip()
    return _apply(_ENDS, _apply(_BOILERPLATE, text).strip()).strip()


def _apply(rules: Sequence[tuple[str, str]], text: str) -> str:
    for pattern, replacement in rules:
        text = re.sub(pattern, replacement, text)
    return text
