"""One recording for many trees: the tree to record, and each policy's own tree inside it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from search_spaces.params import ConfigError
from search_spaces.trees import Adjacency, Chain, Dynamic, Static, TreePolicy
from workers.replay.nested_trees import NestedTrees, surest
from workers.replay.recording import RecordedSteps


def union_policy(policies: Sequence[TreePolicy]) -> TreePolicy:
    """A policy whose trees contain those of all `policies`.

    Raises:
        ConfigError: no recording serves them all, or one of them has no fixed place in a larger tree.
    """
    fixed = [policy.fixed for policy in policies if policy.fixed is not None]
    if len(fixed) == len(policies) and len({shape.sampled for shape in fixed}) == 1:
        if all(isinstance(policy, Chain) for policy in policies):
            return max(policies, key=lambda policy: policy.bounds.depth)
        paths = {path for shape in fixed for path in shape.tree.paths}
        return Static(paths=tuple(paths), children="sampled" if fixed[0].sampled else "top")
    for kind in (Dynamic, Adjacency):
        sized = [policy for policy in policies if isinstance(policy, kind)]
        if len(sized) == len(policies):
            return NestedTrees.of(sized)
    kinds = ", ".join(sorted({policy.kind for policy in policies}))
    problem = f"replay cannot describe {kinds} by one recording; it can for fixed, dynamic or adjacency trees"
    raise ConfigError(("tree", "policy"), problem)


def subtree(steps: RecordedSteps, recorded: TreePolicy, policy: TreePolicy) -> tuple[Tensor, Tensor]:
    """The nodes [S, N] of the policy's own trees in recorded ones, and their drafted levels [S].

    Raises:
        ConfigError: the recorded policy does not contain this one.
    """
    levels = torch.full_like(steps.levels, policy.bounds.depth)
    if isinstance(policy, Dynamic) and isinstance(recorded, NestedTrees):
        if recorded.contains(policy):
            return _dynamic_nodes(steps, policy), levels
    elif policy.fixed is not None and recorded.fixed is not None:
        paths, own = recorded.fixed.tree.paths, set(policy.fixed.tree.paths)
        if own <= set(paths) and policy.fixed.sampled == recorded.fixed.sampled:
            nodes = torch.tensor([path in own for path in paths], device=levels.device)
            return nodes.expand(len(steps), -1), levels
    raise ConfigError(("tree",), f"the recorded {recorded.kind} tree does not contain {policy}; record a larger one")


def _dynamic_nodes(steps: RecordedSteps, policy: Dynamic) -> Tensor:
    """EAGLE-2's two choices: the `width` surest nodes of a level are expanded, and the `nodes` surest of all are
    kept."""
    assert steps.scores is not None, "a dynamic tree is recorded with its scores"
    count, nodes = steps.tokens.shape
    row, drafted = torch.arange(count, device=steps.tokens.device)[:, None], steps.depth > 0
    no_slot = nodes + 1
    children_of = steps.children.new_full((count, no_slot + 1, steps.children.shape[2]), -1)  # by slot
    slots = torch.where((steps.children >= 0).any(2), steps.inner, no_slot)  # smaller trees are padded
    children_of[row, slots] = steps.children
    candidates, expanded = torch.zeros_like(drafted), torch.zeros_like(row).expand(count, 1)
    for _ in range(policy.depth):
        children = children_of[row, expanded][..., : policy.width].flatten(1)
        level = drafted.new_zeros(count, nodes + 1)  # the last column takes what is no node
        level = level.scatter(1, torch.where(children < 0, nodes, children), True)[:, :nodes] & drafted
        candidates |= level
        best = surest(steps.scores, level, policy.width)
        order = (~best).int().sort(dim=1, stable=True).indices[:, : policy.width]
        expanded = torch.where(best.gather(1, order), order + 1, no_slot)
    return surest(steps.scores, candidates, policy.nodes)
