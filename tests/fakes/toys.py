"""Tiny random models that run the real code paths: a target, and one drafter of every kind for
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from search_spaces.trial import DecodingConfig, Sampling
from workers.decoding.drafter import TrainedPart
from workers.drafters.eagle import EagleDrafter, EagleLayer
from workers.drafters.eagle3 import Eagle3Drafter, Eagle3Layer, default_taps
from workers.drafters.independent import IndependentDrafter
from workers.drafters.medusa import MedusaDrafter, MedusaHeads
from workers.drafters.vertical import VerticalHead, untrained_branch
from workers.models.target import Prompt, Target
from workers.models.transformer import Transformer, TransformerConfig
from workers.models.vertical import VerticalBranch


class ToyConditioner(nn.Module):
    """A random prompt per caption; captions shorter than the prompt are padded on the left, as
    LlamaGen's are.
    """

    def __init__(self, prompt_len: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Embedding(64, dim)
        self.uncond = nn.Parameter(torch.randn(prompt_len, dim))
        self.prompt_len = prompt_len

    def forward(self, captions: Sequence[str]) -> Prompt:
        ids = torch.zeros(len(captions), self.prompt_len, dtype=torch.int64)
        valid = torch.zeros(len(captions), self.prompt_len, dtype=torch.bool)
        for row, caption in enumerate(captions):
            letters = [ord(c) % 64 for c in caption][-self.prompt_len :]
            ids[row, self.prompt_len - len(letters) :] = torch.tensor(letters)
            valid[row, self.prompt_len - len(letters) :] = True
        ids, valid = ids.to(self.uncond.device), valid.to(self.uncond.device)
        return Prompt(self.table(ids) * valid[..., None], valid)

    def null(self, prompt: Prompt) -> Prompt:
        return Prompt(self.uncond.expand_as(prompt.embeds), prompt.valid)


class ToyCodec(nn.Module):
    codebook: Tensor

    def __init__(self, codebook: Tensor) -> None:
        super().__init__()
        self.register_buffer("codebook", codebook)

    def decode_ids(self, ids: Tensor) -> Tensor:
        return self.codebook[ids][..., :3].permute(0, 3, 1, 2)


BASE = TransformerConfig(
    dim=32,
    n_layers=2,
    n_heads=2,
    ffn_dim=48,
    vocab_size=24,
    prompt_len=5,
    rows=4,
    cols=4,
    prompt_rope="identity",
)
#: The same with a fixed token after every row, as in Lumina-mGPT.
ROW_ENDS = replace(BASE, rope="line", row_ends=True)


def toy_target(
    seed: int = 0,
    *,
    temper: float = 3.0,
    config: TransformerConfig = BASE,
    sampling: Sampling | None = None,
) -> Target:
    """A random target. `temper` scales the head: larger is more peaked."""
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(seed)
        transformer = Transformer(config)
        assert transformer.head is not None
        transformer.head.weight.data.mul_(temper)
        codebook = torch.nn.functional.normalize(torch.randn(config.vocab_size, 4), dim=1)
        conditioner = ToyConditioner(config.prompt_len, config.dim)
        row_end = torch.randn(config.dim) if config.row_ends else None
        target = Target(
            "toy",
            transformer,
            conditioner,
            ToyCodec(codebook),
            sampling or Sampling(cfg=2.0),
            row_end=row_end,
        )
    return target.eval().requires_grad_(False)


def toy_drafter(kind: str, target: Target, seed: int = 1, heads: int = 6) -> TrainedPart | None:
    """A random drafter of a kind; None for kinds that need no weights."""
    config = target.transformer.config
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(seed)
        if kind == "eagle":
            layer = replace(config, n_layers=1, vocab_size=0, input_norm=False, final_norm=False)
            return EagleDrafter(target, EagleLayer(layer)).eval().requires_grad_(False)
        if kind == "eagle3":
            return Eagle3Drafter(target, toy_eagle3(config)).eval().requires_grad_(False)
        if kind == "medusa":
            made = MedusaHeads(config.dim, config.vocab_size, heads, shared_head=False)
            for parameter in made.residuals.parameters():
                nn.init.normal_(parameter, std=0.1)
            return MedusaDrafter(target, made).eval().requires_grad_(False)
        if kind == "independent":
            small = replace(config, dim=16, n_layers=1, n_heads=1, ffn_dim=24)
            transformer = Transformer(small)
            return (
                IndependentDrafter(target, transformer, ToyConditioner(small.prompt_len, small.dim))
                .eval()
                .requires_grad_(False)
            )
        if kind == "vertical":
            return VerticalHead(target, toy_branch(target)).eval().requires_grad_(False)
    return None


def toy_branch(target: Target, rank: int = 2) -> VerticalBranch:
    """A random vertical branch, whose gate and adapters do what they like."""
    branch = untrained_branch(target, rank=rank)
    branch.head.weight.data.mul_(3)
    nn.init.normal_(branch.gate.out.weight)
    nn.init.normal_(branch.gate.scalar)
    for name, parameter in branch.adapters.named_parameters():
        if name.endswith("up"):
            nn.init.normal_(parameter, std=0.2)
    return branch


def toy_eagle3(config: TransformerConfig) -> Eagle3Layer:
    """A random layer for targets of a config. It drafts two of three codes."""
    ids = torch.arange(config.vocab_size)
    ids = ids[ids % 3 != 1]
    layer = Eagle3Layer(
        replace(config, n_layers=1, vocab_size=0, qk_norm=False, final_norm=False),
        taps=default_taps(config.n_layers), vocab_size=config.vocab_size, draft_vocab=len(ids),
    )  # fmt: skip
    layer.ids = ids
    for norm in (layer.norm, layer.decoder.hidden_norm, layer.decoder.block.attention_norm):
        nn.init.normal_(norm.weight, 1.0, 0.3)  # type: ignore[arg-type]
    nn.init.normal_(layer.head.weight, std=0.5)
    return layer


def code_path(config: DecodingConfig) -> frozenset[tuple[str, object]]:
    """What configs that run the same code share: all but their numbers, the tree's name and the
    neighbours' order.
    """
    words: dict[str, object] = {
        key: value for key, value in config.flat().items() if isinstance(value, str)
    }
    same = {"tree.name": "", "acceptance.proximity": "", "exact": not config.acceptance.is_relaxed}
    return frozenset((words | same).items())
