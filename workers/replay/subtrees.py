"""One recording for many trees: the tree to record, and each policy's own tree inside it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from search_spaces.params import ConfigError
from search_spaces.trees import Static, TreePolicy, TreeSize
from workers.replay.nested_trees import NestedTrees, surest
from workers.replay.recording import RecordedSteps


def union_policy(policies: Sequence[TreePolicy]) -> TreePolicy:
    """A policy whose trees contain those of all `policies`.

    Raises:
        ConfigError: no recording serves them all, or one of them has no fixed place in a larger tree.
    """
    fixed = {policy: policy.fixed for policy in policies if policy.fixed is not None}
    if len(fixed) == len(set(policies)) and len({shape.sampled for shape in fixed.values()}) == 1:
        paths = {path for shape in fixed.values() for path in shape.tree.paths}
        largest, shape = max(fixed.items(), key=lambda entry: len(entry[1].tree.paths))
        if len(paths) == len(shape.tree.paths) and largest.implementation == Static.implementation:
            return largest
        return Static(paths=tuple(paths), children="sampled" if shape.sampled else "top")
    kinds = sorted({policy.kind for policy in policies})
    if len(kinds) == 1 and all(policy.sizes and bool(policy.size_map) == policy.adapts_to_rule for policy in policies):
        return NestedTrees.of(policies)
    problem = (
        f"replay cannot describe {', '.join(kinds)} by one recording; it can for fixed trees, and for a policy that "
        "declares its trees' sizes"
    )
    raise ConfigError(("tree", "policy"), problem)


def subtree(steps: RecordedSteps, recorded: TreePolicy, policy: TreePolicy) -> tuple[Tensor, Tensor]:
    """The nodes [S, N] of the policy's own trees in recorded ones, and their drafted levels [S].

    Raises:
        ConfigError: the recorded policy does not contain this one.
    """
    levels = torch.full_like(steps.levels, policy.bounds.depth)
    if len(policy.sizes) == 1 and isinstance(recorded, NestedTrees):
        if recorded.contains(policy.sizes[0]):
            return _dynamic_nodes(steps, policy.sizes[0]), levels
    elif policy.fixed is not None and recorded.fixed is not None:
        paths, own = recorded.fixed.tree.paths, set(policy.fixed.tree.paths)
        if own <= set(paths) and policy.fixed.sampled == recorded.fixed.sampled:
            nodes = torch.tensor([path in own for path in paths], device=levels.device)
            return nodes.expand(len(steps), -1), levels
    raise ConfigError(("tree",), f"the recorded {recorded.kind} tree does not contain {policy}; record a larger one")


def _dynamic_nodes(steps: RecordedSteps, size: TreeSize) -> Tensor:
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
    for _ in range(size.depth):
        children = children_of[row, expanded][..., : size.width].flatten(1)
        level = drafted.new_zeros(count, nodes + 1)  # the last column takes what is no node
        level = level.scatter(1, torch.where(children < 0, nodes, children), True)[:, :nodes] & drafted
        candidates |= level
        best = surest(steps.scores, level, size.width)
        order = (~best).int().sort(dim=1, stable=True).indices[:, : size.width]
        expanded = torch.where(best.gather(1, order), order + 1, no_slot)
    return surest(steps.scores, candidates, size.nodes)
