"""A tiny random CLIP in the layouts of official files: a Hugging Face folder with its tokenizer,
open_clip's names.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import CLIPConfig, CLIPModel

MERGES = ("r e", "re d</w>", "s t", "a r</w>", "st ar</w>")
LETTERS = sorted(ByteLevel.alphabet())
WORDS = [
    *LETTERS,
    *(f"{letter}</w>" for letter in LETTERS),
    *(pair.replace(" ", "") for pair in MERGES),
]
START, STOP = len(WORDS), len(WORDS) + 1
WIDTH, LAYERS, HEADS, IMAGE, PATCH, LENGTH, SHARED = 8, 2, 2, 32, 16, 24, 6


def config(activation: str = "quick_gelu") -> CLIPConfig:
    both = {
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "hidden_act": activation,
    }
    marks = {"bos_token_id": START, "eos_token_id": STOP, "pad_token_id": STOP}
    text = both | marks | {"vocab_size": STOP + 1, "max_position_embeddings": LENGTH}
    vision = both | {"image_size": IMAGE, "patch_size": PATCH}
    return CLIPConfig(text_config=text, vision_config=vision, projection_dim=SHARED)


def write_tokenizer(folder: Path) -> None:
    """vocab.json and merges.txt as OpenAI's folders have them."""
    folder.mkdir(parents=True, exist_ok=True)
    marks = {"<|startoftext|>": START, "<|endoftext|>": STOP}
    (folder / "vocab.json").write_text(
        json.dumps({word: place for place, word in enumerate(WORDS)} | marks)
    )
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *MERGES, ""]))


def write_clip(folder: Path, seed: int = 0) -> CLIPModel:
    """The folder of a random CLIP; returns transformers' own model of it."""
    write_tokenizer(folder)
    torch.default_generator.manual_seed(seed)
    model = CLIPModel(config())
    model.train(False)
    for weight in model.parameters():
        weight.data += 0.3 * torch.randn_like(weight)
    model.save_pretrained(folder)
    return model


def open_clip_weights(seed: int = 0) -> dict[str, Tensor]:
    """Random tensors under open_clip's names, in its shapes."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.4

    found = {
        "positional_embedding": draw(LENGTH, WIDTH),
        "text_projection": draw(WIDTH, SHARED),
        "logit_scale": draw(),
        "token_embedding.weight": draw(STOP + 1, WIDTH),
        "ln_final.weight": 1 + draw(WIDTH),
        "ln_final.bias": draw(WIDTH),
        "visual.class_embedding": draw(WIDTH),
        "visual.positional_embedding": draw((IMAGE // PATCH) ** 2 + 1, WIDTH),
        "visual.proj": draw(WIDTH, SHARED),
        "visual.conv1.weight": draw(WIDTH, 3, PATCH, PATCH),
    }
    for norm in ("visual.ln_pre", "visual.ln_post"):
        found |= {f"{norm}.weight": 1 + draw(WIDTH), f"{norm}.bias": draw(WIDTH)}
    for stem in ("visual.transformer.resblocks", "transformer.resblocks"):
        for layer in range(LAYERS):
            at = f"{stem}.{layer}"
            for norm in ("ln_1", "ln_2"):
                found |= {f"{at}.{norm}.weight": 1 + draw(WIDTH), f"{at}.{norm}.bias": draw(WIDTH)}
            found |= {
                f"{at}.attn.in_proj_weight": draw(3 * WIDTH, WIDTH),
                f"{at}.attn.in_proj_bias": draw(3 * WIDTH),
            }
            sizes = {
                "attn.out_proj": (WIDTH, WIDTH),
                "mlp.c_fc": (4 * WIDTH, WIDTH),
                "mlp.c_proj": (WIDTH, 4 * WIDTH),
            }
            for name, (rows, columns) in sizes.items():
                found |= {
                    f"{at}.{name}.weight": draw(rows, columns),
                    f"{at}.{name}.bias": draw(rows),
                }
    return found
