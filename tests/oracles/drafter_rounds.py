"""Rounds for a drafter alone: three captions under guidance, ragged commits of random tokens and
features, and trees of three levels, compared with what a test says each node's logits must be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from workers.decoding.drafter import Drafter
from workers.decoding.state import Batch
from workers.models.cache import KVCache
from workers.models.target import Prompt, Target

CAPTIONS = ["abc", "defgh", "i"]  # prompts of three lengths, padded on the left
CFG = 3.0
COUNTS = ([3, 1, 2], [1, 4, 2])  # what the rounds before the last emitted, by caption
# each node's parent in the level above; may all rows share the list?
TREE: tuple[tuple[list[int], bool], ...] = (
    ([0, 0, 0], True),
    ([0, 2, 2, 1], True),
    ([3, 0], False),
)


@dataclass
class DrafterInputs:
    """What a drafter received. By transformer row (captions, then their unconditional streams): the
    prompt's own features [P, D] (of a drafter with taps, their hidden states instead), and the
    target's feature before every token; by caption, the tokens so far.
    """

    target: Target
    prompt: Prompt
    features: Tensor
    tokens: list[list[int]] = field(default_factory=list)
    before: list[list[Tensor]] = field(default_factory=list)

    def caption(self, row: int) -> int:
        return row % len(CAPTIONS)

    def prompt_slots(self, row: int) -> list[int]:
        """Positions of the prompt that exist."""
        return [t for t in range(self.target.prompt_len) if self.prompt.valid[row, t]]


Expected = Callable[[DrafterInputs, int, tuple[int, ...]], Tensor]
"""Logits [V] of a row's stream after its tokens so far and a path of drafts below them."""


def assert_rounds(
    target: Target, drafter: Drafter, expected: Expected, *, seed: int = 0, streams: int = 2
) -> None:
    """Every round's logits, at the root and at all nodes of three levels, are the expected ones to
    1e-5.
    """
    generator = torch.Generator().manual_seed(seed)
    size, codes = len(CAPTIONS), target.vocab_size
    width = target.transformer.config.dim * max(1, len(drafter.taps))
    batch = open_batch(target, streams)
    prompt = target.encode(CAPTIONS, guided=streams == 2)
    features = torch.randn(streams * size, target.prompt_len, width, generator=generator)
    first = torch.randint(codes, (size,), generator=generator)
    inputs = DrafterInputs(
        target, prompt, features, [[int(t)] for t in first], [[f[-1]] for f in features]
    )
    drafter.prepare(batch, len(TREE) + 1, sum(len(parents) for parents, _ in TREE))
    batch.admit(torch.arange(size), torch.arange(size), first, prompt.valid)
    drafter.admit(torch.arange(size), prompt, CAPTIONS, features, first)
    for counts in COUNTS:
        grow(batch, drafter, inputs, expected, generator)
        longest = max(COUNTS[0] + COUNTS[1])
        tokens = torch.randint(codes, (size, longest), generator=generator)
        features = torch.randn(streams * size, longest, width, generator=generator)
        emitted = torch.tensor(counts)
        # before the batch moves on, as the engine does
        drafter.commit(batch, tokens, features, emitted)
        batch.commit(tokens, emitted, tokens[torch.arange(size), emitted - 1])
        batch.max_emitted = int(batch.emitted.max())
        for row in range(streams * size):
            inputs.before[row] += features[row, : counts[inputs.caption(row)]]
        for caption, count in enumerate(counts):
            inputs.tokens[caption] += tokens[caption, :count].tolist()
    grow(batch, drafter, inputs, expected, generator)


def open_batch(target: Target, streams: int) -> Batch:
    """A batch whose target is never run."""
    return Batch(
        len(CAPTIONS),
        cfg=CFG if streams == 2 else 1.0,
        prompt_len=target.prompt_len,
        image_len=target.grid.tokens,
        reach=16,
        # without layers
        cache=KVCache(
            0, streams * len(CAPTIONS), target.prompt_len + target.grid.tokens + 16, 1, 1
        ),
    )


def grow(
    batch: Batch,
    drafter: Drafter,
    inputs: DrafterInputs,
    expected: Expected,
    generator: torch.Generator,
) -> None:
    """One round's tree, every node of it compared."""
    compare(drafter.root_logits(batch)[:, None], inputs, [[()]] * batch.size, expected)
    paths: list[list[tuple[int, ...]]] = [[()] for _ in range(batch.size)]
    for level, (parents, shared) in enumerate(TREE):
        above = torch.tensor([parents]).repeat(1 if shared else batch.size, 1)
        if not shared:  # every row its own parents
            above = torch.randint(len(paths[0]), above.shape, generator=generator)
        tokens = torch.randint(
            inputs.target.vocab_size, (batch.size, len(parents)), generator=generator
        )
        logits = drafter.expand(batch, tokens, above if level else None)
        paths = [
            [
                (*paths[b][p], t)
                for p, t in zip(above[b % len(above)].tolist(), tokens[b].tolist(), strict=True)
            ]
            for b in range(batch.size)
        ]
        compare(logits, inputs, paths, expected)


def compare(
    logits: Tensor, inputs: DrafterInputs, paths: list[list[tuple[int, ...]]], expected: Expected
) -> None:
    for caption, nodes in enumerate(logits):
        for node, path in zip(nodes, paths[caption], strict=True):
            guided = expected(inputs, caption, path)
            if len(inputs.before) > len(CAPTIONS):
                unconditional = expected(inputs, caption + len(CAPTIONS), path)
                is_drafted = guided > -torch.inf
                guided = torch.where(
                    is_drafted, unconditional + CFG * (guided - unconditional), guided
                )
            torch.testing.assert_close(node.double(), guided, atol=2e-5, rtol=1e-5)
