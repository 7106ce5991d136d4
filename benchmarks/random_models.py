"""Published models without their files: the true shapes, random weights; and the built-in model
with more codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from search_spaces.trial import DecodingConfig
from workers.drafters.eagle import EagleDrafter
from workers.loading.models import Models
from workers.loading.models_yaml import (
    add_drafter,
    published_entries,
    published_entry,
    shape_only_models,
)
from workers.models.families import chameleon
from workers.models.families.conditioners import TokenPrompts
from workers.models.families.llamagen_prompts import (
    CAPTION_DIM,
    CaptionConditioner,
    ClassConditioner,
)
from workers.models.target import Target
from workers.models.text import CAPTION_TOKENS
from workers.models.transformer import Transformer
from workers.models.vq import VQConfig, VQModel
from workers.models.weights import skip_init

# GLM-Image runs the layers of `transformers`, which have no shape of this project's own.
NAMES = tuple(
    name for name, entry in published_entries().items() if entry.family.kind != "glm_image"
)
TINY: dict[str, Any] = {
    "dim": 64,
    "n_layers": 2,
    "n_heads": 2,
    "n_kv_heads": None,
    "head_dim": None,
    "ffn_dim": 128,
    "vocab_size": 2048,
}

Module = TypeVar("Module", bound=nn.Module)


def published_shape(name: str, dtype: torch.dtype, *, tiny: bool = False, **changes: Any) -> Target:
    """A published target on the meta device. A tiny one has few codes and a small codec. changes:
    of its sizes.
    """
    published = shape_only_models(published_entry(name), dtype).target
    config = replace(published.transformer.config, **((TINY if tiny else {}) | changes))
    body = skip_init(lambda: Transformer(config)).to("meta", dtype)
    conditioner = skip_init(lambda: conditioner_like(published.conditioner, config.dim)).to(
        "meta", dtype
    )
    row_end = (
        None if published.row_end is None else torch.empty(config.dim, dtype=dtype, device="meta")
    )
    small = VQConfig(
        config.vocab_size, channels=32, multipliers=(1, 1), decoder_blocks=1, z_channels=32
    )
    codec = skip_init(lambda: VQModel(small)).to("meta") if tiny else published.codec
    target = Target(published.name, body, conditioner, codec, published.sampling, row_end=row_end)
    return target.eval().requires_grad_(False)


def conditioner_like(shape: nn.Module, dim: int) -> nn.Module:
    """The family's own conditioner, which reads captions without T5 and without a tokenizer: the
    tokens are bytes.
    """
    if isinstance(shape, CaptionConditioner):
        return CaptionConditioner(dim, random_features)
    if isinstance(shape, ClassConditioner):
        return ClassConditioner(dim)
    assert isinstance(shape, TokenPrompts)
    words, null = nn.Embedding(chameleon.VOCABULARY_7B, dim), chameleon.ANOLE.null
    return TokenPrompts(
        words, shape.prompt_len, lambda text: list(text.encode()), null, chameleon.PADDING
    )


@torch.no_grad()
def with_codes(models: Models, codes: int) -> Models:
    """Target and EAGLE drafter of the built-in model with a larger vocabulary: every code has codes
    / V numbers, whose weights differ by a little noise. So images are about the same, and passes
    cost what a larger head costs.

    Raises:
        ValueError: `codes` is not a multiple of V.
    """
    target = deepcopy(models.target)
    if codes % target.vocab_size:
        raise ValueError(f"give a multiple of {target.vocab_size} codes, got {codes}")
    generator, codec = torch.Generator().manual_seed(0), cast("VQModel", target.codec)

    def repeated(weight: Tensor) -> nn.Parameter:
        copies = weight.repeat(codes // len(weight), 1)
        noise = torch.randn(copies.shape, generator=generator)
        return nn.Parameter(copies + 1e-3 * weight.std() * noise, requires_grad=False)

    head = cast(nn.Linear, target.head)
    target.embed.weight, head.weight = repeated(target.embed.weight), repeated(head.weight)
    codec.quantize.embedding.weight = repeated(codec.quantize.embedding.weight)
    target.transformer.config = replace(target.transformer.config, vocab_size=codes)
    eagle = models.drafters["eagle"]
    assert isinstance(eagle, EagleDrafter)
    return Models(
        target, {"eagle": EagleDrafter(target, deepcopy(eagle.layer), filler=eagle.filler)}, {}
    )


def random_features(captions: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Replaces T5: random features of its shape, all valid."""
    shape, generator = (len(captions), CAPTION_TOKENS), torch.Generator().manual_seed(0)
    return torch.randn(*shape, CAPTION_DIM, generator=generator), torch.ones(
        shape, dtype=torch.bool
    )


def with_usual_drafter(target: Target, config: DecodingConfig) -> Models:
    """The target, and on the meta device the drafter that a config needs.

    Raises:
        ValueError: that kind of drafter has no usual size.
    """
    found = add_drafter(Models(target, {}), config)
    if found is None:
        raise ValueError(
            f"drafter {config.drafter.kind!r} has no usual size; choose eagle or medusa"
        )
    return found


@torch.no_grad()
def randomise(module: Module, device: torch.device) -> Module:
    """Moves a module from the meta device to a real one: norms 1, biases 0, all else small random
    numbers, so that logits are finite; float16 holds them, as it holds stored weights. Rotation
    tables are the true ones: a transformer computes them on every device.
    """
    module.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(0)
    for name, tensor in module.state_dict().items():
        if name.endswith("bias"):
            tensor.zero_()
        elif "norm" in name:
            tensor.fill_(1)
        else:
            tensor.normal_(0, 0.02, generator=generator).copy_(tensor.half())
    return module
