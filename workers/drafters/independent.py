"""A small AR model with the target's codebook as the drafter (Leviathan et al. 2023, Chen et al.
2023).
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from torch import Tensor, nn

from workers.decoding.drafter import CachedDrafter
from workers.models.families.scenes import build_ar_model
from workers.models.own_files import read_module
from workers.models.target import Conditioner, Prompt, Target
from workers.models.transformer import Body


class IndependentDrafter(CachedDrafter):
    """Reads captions through its own conditioner; shares only the codebook and the grid with the
    target.
    """

    kind = "independent"
    capturable = True

    def __init__(self, target: Target, transformer: Body, conditioner: nn.Module) -> None:
        super().__init__(target, transformer, base=target.prompt_len)
        self.check_size("vocab_size", transformer.config.vocab_size, target.vocab_size)
        self.conditioner = conditioner

    @classmethod
    def load(cls, path: Path, target: Target) -> IndependentDrafter:
        model = read_module(path, "an AR model", build_ar_model)[0]
        return cls(target, model.transformer, model.conditioner)

    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        assert self.decoder.embed is not None
        out: Tensor = self.decoder.embed(tokens)
        return out

    @property
    def head(self) -> nn.Module:
        assert self.decoder.head is not None
        return self.decoder.head

    def prompt_inputs(
        self, prompt: Prompt, captions: list[str], features: Tensor
    ) -> tuple[Tensor, Tensor]:
        conditioner = cast("Conditioner", self.conditioner)
        own = conditioner(captions)
        if features.shape[0] > len(captions):
            own = own + conditioner.null(own)
        return own.embeds, own.valid
