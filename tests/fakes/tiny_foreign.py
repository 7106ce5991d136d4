"""Tiny Janus, Emu3 and GLM-Image checkpoints as `save_pretrained` writes them, tokenizer included."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import (
    Emu3Config,
    Emu3ForConditionalGeneration,
    GlmImageConfig,
    GlmImageForConditionalGeneration,
    JanusConfig,
    JanusForConditionalGeneration,
    PreTrainedTokenizerFast,
)

WORDS = ["a", "red", "blue", "ball", "cat", "User", "Assistant", ":", "*", ".", ",", *"0123456789"]
JANUS_SIDE, JANUS_CODES = 4, 96
EMU3_CODES, EMU3_UNIT = 80, 8
JANUS_NAMED = {
    "bos_token": "<begin of sentence>", "pad_token": "<padding>", "boi_token": "<begin_of_image>",
    "eoi_token": "<end_of_image>", "image_token": "<image_placeholder>",
}  # fmt: skip
EMU3_NAMED = {
    "bos_token": "<|extra_203|>",
    "pad_token": "<|endoftext|>",
    "boi_token": "<|image start|>",
    "eoi_token": "<|image end|>",
    "image_token": "<image>",
    "image_wrapper_token": "<|image token|>",
    "eof_token": "<|extra_201|>",
}
GLM_CODES = 40
GLM_NAMED = {
    "bos_token": f"<|dit_token_{GLM_CODES}|>",
    "eos_token": f"<|dit_token_{GLM_CODES + 1}|>",
    "pad_token": "<|endoftext|>",
    "image_token": "<|image|>",
    "grid_bos_token": "<sop>",
    "grid_eos_token": "<eop>",
}
GLM_CHAT = (
    "{% for message in messages %}{{ message['role'] }}: {% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
)
TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e4},
}  # fmt: skip

#: Every way of drafting, as a setting without sampling.
MODES: dict[str, dict[str, object]] = {
    "chain": {"drafter": "medusa", "tree": {"policy": "chain", "length": 5}},
    "static": {"drafter": "medusa", "tree": {"policy": "static", "name": "eagle1_26"}},
    "dynamic": {
        "drafter": "medusa",
        "tree": {"policy": "dynamic", "depth": 4, "width": 3, "nodes": 9},
    },
    "adjacency": {
        "drafter": "medusa",
        "tree": {"policy": "adjacency", "width_range": [2, 3], "start_width": 2, "nodes": 9},
    },
    "jacobi": {"drafter": "jacobi", "tree": {"policy": "chain", "length": 6}},
}


def janus(folder: Path) -> Any:
    """Write one; gives what transformers makes of it."""
    vocabulary = write_tokenizer(folder, JANUS_NAMED, [])
    config = JanusConfig(
        text_config={"model_type": "llama", "vocab_size": len(vocabulary), **TEXT},
        vision_config={
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": JANUS_SIDE * 4,
            "patch_size": 4,
            "projection_dim": 32,
            "num_image_tokens": JANUS_SIDE**2,
        },
        vq_config={
            "embed_dim": 6,
            "num_embeddings": JANUS_CODES,
            "latent_channels": 8,
            "base_channels": 32,
            "channel_multiplier": [1, 1, 1],
            "num_res_blocks": 1,
            "projection_dim": 32,
            "image_token_embed_dim": 32,
        },
    )
    model: Any = JanusForConditionalGeneration(config)
    model.generation_config.pad_token_id = vocabulary[JANUS_NAMED["pad_token"]]
    model.generation_config.bos_token_id = vocabulary[JANUS_NAMED["bos_token"]]
    model.generation_config.generation_kwargs = {
        "boi_token_id": vocabulary[JANUS_NAMED["boi_token"]]
    }
    return written(model, folder)


def emu3(folder: Path) -> Any:
    """Write one; gives what transformers makes of it. Codes do not stand in their order in the
    vocabulary.
    """
    codes = [f"<|visual token {code:06d}|>" for code in range(EMU3_CODES)]
    vocabulary = write_tokenizer(folder, EMU3_NAMED, ["<|extra_200|>", *codes[::2], *codes[1::2]])
    config = Emu3Config(
        text_config={
            "vocab_size": len(vocabulary),
            "attention_dropout": 0.0,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **TEXT,
        },
        vq_config={
            "codebook_size": EMU3_CODES,
            "embed_dim": 4,
            "latent_channels": 4,
            "base_channels": 32,
            "hidden_size": 32,
            "channel_multiplier": [1, 1, 1, 1],
            "num_res_blocks": 1,
            "attn_resolutions": [3],
        },
        vocabulary_map=vocabulary,
    )
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.5] * 3, "image_std": [0.25] * 3})
    )
    return written(Emu3ForConditionalGeneration(config), folder)


def glm_image(folder: Path, count: int = GLM_CODES) -> Any:
    """Write one of `count` codes, the tokenizer in its folder `processor`; gives what transformers
    makes of it. The codes are the first ids of the vocabulary, then the image's start and end.
    """
    codes = [f"<|dit_token_{code}|>" for code in range(count)]
    vocabulary = write_tokenizer(
        folder / "processor", GLM_NAMED, [], first=codes, chat_template=GLM_CHAT
    )
    start = vocabulary[GLM_NAMED["bos_token"]]
    config = GlmImageConfig(
        text_config={
            **TEXT,
            "vocab_size": len(vocabulary),
            "vision_vocab_size": count + 4,
            "pad_token_id": vocabulary[GLM_NAMED["pad_token"]],
            "eos_token_id": start + 1,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 50.0,
                "partial_rotary_factor": 0.75,
                "mrope_section": [1, 1, 1],
            },
        },
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "num_heads": 2,
            "intermediate_size": 16,
            "image_size": 32,
        },
        vq_config={"embed_dim": 6, "num_embeddings": count, "latent_channels": 16},
        image_start_token_id=start,
        image_end_token_id=start + 1,
        image_token_id=vocabulary[GLM_NAMED["image_token"]],
    )
    return written(GlmImageForConditionalGeneration(config), folder)


def write_tokenizer(
    folder: Path,
    named: dict[str, str],
    others: list[str],
    *,
    first: Sequence[str] = (),
    chat_template: str | None = None,
) -> dict[str, int]:
    """A tokenizer of single words, whose ids begin with `first`; gives its vocabulary."""
    beginning = [*first, *named.values(), "<unk>"] if first else ["<unk>", *named.values()]
    tokens = [*beginning, *others, *WORDS]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\d|\w+|[^\w\s]|\s+"), "isolated")
    kind: Any = PreTrainedTokenizerFast
    fast = kind(tokenizer_object=tokenizer, unk_token="<unk>", extra_special_tokens=named)
    fast.add_special_tokens({"additional_special_tokens": [*named.values(), *others]})
    fast.chat_template = chat_template
    folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(folder)
    return vocabulary


def written(model: Any, folder: Path) -> Any:
    """Every weight far from its initial value, then saved."""
    model.eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(7)
    for name, value in model.named_parameters():
        noise = torch.randn(value.shape, generator=generator)
        if "norm" in name and value.dim() == 1:
            value.copy_((0.0 if name.endswith("bias") else 1.0) + 0.3 * noise)
        elif "embed" in name or "head" in name:
            value.copy_(noise)
        else:
            value.copy_(noise * value[0].numel() ** -0.5 if value.dim() > 1 else 0.1 * noise)
    model.save_pretrained(folder)
    return model
