"""From a setting to the parts that carry it out: the one place where kinds of drafters and policies are told apart."""

from __future__ import annotations

from dataclasses import replace

import torch

from search_spaces.acceptance import NeighbourTables, neighbour_key
from search_spaces.trees import Adjacency, Chain, Dynamic, NoTree, Static, static_tree
from search_spaces.trial import DecodingConfig, Jacobi, NoDrafter, Sampling
from workers.decoding.adjacency import AdjacencyTree
from workers.decoding.draft import Drafting, DynamicTree, FixedTree
from workers.decoding.drafter import Drafter
from workers.decoding.jacobi import JacobiWindow
from workers.decoding.neighbours import neighbour_table
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree, fixed_shape
from workers.models.target import Target


class Plain(Drafting):
    """Vanilla AR: nothing is drafted; the target's pass has one query, the root."""

    max_levels = max_nodes = 0

    def __init__(self, device: torch.device) -> None:
        self.tree = DraftTree(
            tokens=torch.zeros(1, 0, dtype=torch.int64, device=device),
            exists=torch.ones(1, 0, dtype=torch.bool, device=device),
            shape=fixed_shape((), (), device),
            levels=torch.zeros(1, dtype=torch.int64, device=device),
        )

    def draft(self, batch: Batch) -> DraftTree:
        nothing = self.tree
        return replace(
            nothing,
            tokens=nothing.tokens.expand(batch.size, 0),
            exists=nothing.exists.expand(batch.size, 0),
            levels=nothing.levels.expand(batch.size),
        )


def resolve(config: DecodingConfig, target: Target, drafter: Drafter | None) -> tuple[DecodingConfig, Sampling]:
    """The setting with the target's sampling filled in, checked against target and drafter.

    Raises:
        ValueError: what does not fit, in words.
    """
    sampling = config.sampling or target.sampling
    config = config.with_sampling(sampling)
    config.check_model(
        target.vocab_size,
        image_tokens=target.grid.tokens,
        medusa_heads=drafter.max_levels if drafter else None,
    )
    drafts_itself = isinstance(config.drafter, (NoDrafter, Jacobi))
    if drafts_itself != (drafter is None):
        need = "no drafter" if drafts_itself else f"the {config.drafter.kind} drafter's weights"
        raise ValueError(
            f"drafter: this setting needs {need}, but {'none was' if drafter is None else 'one was'} given"
        )
    if drafter is not None and drafter.kind != config.drafter.kind:
        raise ValueError(
            f"drafter: this setting needs the {config.drafter.kind} drafter's weights, but {drafter.kind}'s were given"
        )
    return config, sampling


def build_drafting(config: DecodingConfig, sampling: Sampling, target: Target, drafter: Drafter | None) -> Drafting:
    """The drafting of a resolved setting."""
    policy, device = config.policy, target.device
    if isinstance(policy, NoTree):
        return Plain(device)
    if isinstance(config.drafter, Jacobi):
        assert isinstance(policy, Chain)
        return JacobiWindow(config.drafter, policy.length, target.vocab_size, sampling, device)
    assert drafter is not None
    if isinstance(policy, (Chain, Static)):
        return FixedTree(drafter, static_tree(policy), sampling, drawn=policy.children == "sampled", device=device)
    if isinstance(policy, Dynamic):
        return DynamicTree(drafter, sampling, depth=policy.depth, width=policy.width, nodes=policy.nodes)
    assert isinstance(policy, Adjacency)
    return AdjacencyTree(drafter, sampling, policy, target.grid, target.vocab_size)


def build_tables(config: DecodingConfig, target: Target) -> NeighbourTables:
    """What the acceptance rule looks up: the neighbour table, or the codebook itself for groups."""
    key = neighbour_key(config.acceptance)
    neighbours = neighbour_table(target.codebook, *key) if key else None
    codebook = target.codebook if config.acceptance.neighbourhood.reads_codebook else None
    return NeighbourTables(neighbours=neighbours, codebook=codebook)
