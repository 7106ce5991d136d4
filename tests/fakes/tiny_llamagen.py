"""Tiny random LlamaGen checkpoints, written exactly as the official files are laid out, and a
models.yaml for them.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

from workers.drafters.eagle import EagleLayer
from workers.models.own_files import save
from workers.models.transformer import TransformerConfig
from workers.models.vq import VQConfig, VQModel

PROMPT, FEATURES = 120, 2048
VQ = VQConfig(codebook_size=1024, channels=32, z_channels=32, multipliers=(1, 1, 1, 1, 1))


@dataclass(frozen=True)
class Size:
    """Of a transformer; image_size 48 is a grid of 3 x 3."""

    dim: int = 32
    layers: int = 2
    heads: int = 2
    codes: int = 1024  # no fewer than the family's own top-k
    image_size: int = 48

    @property
    def ffn(self) -> int:
        return -(-(8 * self.dim // 3) // 256) * 256


def rand(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape) * (scale / math.sqrt(shape[-1]))


def official(kind: str, size: Size) -> dict[str, Tensor]:
    """A transformer's state dict under the official names; kind "c2i" or "t2i"."""
    torch.default_generator.manual_seed(3)
    dim, state = size.dim, {"tok_embeddings.weight": torch.randn(size.codes, size.dim)}
    for i in range(size.layers):
        state[f"layers.{i}.attention.wqkv.weight"] = rand(3 * dim, dim, scale=2)
        state[f"layers.{i}.attention.wo.weight"] = rand(dim, dim)
        state[f"layers.{i}.feed_forward.w1.weight"] = rand(size.ffn, dim)
        state[f"layers.{i}.feed_forward.w3.weight"] = rand(size.ffn, dim)
        state[f"layers.{i}.feed_forward.w2.weight"] = rand(dim, size.ffn)
        state[f"layers.{i}.attention_norm.weight"] = torch.ones(dim)
        state[f"layers.{i}.ffn_norm.weight"] = torch.ones(dim)
    if kind == "c2i":
        state["cls_embedding.embedding_table.weight"] = torch.randn(1001, dim)
    else:
        state["cls_embedding.cap_proj.fc1.weight"] = rand(dim, FEATURES, scale=2)
        state["cls_embedding.cap_proj.fc2.weight"] = rand(dim, dim, scale=2)
        state["cls_embedding.uncond_embedding"] = torch.randn(PROMPT, FEATURES)
    return state | {"norm.weight": torch.ones(dim), "output.weight": rand(size.codes, dim, scale=3)}


def write_vq(path: Path, config: VQConfig = VQ) -> None:
    torch.default_generator.manual_seed(4)
    state = VQModel(config).state_dict()
    torch.save({"model": {**state, "quantize.codebook_used": torch.zeros(65536)}, "steps": 1}, path)


def write_t5(folder: Path) -> None:
    """A T5 encoder of one layer with a tokenizer of six words."""
    words = ["<pad>", "</s>", "<unk>", "a", "red", "ball", "cat", "small"]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    torch.default_generator.manual_seed(5)
    config = T5Config(
        vocab_size=8, d_model=FEATURES, d_kv=4, d_ff=8, num_layers=1, num_heads=2, dropout_rate=0.0
    )
    T5EncoderModel(config).save_pretrained(folder)


def write_eagle(path: Path, size: Size, prompt_len: int) -> None:
    """An EAGLE layer for the target, in the project's own format."""
    side = size.image_size // 16
    config = TransformerConfig(
        dim=size.dim,
        n_layers=1,
        n_heads=size.heads,
        ffn_dim=size.ffn,
        prompt_len=prompt_len,
        rows=side,
        cols=side,
        input_norm=False,
        final_norm=False,
    )
    torch.default_generator.manual_seed(6)
    save(path, EagleLayer(config), {"transformer": asdict(config)}, dtype=torch.float32)


def write_models(folder: Path, size: Size = Size()) -> Path:
    """Checkpoints of both kinds under `ckpt`, and a models.yaml with the entries `classes` and
    `captions`.
    """
    ckpt = folder / "ckpt"
    ckpt.mkdir(parents=True)
    for kind, prompt_len in (("c2i", 1), ("t2i", PROMPT)):
        torch.save({"model": official(kind, size), "steps": 7}, ckpt / f"{kind}.pt")
        write_eagle(ckpt / f"eagle-{kind}.safetensors", size, prompt_len)
    write_vq(ckpt / "vq.pt", replace(VQ, codebook_size=size.codes))
    write_t5(ckpt / "t5")
    common = {
        "family": "llamagen",
        "vq": "ckpt/vq.pt",
        "image_size": size.image_size,
        "heads": size.heads,
    }
    entries = {
        "classes": {
            **common,
            "transformer": "ckpt/c2i.pt",
            "drafters": {"eagle": "ckpt/eagle-c2i.safetensors"},
        },
        "captions": {
            **common,
            "transformer": "ckpt/t2i.pt",
            "text": "ckpt/t5",
            "drafters": {"eagle": "ckpt/eagle-t2i.safetensors"},
        },
    }
    path = folder / "models.yaml"
    path.write_text(yaml.safe_dump(entries, sort_keys=False))
    return path
