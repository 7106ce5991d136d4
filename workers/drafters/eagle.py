"""EAGLE: one decoder layer that extrapolates the target's features (Li et al. 2024, EAGLE-1; trees of EAGLE-2 use it
unchanged).

Slot t takes the embedding of token t+1 and the target's feature of token t (after the final norm) and predicts the
feature of token t+1; the target's own head turns that into the law of token t+2.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from workers.decoding.drafter import CachedDrafter
from workers.models.target import Prompt, Target
from workers.models.transformer import Transformer, TransformerConfig


class EagleLayer(nn.Module):
    """h = W [embedding ; feature] + b, then one transformer layer; no norm after it (features are normed already).

    Published drafters carry a token embedding of their own, of `codes` rows; 0: the target's serves.
    """

    def __init__(self, config: TransformerConfig, *, bias: bool = True, codes: int = 0) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.dim, config.dim, bias=bias)
        self.decoder = Transformer(config)
        self.embed = nn.Embedding(codes, config.dim) if codes else None

    def fuse(self, embeddings: Tensor, features: Tensor) -> Tensor:
        """Layer inputs [R, S, D] of token embeddings [R, S, D] and the features [R, S, D] that precede them."""
        out: Tensor = self.fc(torch.cat([embeddings, features], dim=-1))
        return out

    def forward(self, embeddings: Tensor, features: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        """Predicted features [R, S, D]; `positions` [S] or [R, S] are those of the tokens in the target's rotation
        table.
        """
        out: Tensor = self.decoder(self.fuse(embeddings, features), positions, mask=mask)
        return out


class EagleDrafter(CachedDrafter):
    """The EAGLE layer as a drafter. Its prompt has prompt_len - 1 slots: token n of the image stands in slot
    prompt_len - 1 + n.

    filler: LlamaGen prompts have no token ids, so this code's embedding stands in for them; None: prompts are made of
    tokens, and each slot takes the next position's embedding. masked: the prompt's padding is hidden, as from the
    target; LANTERN's drafters for LlamaGen were trained without a mask and see it.
    """

    kind = "eagle"

    def __init__(self, target: Target, layer: EagleLayer, *, filler: int | None = 0, masked: bool = True) -> None:
        super().__init__(target, layer.decoder, base=target.prompt_len - 1)
        self.agree("dim", layer.decoder.config.dim, target.transformer.config.dim)
        self.layer = layer
        self.filler, self.masked = filler, masked

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [..., D] of image tokens [...]: the layer's own, or the target's."""
        out: Tensor = (self.target.embed if self.layer.embed is None else self.layer.embed)(tokens)
        return out

    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        return self.layer.fuse(self.embed(tokens), features)

    def logits(self, outputs: Tensor) -> Tensor:
        out: Tensor = self.target.head(outputs)
        return out

    def prompt_inputs(self, prompt: Prompt, names: list[str], features: Tensor) -> tuple[Tensor, Tensor]:
        if self.filler is None:
            following = prompt.embeds[:, 1:]
        else:
            code = torch.full((features.shape[0], self.base), self.filler, dtype=torch.int64, device=features.device)
            following = self.embed(code)
        valid = prompt.valid[:, :-1]
        seen = valid if self.masked else torch.ones_like(valid)
        return self.layer.fuse(following, features[:, :-1]), seen

    def prompt_positions(self, order: Tensor) -> Tensor:
        return order + 1
