"""Tiny SimpleAR and Liquid checkpoints in the published layouts: a causal model of `transformers`
with its own class of tokenizer, SimpleAR's codec as a traced decoder, Liquid's as taming's file.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from torch import Tensor, nn
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    GemmaTokenizer,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)

from tests.fakes.tiny_chameleon import decoder_state, encoder_state, reference_model

SIMPLEAR_CODES, LIQUID_CODES = 64_000, 8192
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}
LEVELS = (8, 8, 8, 5, 5, 5)
SIMPLEAR_TOKENS = ["<|t2i|>", "<|i2t|>", "<|soi|>", "<|vtokens|>", "<|t2v|>", "<|v2t|>", "<|sov|>"]
LIQUID_TOKENS = ["<boi>", "<eoi>", "<unconditional>"]


def simplear(folder: Path, *, codec: bool = True) -> Any:
    """Write a SimpleAR folder, with decoder.jit in it if it has a `codec`; returns its model."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": SIMPLEAR_TOKENS})
    tokenizer.save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=len(tokenizer) + SIMPLEAR_CODES,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        **SIZES,
    )
    if codec:
        write_decoder(folder / "decoder.jit")
    return _written(Qwen2ForCausalLM(config), folder, gain=20)


def liquid(folder: Path, *, codec: bool = True) -> Any:
    """Write a Liquid folder, with vqgan.ckpt in it if it has a `codec`; returns its model."""
    first = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<2mass>", "[@BOS@]", *LIQUID_TOKENS]
    letters = [chr(number) for number in range(33, 127)]
    tokens = [*first, *(f"<0x{number:02X}>" for number in range(256)), "▁", *letters]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = GemmaTokenizer(vocab=vocabulary, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": LIQUID_TOKENS})
    tokenizer.save_pretrained(folder)
    assert len(tokenizer) == len(tokens)
    config = GemmaConfig(vocab_size=len(tokens) + LIQUID_CODES, head_dim=16, **SIZES)
    if codec:
        write_vqgan(folder / "vqgan.ckpt")
    return _written(GemmaForCausalLM(config), folder, gain=100)


def write_vqgan(path: Path) -> None:
    """A VQGAN in taming's layout."""
    torch.save({"state_dict": encoder_state(reference_model()) | decoder_state()}, path)


def _written(model: Any, folder: Path, gain: float) -> Any:
    """Save a model with random weights.

    Args:
        model: the model.
        folder: where to.
        gain: scale of what layers add to the embeddings. Embedding and head are one matrix, and a
            small model that adds little repeats its last token for ever.
    """
    model.eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(7)
    for name, value in model.named_parameters():
        noise = torch.randn(value.shape, generator=generator)
        if "norm" in name:
            value.add_(0.3 * noise)
        elif "embed" in name:
            value.copy_(noise)
        elif value.dim() == 1:
            value.copy_(0.3 * noise)
        else:
            scale = gain if "o_proj" in name or "down_proj" in name else 1.0
            value.copy_(scale * noise * value.shape[1] ** -0.5)
    model.save_pretrained(folder)
    return model


class Quantizer(nn.Module):
    """Ids [B, T, h, w] to points of the lattice [B, 6, T, h, w]."""

    _levels: Tensor
    _basis: Tensor

    def __init__(self, levels: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("_levels", torch.tensor(levels, dtype=torch.int32), persistent=False)
        basis = torch.tensor([1, *levels[:-1]]).cumprod(0).int()
        self.register_buffer("_basis", basis, persistent=False)
        self.dtype = dtype

    def forward(self, ids: Tensor) -> Tensor:
        levels, basis = self._levels, self._basis
        half = levels // 2
        points = ((ids[..., None] // basis) % levels - half) / half
        return points.movedim(-1, 1).to(self.dtype)


class InverseQuantizer(nn.Module):
    """Its program names the device, as programs of GPUs do."""

    def __init__(self, quantizer: Quantizer) -> None:
        super().__init__()
        self.quantizer = quantizer

    def forward(self, ids: Tensor) -> Tensor:
        return torch.as_tensor(self.quantizer(ids))


class Upsampling(nn.Module):
    """[B, 4, T, h, w] to frames [B, 3, T, 16 h, 16 w] in [-1, 1]. Equal constants name the device,
    as in the published decoder.
    """

    def __init__(self, patch: int) -> None:
        super().__init__()
        self.patch = patch
        self.conv_in = nn.Conv3d(4, 12, (1, 3, 3), padding=(0, 1, 1))
        self.conv_out = nn.Conv3d(12, 3, (1, 3, 3), padding=(0, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.nn.functional.silu(self.conv_in(x))
        x = x.repeat_interleave(self.patch, 3).repeat_interleave(self.patch, 4)
        x = self.conv_out(x * torch.tensor(2.0).to(x.device, x.dtype))
        return (x * torch.tensor(2.0).to(x.device, x.dtype)).tanh()


def decoder_module(
    levels: tuple[int, ...] = LEVELS, patch: int = 16, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """What `write_decoder` traces."""
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(9)
        module = nn.Sequential(
            OrderedDict(
                inv_quant=InverseQuantizer(Quantizer(levels, dtype)),
                post_quant_conv=nn.Conv3d(len(levels), 4, 1),
                decoder=Upsampling(patch),
            )
        )
    return module.to(dtype).eval().requires_grad_(False)


def write_decoder(path: Path, module: nn.Module | None = None) -> None:
    """A traced decoder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing is deprecated
        ids = torch.zeros(1, 1, 4, 4, dtype=torch.int64)
        traced: Any = torch.jit.trace(decoder_module() if module is None else module, ids)  # type: ignore[no-untyped-call]
        traced.save(str(path))
