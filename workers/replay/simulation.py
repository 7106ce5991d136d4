"""Policies with a `size_map` in replay: they adapt sizes along simulated images, and recorded steps
stand for passes.

What a pass emits depends on the size of its tree, and that on what passes before it emitted. So
images are simulated: a pass at a token is replaced by its image's recorded step nearest on the
grid, with the tree of the size that the policy asks for, and the number of accepted drafts is
sampled from the outcomes' probabilities.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from search_spaces.plugins import load_object
from search_spaces.trees import TreePolicy
from workers.data.grid import Grid
from workers.decoding import rng
from workers.decoding.adjacency import SizeMap
from workers.replay.outcomes import StepOutcomes
from workers.replay.recording import RecordedSteps
from workers.replay.subtrees import NestedTrees

_REPLICAS = 4  # simulated images of each recorded one
_FARTHER = 1e6  # added to squared distances, which are smaller


def simulate(
    steps: RecordedSteps,
    policy: TreePolicy,
    grid: Grid,
    outcomes_of: Callable[[TreePolicy], StepOutcomes],
) -> tuple[StepOutcomes, Tensor, Tensor]:
    """The outcomes of R simulated passes, the recorded step [R] that stands for each, and its token
    position [R].

    Args:
        steps: the recorded steps.
        policy: the policy with a `size_map`.
        grid: the token grid.
        outcomes_of: computes the outcomes of the recorded steps with the tree of one of the
            policy's sizes.
    """
    keys, nearest = nearest_steps(steps, grid)
    keys = keys.repeat(_REPLICAS)
    nearest = nearest.repeat(_REPLICAS, 1)
    replica = torch.arange(len(keys), device=keys.device) // (len(keys) // _REPLICAS)
    device = keys.device
    keys = rng.bits(keys, replica, rng.Purpose.RECORD, torch.ones_like(replica))
    widest = min(max(size.width for size in policy.sizes), steps.target.shape[2])
    sizes: SizeMap = load_object(policy.size_map)(policy, grid, widest)
    sizes.prepare(len(keys), grid.tokens, device)
    emitted = torch.ones_like(keys)
    known: dict[tuple[int, int], StepOutcomes] = {}
    parts: list[tuple[StepOutcomes, Tensor, Tensor]] = []
    while len(active := (emitted < grid.tokens).nonzero()[:, 0]):
        depth, width = sizes.next_size(keys, emitted.clamp(max=grid.tokens - 1))
        accepted = torch.zeros_like(emitted)
        for size in set(zip(depth[active].tolist(), width[active].tolist(), strict=True)):
            if size not in known:
                known[size] = outcomes_of(NestedTrees(((*size, policy.bounds.nodes),)))
            rows = active[(depth[active] == size[0]) & (width[active] == size[1])]
            step = nearest[rows, emitted[rows]]
            outcomes = known[size].select(step)
            number = rng.uniform(
                keys[rows], emitted[rows], rng.Purpose.ACCEPT, torch.zeros_like(rows)
            )
            accepted[rows] = (number[:, None] < outcomes.at_least[:, 1:]).sum(1)
            parts.append((outcomes, step, emitted[rows]))
        accepted = torch.minimum(accepted, (grid.tokens - 1 - emitted).clamp(min=0))
        sizes.record(emitted, depth, width, accepted)
        emitted[active] += accepted[active] + 1
    columns = [
        torch.cat(column) for column in zip(*((part[1], part[2]) for part in parts), strict=True)
    ]
    return StepOutcomes.concat([part[0] for part in parts]), columns[0], columns[1]


def nearest_steps(steps: RecordedSteps, grid: Grid) -> tuple[Tensor, Tensor]:
    """The keys [M] of the recorded images, and the index [M, tokens] of each one's step nearest to
    a token.
    """
    keys, image = torch.unique(steps.image, return_inverse=True)
    token = torch.arange(grid.tokens, device=keys.device)
    here = grid.cells(token[:, None])
    there = grid.cells(steps.position)
    distance = ((here.row - there.row) ** 2 + (here.col - there.col) ** 2).float()  # [tokens, S]
    # a step of the other grid stands only for tokens of a grid in which no step begins
    distance += _FARTHER * (here.in_preview != there.in_preview)
    others = image != torch.arange(len(keys), device=keys.device)[:, None]
    return keys, distance.masked_fill(others[:, None], torch.inf).argmin(2)
