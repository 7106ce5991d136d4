"""Small EAGLE drafters with random numbers, written exactly as the published ones are laid out."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.fakes.toys import BASE

D, HEADS, FFN, CODES = BASE.dim, BASE.n_heads, BASE.ffn_dim, BASE.vocab_size
C = D // HEADS
State = dict[str, Tensor]


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape) / math.sqrt(shape[-1])


def published(*, chameleon: bool = False, bias: bool = True, codes: int = CODES) -> State:
    """A drafter's tensors under the published names."""
    torch.default_generator.manual_seed(5)
    attention = {f"self_attn.{p}_proj.weight": rand(D, D) for p in "qkvo"}
    mlp = {
        "mlp.gate_proj.weight": rand(FFN, D),
        "mlp.up_proj.weight": rand(FFN, D),
        "mlp.down_proj.weight": rand(D, FFN),
    }
    norms = {"post_attention_layernorm.weight": 1 + 0.3 * torch.randn(D)}
    if chameleon:
        norms["input_layernorm.weight"] = 1 + 0.3 * torch.randn(D)
        for part in "qk":
            norms[f"self_attn.{part}_norm.weight"] = 1 + 0.3 * torch.randn(HEADS, C)
            norms[f"self_attn.{part}_norm.bias"] = 0.3 * torch.randn(HEADS, C)
    layer = {f"layers.0.{name}": value for name, value in {**attention, **mlp, **norms}.items()}
    state = {"embed_tokens.weight": torch.randn(codes, D), "fc.weight": rand(D, 2 * D), **layer}
    return {**state, "fc.bias": 0.5 * torch.randn(D)} if bias else state


def write(folder: Path, state: State, *, pickled: bool = False, **config: object) -> Path:
    """A drafter's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(
        json.dumps({"hidden_size": D, "num_attention_heads": HEADS, **config})
    )
    if pickled:
        torch.save(state, folder / "pytorch_model.bin")
    else:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def published_eagle3(
    block: str = "midlayer", *, drafted: list[int] | None = None, codes: int = CODES
) -> State:
    """An EAGLE-3 drafter's tensors under the published names. drafted: the target's tokens that it
    drafts; None: all, and no embedding of its own.
    """
    torch.default_generator.manual_seed(6)
    attention = {f"self_attn.{p}_proj.weight": rand(D, 2 * D) for p in "qkv"} | {
        "self_attn.o_proj.weight": rand(D, D)
    }
    mlp = {
        f"mlp.{p}_proj.weight": rand(*size)
        for p, size in (("gate", (FFN, D)), ("up", (FFN, D)), ("down", (D, FFN)))
    }
    norms = {
        f"{name}.weight": 1 + 0.3 * torch.randn(D)
        for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    }
    layer = {f"{block}.{name}": value for name, value in {**attention, **mlp, **norms}.items()}
    rows = codes if drafted is None else len(drafted)
    state = {"fc.weight": rand(D, 3 * D), **layer, "norm.weight": 1 + 0.3 * torch.randn(D)}
    state["lm_head.weight"] = rand(rows, D)
    if drafted is not None:
        state["embed_tokens.weight"] = torch.randn(codes, D)
        state["d2t"] = torch.tensor(drafted) - torch.arange(rows)
        state["t2d"] = torch.isin(torch.arange(codes), torch.tensor(drafted))
    return state
