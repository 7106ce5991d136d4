"""FlashAR's vertical branch as a part of a target: with it, a pass samples one diagonal of the
image (see `workers.models.vertical` and `workers.decoding.diagonals`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from search_spaces.drafters import DrafterChoice, Vertical
from workers.decoding.drafter import TrainedPart
from workers.models.own_files import read_module
from workers.models.target import Target
from workers.models.transformer import Transformer
from workers.models.vertical import (
    FusedHead,
    VerticalBody,
    VerticalBranch,
    adapted_copy,
    adapted_layers,
    build_vertical,
)
from workers.models.weights import skip_init

RANK = 8  # of the adapters, as in FlashAR's code


class VerticalHead(TrainedPart):
    """The vertical branch, and the target's transformer with the changes that were trained with
    it. The target itself stays as it is.
    """

    kind = "vertical"
    capturable = True

    def __init__(self, target: Target, branch: VerticalBranch) -> None:
        super().__init__()
        config = target.transformer.config
        own = branch.decoder.config
        for name in ("dim", "prompt_len", "rows", "cols", "kv_heads", "channels"):
            self.check_size(name, getattr(own, name), getattr(config, name))
        self.check_size("vocab_size", branch.head.out_features, target.vocab_size)
        adapted = branch.settings()["adapted"]
        if adapted:
            shapes = [
                list(layer.weight.shape) for layer in adapted_layers(target.transformer).values()
            ]
            if adapted != shapes:
                raise ValueError(
                    f"{self.kind} drafter: it changes {len(adapted)} layers of other sizes than "
                    f"the target's {len(shapes)}; it was made for another target"
                )
        self.start = branch.start
        self.body = adapted_copy(target.transformer, branch.adapters)
        self.branch = branch.decoder
        self.below = branch.head
        self.gate = branch.gate

    @classmethod
    def load(cls, path: Path, target: Target) -> VerticalHead:
        return cls(target, read_module(path, "a vertical head", build_vertical)[0])

    @classmethod
    def usual(cls, target: Target, levels: int) -> tuple[VerticalHead, str]:
        branch = skip_init(lambda: untrained_branch(target)).to("meta")
        head = cls(target, branch).to(dtype=target.dtype).eval().requires_grad_(False)
        return head, "the vertical head is one further block, and a changed copy of the target"

    def target_for(self, choice: DrafterChoice, target: Target) -> Target:
        assert isinstance(choice, Vertical)
        head = FusedHead(target.head, self.below, self.gate, choice.gate)
        body = VerticalBody(self.body, self.branch, self.start, head)
        fused = Target(
            target.name,
            body,
            target.conditioner,
            target.codec,
            target.sampling,
            row_end=target.row_end,
        )
        fused.grid = target.grid
        return fused


def untrained_branch(target: Target, blocks: int = 1, rank: int = RANK) -> VerticalBranch:
    """A random vertical branch of the target's shape: behind the target's last layer if its layers
    are this project's, else next to its last ones. Without a rank, nothing of the target is
    changed.
    """
    body = target.transformer
    layers = body.config.n_layers
    config = replace(body.config, n_layers=blocks, vocab_size=0, input_norm=True, final_norm=True)
    adapted = [list(layer.weight.shape) for layer in adapted_layers(body).values()] if rank else []
    start = layers if isinstance(body, Transformer) else layers - blocks
    return VerticalBranch(config, target.vocab_size, start=start, adapted=adapted, rank=rank)
