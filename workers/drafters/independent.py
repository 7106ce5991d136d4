"""A small AR model with the target's codebook as the drafter (Leviathan et al. 2023, Chen et al. 2023)."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from workers.drafters.base import CachedDrafter
from workers.models.target import Conditioner, Prompt, Target
from workers.models.transformer import Transformer


class IndependentDrafter(CachedDrafter):
    """Reads captions through a conditioner of its own; knows nothing of the target but its codebook and grid."""

    def __init__(self, target: Target, transformer: Transformer, conditioner: nn.Module) -> None:
        if transformer.config.vocab_size != target.vocab_size:
            raise ValueError(
                f"independent drafter: its codebook has {transformer.config.vocab_size} codes, the target's "
                f"{target.vocab_size}; both must draw from the same one"
            )
        if transformer.config.prompt_len != target.prompt_len:
            raise ValueError(
                f"independent drafter: its prompt has {transformer.config.prompt_len} positions, the target's "
                f"{target.prompt_len}; train it on the target's conditioning"
            )
        super().__init__(target, transformer, base=target.prompt_len)
        self.conditioner = conditioner

    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        assert self.decoder.embed is not None
        out: Tensor = self.decoder.embed(tokens)
        return out

    def logits(self, outputs: Tensor) -> Tensor:
        assert self.decoder.head is not None
        out: Tensor = self.decoder.head(outputs)
        return out

    def prompt_inputs(self, prompt: Prompt, names: list[str], features: Tensor) -> tuple[Tensor, Tensor]:
        conditioner = cast("Conditioner", self.conditioner)
        own = conditioner(names)
        if features.shape[0] > len(names):
            own = own + conditioner.null(own)
        return own.embeds, own.valid
