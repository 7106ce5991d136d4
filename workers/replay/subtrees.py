"""One recording for many trees: the tree to record, and each policy's own tree inside it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from search_spaces.params import ConfigError
from search_spaces.trees import Adjacency, Chain, Dynamic, Static, TreePolicy, static_tree
from workers.replay.recording import RecordedSteps

# a dynamic tree that contains all narrower and shallower ones has many nodes that are hardly in any of them
_RECORDED_SHARE, _MAX_RECORDED_NODES = 4, 256


def union_policy(policies: Sequence[TreePolicy]) -> TreePolicy:
    """A policy whose trees contain those of all `policies`.

    Raises:
        ConfigError: no recording serves them all, or one of them has no fixed place in a larger tree.
    """
    fixed = [policy for policy in policies if isinstance(policy, Chain | Static)]
    if len(fixed) == len(policies) and len({policy.children for policy in fixed}) == 1:
        if all(isinstance(policy, Chain) for policy in fixed):
            return max(fixed, key=lambda policy: policy.bounds.depth)
        paths = {path for policy in fixed for path in static_tree(policy).paths}
        return Static(paths=tuple(paths), children=fixed[0].children)
    for kind in (Dynamic, Adjacency):
        if all(isinstance(policy, kind) for policy in policies):
            nodes = max(policy.bounds.nodes for policy in policies)
            widest = max(policy.widest if isinstance(policy, Adjacency) else policy.bounds.width for policy in policies)
            depth = max(policy.bounds.depth for policy in policies)
            return Dynamic(depth, widest, min(_RECORDED_SHARE * nodes, _MAX_RECORDED_NODES))
    kinds = ", ".join(sorted({policy.kind for policy in policies}))
    problem = (
        f"replay cannot describe {kinds} by one recording; it can for chain and static, dynamic or adjacency trees"
    )
    raise ConfigError(("tree", "policy"), problem)


def contains(recorded: TreePolicy, policy: TreePolicy) -> bool:
    """Whether the recorded policy's trees contain (most of) the policy's."""
    union = union_policy([policy])
    if isinstance(union, Dynamic) and isinstance(recorded, Dynamic):
        return union.depth <= recorded.depth and union.width <= recorded.width and union.nodes <= recorded.nodes
    if isinstance(union, Chain | Static) and isinstance(recorded, Chain | Static):
        return union.children == recorded.children and {*static_tree(union).paths} <= {*static_tree(recorded).paths}
    return False


def subtree(steps: RecordedSteps, recorded: TreePolicy, policy: TreePolicy) -> tuple[Tensor, Tensor]:
    """The nodes [S, N] of the policy's own trees in recorded ones, and their drafted levels [S].

    A dynamic tree's nodes are those that its policy would choose among the recorded ones: of these it may lack some of
    the least likely.

    Raises:
        ConfigError: the recorded policy does not contain this one.
    """
    levels = torch.full_like(steps.levels, policy.bounds.depth)
    if isinstance(policy, Dynamic) and isinstance(recorded, Dynamic):
        if policy.depth <= recorded.depth and policy.width <= recorded.width:
            return _dynamic_nodes(steps, policy), levels
    elif isinstance(policy, Chain | Static) and isinstance(recorded, Chain | Static):
        paths, own = static_tree(recorded).paths, set(static_tree(policy).paths)
        if own <= set(paths) and policy.children == recorded.children:
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
        surest = _surest(steps.scores, level, policy.width)
        expanded = torch.where(level.gather(1, surest), surest + 1, no_slot)
    surest = _surest(steps.scores, candidates, policy.nodes)
    return torch.zeros_like(candidates).scatter_(1, surest, True) & candidates


def _surest(scores: Tensor, among: Tensor, count: int) -> Tensor:
    """The `count` nodes of the highest scores, the earlier one on a tie, those not `among` them last."""
    order = scores.masked_fill(~among, -torch.inf).sort(dim=1, descending=True, stable=True).indices
    return order[:, :count]
