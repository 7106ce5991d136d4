"""A folder of weights like the built-in one, at a size that trains in seconds: random, but
whole.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import nn

from workers.drafters.eagle import EagleLayer
from workers.models.families.scenes import BUILTIN
from workers.models.own_files import save
from workers.models.transformer import TransformerConfig
from workers.models.vq import VQConfig, VQModel, save_vq
from workers.training.drafters import build_model

CODEC = VQConfig(
    codebook_size=32,
    code_dim=4,
    channels=8,
    multipliers=(1, 1, 2),
    encoder_blocks=1,
    decoder_blocks=1,
    z_channels=8,
    groups=4,
    level_attention=False,
    mid_attention=False,
)
BODY = TransformerConfig(
    dim=32,
    n_layers=2,
    n_heads=2,
    ffn_dim=48,
    vocab_size=32,
    prompt_rope="identity",
    prompt_len=3,
    rows=4,
    cols=4,
)
SCENES_CODES = 128
SCENES_BODY = replace(BODY, vocab_size=SCENES_CODES, prompt_len=12, rows=6, cols=6)
SCENES_CODEC = replace(CODEC, codebook_size=SCENES_CODES, multipliers=(1, 1, 2, 2))
WORDS = ("red", "blue", "small", "large", "star", "ring")


def tiny_folder(folder: Path) -> Path:
    """Tokenizer and target of 32 codes on a 4 x 4 grid, which reads captions of `WORDS`, three at
    most.
    """
    folder.mkdir(parents=True, exist_ok=True)
    torch.default_generator.manual_seed(0)
    save_vq(VQModel(CODEC), folder / "tokenizer.safetensors")
    model = build_model(BODY, {"kind": "words", "words": list(WORDS), "length": 3}, 0)
    nn.init.normal_(model.head.weight, std=0.4)
    sampling = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "cfg": 1.5}
    save(
        folder / "target.safetensors",
        model,
        {**model.settings(), "name": "tiny", "sampling": sampling},
    )
    return folder


def tiny_scenes(folder: Path) -> Path:
    """Tokenizer, target and EAGLE layer for scenes of the usual 48 pixels, on a grid of 6 x 6."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.default_generator.manual_seed(0)
    save_vq(VQModel(SCENES_CODEC), folder / "tokenizer.safetensors")
    model = build_model(SCENES_BODY, {"kind": "scenes"}, 0)
    # flat laws: an untrained layer is believed now and then
    nn.init.normal_(model.head.weight, std=0.15)
    sampling = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "cfg": 1.0}
    save(
        folder / "target.safetensors",
        model,
        {**model.settings(), "name": "tiny-scenes", "sampling": sampling},
    )
    config = replace(SCENES_BODY, n_layers=1, vocab_size=0, input_norm=False, final_norm=False)
    save(folder / "eagle.safetensors", EagleLayer(config), {"transformer": asdict(config)})
    return folder


def tiny_scored(folder: Path) -> Path:
    """The same with the built-in nets for metrics."""
    tiny_scenes(folder)
    for net in ("features", "clip"):
        shutil.copy(BUILTIN / f"{net}.safetensors", folder)
    return folder


def captions_file(path: Path, count: int) -> Path:
    """So many captions that the tiny target can read, one a line."""
    lines = [
        f"{WORDS[i % 2]} {WORDS[2 + i // 2 % 2]} {WORDS[4 + i // 4 % 2]}" for i in range(count)
    ]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path
