"""A small AR model with the target's codebook as the drafter (Leviathan et al. 2023, Chen et al. 2023)."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from workers.decoding.drafter import CachedDrafter
from workers.models.target import Conditioner, Prompt, Target
from workers.models.transformer import Body


class IndependentDrafter(CachedDrafter):
    """Reads captions through a conditioner of its own; knows nothing of the target but its codebook and grid."""

    kind = "independent"

    def __init__(self, target: Target, transformer: Body, conditioner: nn.Module) -> None:
        super().__init__(target, transformer, base=target.prompt_len)
        self.agree("vocab_size", transformer.config.vocab_size, target.vocab_size)
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
