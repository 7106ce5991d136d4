"""An AR model that reads captions by a coded conditioner (a target, or an independent drafter), and its loss.

The loss is cross-entropy. Some captions are replaced by the null prompt, which classifier-free guidance needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.models.families.conditioners import CodedConditioner, build_conditioner
from workers.models.families.scenes import SAMPLING
from workers.models.target import Target
from workers.models.transformer import Transformer, TransformerConfig
from workers.training.examples import Examples
from workers.training.loop import LossFunction
from workers.training.process_group import ProcessGroup

Forward = Callable[[Transformer, Tensor, Tensor], Tensor]

_CAPTION_DROPOUT = 0.1  # fraction of examples with the null prompt (Ho & Salimans 2022)
_DRAFTER = TransformerConfig(
    dim=128, n_layers=2, n_heads=4, head_dim=32, ffn_dim=352, vocab_size=1, rope="grid", prompt_rope="identity"
)


class ARModel(nn.Module):
    """Transformer and conditioner: the trained part of a target, or an independent drafter."""

    def __init__(self, transformer: Transformer, conditioner: CodedConditioner) -> None:
        super().__init__()
        assert transformer.embed is not None
        assert transformer.head is not None
        assert transformer.config.prompt_len == conditioner.prompt_len
        self.transformer, self.conditioner = transformer, conditioner

    @property
    def embed(self) -> nn.Embedding:
        assert self.transformer.embed is not None
        return self.transformer.embed

    @property
    def head(self) -> nn.Linear:
        assert self.transformer.head is not None
        return self.transformer.head

    def settings(self) -> dict[str, Any]:
        """The config in its file's header, from which `build_ar_model` makes it again."""
        return {"transformer": asdict(self.transformer.config), "conditioner": self.conditioner.settings()}

    def as_target(self, name: str = "training") -> Target:
        """A target without a codec that shares these weights."""
        return Target(name, self.transformer, self.conditioner, None, SAMPLING)


def build_model(config: TransformerConfig, conditioner: Mapping[str, Any], seed: int) -> ARModel:
    """An untrained model: normal weights of scale 1/sqrt(fan in), output projections scaled down by the depth."""
    torch.manual_seed(seed)
    model = ARModel(Transformer(config), build_conditioner(conditioner, config.dim))
    for name, p in model.transformer.named_parameters():
        if p.dim() == 2:
            residual = name.endswith(("wo.weight", "w2.weight"))
            nn.init.normal_(p, std=p.shape[1] ** -0.5 * ((2 * config.n_layers) ** -0.5 if residual else 1.0))
    nn.init.normal_(model.embed.weight, std=1.0)
    nn.init.zeros_(model.head.weight)
    return model


def independent_conditioner(target: Target) -> CodedConditioner:
    """The target's conditioner, as an independent drafter has one.

    Raises:
        ValueError: the target reads captions by another network.
    """
    if not isinstance(target.conditioner, CodedConditioner):
        problem = "an independent drafter reads captions by classes or words, as targets of the family scenes do"
        raise ValueError(f"{target.name}: {problem}; train eagle or medusa")
    return target.conditioner


def new_independent(target: Target, seed: int) -> ARModel:
    """An untrained independent drafter with the target's codes, grid and captions, of the built-in drafter's size.

    Raises:
        ValueError: see `independent_conditioner`.
    """
    conditioner, grid = independent_conditioner(target), target.grid
    config = replace(
        _DRAFTER, prompt_len=conditioner.prompt_len, vocab_size=target.vocab_size, rows=grid.rows, cols=grid.cols
    )
    return build_model(config, conditioner.settings(), seed).to(target.device)


def ar_loss(model: ARModel, data: Examples, forward: Forward = Transformer.__call__) -> LossFunction:
    """Mean cross-entropy in nats per token; the null prompt replaces a caption with probability `_CAPTION_DROPOUT`.

    forward: the transformer's features of inputs at positions, without a cache.
    """

    def loss(indices: Tensor, generator: torch.Generator) -> Tensor:
        share = ProcessGroup.current().share(len(indices))
        captions, tokens = data.pick(indices[share], model.head.weight.device)
        codes = model.conditioner.codes(captions).to(tokens.device)
        dropped = (torch.rand(len(indices), generator=generator) < _CAPTION_DROPOUT)[share].to(tokens.device)
        prompt = torch.where(dropped[:, None, None], model.conditioner.nothing, model.conditioner.embed(codes))
        x = torch.cat([prompt, model.embed(tokens[:, :-1])], dim=1)
        hidden = forward(model.transformer, x, torch.arange(x.shape[1], device=x.device))
        logits = model.head(hidden[:, prompt.shape[1] - 1 :])
        return F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())

    return loss
