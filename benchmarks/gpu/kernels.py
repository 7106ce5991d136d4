"""Triton's kernels against the code that defines them: outcomes, time, block sizes, compilation.

Trees and distributions are random. A row's outcome may differ where rounding decides, about once in
a million tests.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.functional import pad

from benchmarks.gpu.clock import seconds_of
from benchmarks.gpu.record import Case, Row, Setup
from search_spaces.acceptance import AcceptanceRule
from search_spaces.modulations import NO_MODULATION
from search_spaces.neighbourhoods import Additive, NeighbourTables
from search_spaces.presets import CATALOGUE
from search_spaces.schedules import Constant
from search_spaces.static_trees import NAMED_TREES
from search_spaces.trial import Sampling
from workers.data.grid import Grid
from workers.decoding.accept import Acceptor
from workers.decoding.kernels import FusedRule, accept_tree, random_bits
from workers.decoding.rng import CounterRNG, Purpose, bits
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree, fixed_shape, shape_from_parents

K = 100  # neighbours of the presets' rules, and the columns of their table
TREE = NAMED_TREES["lanternpp_58"]
LEVELS, WIDTH = 5, 10  # of trees whose nodes are chosen
BLOCKS, WARPS = (1024, 2048, 4096, 16384), (4, 8, 16, 32)
SEEDS, TIMED = 4, ("exact, sampled", "lantern, chosen")


def rules() -> dict[str, AcceptanceRule]:
    """One rule for each program of the kernel: those of the presets that verify all drafts (VVS has
    LANTERN's), and those with a budget below 1.
    """
    found = {"exact": AcceptanceRule(), "lantern": CATALOGUE["lantern"].config.acceptance}
    presets = {name: preset.config.acceptance for name, preset in CATALOGUE.items()}
    found |= {name: rule for name, rule in presets.items() if not rule.verification.implementation}
    found |= {
        f"{name}, budget 0.6": replace(found[name], schedule=Constant(0.6))
        for name in ("exact", "lantern_optimal")
    }
    distinct = {
        (*(FusedRule.of(rule, sampled=sampled) for sampled in (False, True)), rule.schedule): name
        for name, rule in reversed(found.items())
    }
    return {name: found[name] for name in sorted(distinct.values())}


@dataclass(frozen=True)
class Inputs:
    """A pass's drafts and what decides on them."""

    acceptor: Acceptor
    tree: DraftTree
    logits: Tensor
    batch: Batch

    def launch(self) -> Callable[[], tuple[Tensor, ...]]:
        """A call of the kernel whose inputs are ready."""
        rule = FusedRule.of(self.acceptor.rule, sampled=self.tree.probs is not None)
        assert rule is not None
        tests, tree = self.acceptor._tests(self.tree, self.batch), self.tree
        proposals = (
            [] if tree.probs is None or tree.probs_index is None else [tree.probs, tree.probs_index]
        )
        nodes, neighbours = (
            [tree.shape.children, tests.tokens, tests.eligible],
            self.acceptor.tables.neighbours,
        )
        probs = self.logits.softmax(-1)
        chances = [tests.uniforms, tests.omegas]
        if self.acceptor.rule.modulation != NO_MODULATION:
            chances = [tests.uniforms, *self.acceptor._relaxation_of_slots(tree, tests, probs)]
        return partial(
            accept_tree,
            probs,
            nodes,
            chances,
            proposals,
            neighbours,
            *astuple(rule),
        )

    def plain(self) -> tuple[Tensor, ...]:
        """What defines it."""
        return self.acceptor._accept(
            self.tree, self.acceptor._tests(self.tree, self.batch), self.logits
        )


def inputs(
    rule: AcceptanceRule,
    vocabulary: int,
    rows: int,
    device: torch.device,
    *,
    sampled: bool,
    seed: int,
) -> Inputs:
    """Random inputs whose paths end at all depths."""
    generator = torch.Generator(device).manual_seed(seed)
    tree = (sampled_tree if sampled else chosen_tree)(vocabulary, rows, generator)
    slots, size = tree.shape.nodes + 1, (rows, tree.shape.nodes + 1, vocabulary)
    logits = 1.5 * torch.randn(size, generator=generator, device=device)
    parents = (tree.shape.parents + 1).expand(rows, -1)
    row = torch.arange(rows, device=device)[:, None]
    logits[row, parents, tree.tokens] += 3.0 if sampled else math.log(vocabulary) - 0.5
    logits[0] *= 1e4  # all mass on one token: a rejection of it leaves nothing
    levels = tree.shape.max_depth
    emitted = torch.arange(rows, device=device) % 5 + 1
    batch = SimpleNamespace(
        emitted=emitted,
        remaining=levels + 5 - emitted,
        rng=CounterRNG(torch.arange(rows, device=device), levels + 5),
        token_positions=emitted[:, None] + torch.arange(slots, device=device),
    )
    acceptor = Acceptor(
        rule,
        NeighbourTables(neighbours(vocabulary, device)),
        Sampling(),
        levels,
        Grid(32, 32),
        device,
    )
    return Inputs(acceptor, tree, logits, cast(Batch, batch))


def sampled_tree(vocabulary: int, rows: int, generator: torch.Generator) -> DraftTree:
    """One shape for all rows; siblings sampled without replacement, some from fewer tokens than
    there are siblings.
    """
    device, nodes = generator.device, len(TREE.parents)
    shape = fixed_shape(TREE.parents, TREE.depth, device)
    logits = 2 * torch.randn(rows, nodes + 1, vocabulary, generator=generator, device=device)
    few = torch.rand(rows, nodes + 1, 1, generator=generator, device=device) < 0.2
    logits[..., 2:] = logits[..., 2:].masked_fill(few, -torch.inf)
    probs = logits.softmax(-1)
    noise = torch.empty_like(probs).exponential_(generator=generator)
    order = (probs / noise).topk(shape.width, dim=-1).indices
    parents, rank = shape.parents[0] + 1, torch.tensor(TREE.rank, device=device)
    tokens = order[:, parents, rank]
    exists = probs[:, parents].gather(2, tokens[..., None])[..., 0] > 0
    index = torch.arange(nodes + 1, device=device)[None]
    return DraftTree(
        tokens, exists, shape, torch.full((rows,), shape.max_depth, device=device), probs, index
    )


def chosen_tree(vocabulary: int, rows: int, generator: torch.Generator) -> DraftTree:
    """A shape for each row, with nodes that do not exist."""
    device, nodes = generator.device, len(TREE.parents)
    drawn = [
        random_shape(numbers)
        for numbers in torch.rand(rows, nodes, generator=generator, device=device).tolist()
    ]
    parent, level = (torch.tensor(part, device=device) for part in zip(*drawn, strict=True))
    exists = torch.rand(rows, nodes, generator=generator, device=device) < 0.9
    for node in range(nodes):
        exists[:, node] &= (parent[:, node] < 0) | exists.gather(
            1, parent[:, node, None].clamp(min=0)
        )[:, 0]
    shape = shape_from_parents(parent, level, exists, max_depth=LEVELS, width=WIDTH)
    tokens = torch.rand(rows, vocabulary, generator=generator, device=device).topk(nodes).indices
    return DraftTree(tokens, exists, shape, level.amax(1))


def random_shape(numbers: Sequence[float]) -> tuple[list[int], list[int]]:
    """Parents and levels of a tree within the limits of EAGLE-2's, from uniform numbers of its
    nodes.
    """
    parents, levels, children = list[int](), list[int](), Counter[int]()
    for number in numbers:
        free = [
            node for node in range(-1, len(parents))
            if children[node] < WIDTH and (node < 0 or levels[node] < LEVELS)
        ]  # fmt: skip
        parent = free[int(number * len(free))]
        children[parent] += 1
        parents.append(parent)
        levels.append(1 if parent < 0 else levels[parent] + 1)
    return parents, levels


@cache
def neighbours(vocabulary: int, device: torch.device) -> Tensor:
    """A table [V, K] as of a codebook: the token itself, then others."""
    offsets = (
        torch.randperm(vocabulary - 1, generator=torch.Generator().manual_seed(0))[: K - 1] + 1
    )
    table = (torch.arange(vocabulary)[:, None] + pad(offsets, (1, 0))) % vocabulary
    return table.int().to(device)


def agreement(setup: Setup, rule: AcceptanceRule, vocabulary: int, sampled: bool) -> Row:
    """Rows whose path, length or residual differ."""
    rows = 4 if setup.is_tiny else 32
    differing, error, accepted = 0, 0.0, 0
    for seed in range(1 if setup.is_tiny else SEEDS):
        case = inputs(rule, vocabulary, rows, setup.device, sampled=sampled, seed=seed)
        path, count, residual = case.plain()
        found_path, found_count, found = case.launch()()
        found = found / found.sum(1, keepdim=True)
        same = (found_count == count) & (found_path[:, : path.shape[1]] == path).all(1)
        differing += int((~same).sum())
        error = max(error, float((found - residual)[same].abs().max()) if bool(same.any()) else 0.0)
        accepted += int(count.sum())
    total = rows * (1 if setup.is_tiny else SEEDS)
    return {
        "rows": total,
        "differing": differing,
        "residual_error": error,
        "mean_accepted": accepted / total,
    }


def bits_agree(setup: Setup) -> Row:
    """Random bits of the kernel against those of a CPU, all of them, and their time."""
    rows, slots = (4, 128) if setup.is_tiny else (512, 16384)
    keys, places = torch.arange(rows)[:, None] * 0x9E3779B97F4A7C, torch.arange(rows)[:, None]
    parts = keys, places, torch.arange(slots)
    here = [part.to(setup.device) for part in parts]

    def fused() -> Tensor:
        found: Tensor = random_bits(here[0], here[1], int(Purpose.DRAFT), here[2])
        return found

    def plain() -> Tensor:
        with patch("workers.decoding.rng.is_available", return_value=False):
            return bits(here[0], here[1], Purpose.DRAFT, here[2])

    differing = int((fused().cpu() != bits(*parts[:2], Purpose.DRAFT, parts[2])).sum())
    timed = {f"{name}_{key}": value for name, work in (("kernel", fused), ("plain", plain))
             for key, value in seconds_of(work, setup).items()}  # fmt: skip
    return {"numbers": rows * slots, "differing": differing, **timed}


def times(setup: Setup, rule: AcceptanceRule, sampled: bool, vocabulary: int, batch: int) -> Row:
    """Seconds of the kernel alone and of the code that defines it."""
    case = inputs(rule, vocabulary, batch, setup.device, sampled=sampled, seed=0)
    work = {"kernel": case.launch(), "plain": case.plain}
    return {
        f"{name}_{key}": value
        for name in work
        for key, value in seconds_of(work[name], setup).items()
    }


def block_times(setup: Setup, rule: AcceptanceRule, sampled: bool, block: int, warps: int) -> Row:
    """Seconds of the kernel with another block size and number of warps, at V 16384."""
    found: Row = {}
    with (
        patch("workers.decoding.accept_kernel.BLOCK", block),
        patch("workers.decoding.accept_kernel.NUM_WARPS", warps),
    ):
        for batch in (1, 32):
            case = inputs(rule, 16384, batch, setup.device, sampled=sampled, seed=0)
            found |= {
                f"batch_{batch}_{key}": value
                for key, value in seconds_of(case.launch(), setup).items()
            }
    return found


def compilation(setup: Setup, cache_folder: Path) -> Row:
    """Seconds of the first call, and of one with another k; the programs that have been compiled by
    then.
    """
    found = {}
    for name, k in (("first", K), ("other_k", K // 2 + 1), ("again", K // 2 + 1)):
        launch = inputs(
            AcceptanceRule(Additive(k, 0.1)), 16384, 1, setup.device, sampled=False, seed=0
        ).launch()
        found[f"{name}_s"] = seconds_of(launch, setup, is_first=True)["eager_s"]
        found[f"{name}_programs"] = len(list(cache_folder.rglob("accept_path.cubin")))
    return found


def cases(setup: Setup) -> Iterator[Case]:
    """With a new cache of Triton's, so that compilation is measured."""
    vocabularies = (256,) if setup.is_tiny else (1024, 16384)
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, TRITON_CACHE_DIR=folder):
        if setup.is_cuda:
            yield "compilation", partial(compilation, setup, Path(folder))
        else:
            yield (
                "compilation",
                lambda: {"skipped": "no CUDA: Triton's interpreter compiles nothing"},
            )
        yield "random bits", partial(bits_agree, setup)
        fused = {
            f"{name}, {'sampled' if sampled else 'chosen'}": (rule, sampled)
            for name, rule in rules().items()
            for sampled in (False, True)
            if FusedRule.of(rule, sampled=sampled)
        }
        for name, (rule, sampled) in fused.items():
            for vocabulary in vocabularies:
                yield (
                    f"agreement: {name}, V {vocabulary}",
                    partial(agreement, setup, rule, vocabulary, sampled),
                )
        for name in TIMED:
            for vocabulary in vocabularies:
                for batch in (1,) if setup.is_tiny else (1, 8, 32):
                    work = partial(times, setup, *fused[name], vocabulary, batch)
                    yield f"time: {name}, V {vocabulary}, batch {batch}", work
        for name in TIMED if setup.is_cuda else ():
            for block in BLOCKS:
                for warps in WARPS:
                    if 1 <= block / (32 * warps) <= 32:  # entries of a thread
                        work = partial(block_times, setup, *fused[name], block, warps)
                        yield f"blocks: {name}, {block} entries, {warps} warps", work
