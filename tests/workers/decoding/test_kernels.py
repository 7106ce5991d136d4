"""The kernels, run by Triton's interpreter, against the code that defines them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import astuple, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.nn.functional import pad

from search_spaces.acceptance import AcceptanceRule
from search_spaces.neighbourhoods import Additive, Multiplicative, NeighbourTables
from search_spaces.rules.entropy import EntropyModulation
from search_spaces.rules.fuzzy import Fuzzy
from search_spaces.rules.grouped import Grouped
from search_spaces.rules.margin import MarginModulation
from search_spaces.rules.row import RowModulation
from search_spaces.rules.typical import Typical
from search_spaces.schedules import Constant, Exponential
from search_spaces.trial import Sampling
from tests.fakes.tape import without_shortcuts
from tests.workers.decoding.test_tree import random_parents
from workers.data.grid import Grid
from workers.decoding import kernels
from workers.decoding.accept import Acceptor
from workers.decoding.kernels import FusedRule, bits_by_numpy, random_bits
from workers.decoding.rng import CounterRNG, Purpose, bits, image_keys
from workers.decoding.state import Batch
from workers.decoding.tree import DraftTree, fixed_shape, shape_from_parents

CODES, NODES, ROWS, BLOCK, CHUNK = 24, 11, 8, 16, 4
GRID = Grid(4, 5)

RULES: dict[str, AcceptanceRule] = {
    "exact": AcceptanceRule(),
    "uniform": AcceptanceRule(schedule=Constant(1.6)),
    "under": AcceptanceRule(schedule=Constant(0.6)),
    "cool": AcceptanceRule(schedule=Exponential(1.1, 0.5)),
    "lantern": AcceptanceRule(Additive(9, 0.3)),
    "lantern of everything": AcceptanceRule(Additive(24, 1.0), Constant(0.5)),
    "lantern, optimal": AcceptanceRule(Additive(9, 0.3), resampling="optimal"),
    "lantern, optimal and under": AcceptanceRule(
        Additive(9, 0.3), Constant(0.6), resampling="optimal"
    ),
    "lantern jsd": AcceptanceRule(Additive(12, 0.1, "jsd")),
    "lantern++": AcceptanceRule(Multiplicative(10, 2.0)),
    "annealed lantern++": AcceptanceRule(Multiplicative(10, 2.0), Exponential(0.9, 0.5)),
    "cool, by entropy": AcceptanceRule(
        schedule=Exponential(2.0, 0.5), modulation=EntropyModulation(2.0, 2.0)
    ),
    "lantern, by margin": AcceptanceRule(Additive(9, 0.2), modulation=MarginModulation(-1.0)),
    "lantern jsd, by row": AcceptanceRule(Additive(12, 0.1, "jsd"), modulation=RowModulation()),
    "typical, by row": AcceptanceRule(Typical(0.2, 0.6), modulation=RowModulation(0.0, 4.0)),
    "fuzzy, by entropy": AcceptanceRule(Fuzzy(0.8), modulation=EntropyModulation(0.5, 2.0)),
    "typical": AcceptanceRule(Typical(0.3, 0.9)),
    "typical and under": AcceptanceRule(Typical(0.3, 0.9), Constant(0.6)),
    "fuzzy": AcceptanceRule(Fuzzy(0.8)),
    "fuzzy kl and under": AcceptanceRule(Fuzzy(2.0, "kl"), Constant(0.6)),
    "fuzzy reverse kl": AcceptanceRule(Fuzzy(2.0, "reverse_kl")),
    "fuzzy jsd": AcceptanceRule(Fuzzy(0.4, "jsd")),
}


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    """Smaller than the vocabulary."""
    with pytest.MonkeyPatch.context() as patch:
        for kernel in ("accept_kernel", "rng_kernel"):
            patch.setattr(f"workers.decoding.{kernel}.BLOCK", BLOCK)
        patch.setattr("workers.decoding.accept_kernel.CHUNK", CHUNK)
        yield


# parents and depths of a tree
WIDE = [-1, -1, -1, 0, 1, 1, 1, 2, 5, 5, 6], [1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3]


def sampled_tree(
    generator: torch.Generator, shape_of: tuple[list[int], list[int]] | None = None
) -> DraftTree:
    """One shape for all rows; children sampled without replacement, some from fewer tokens than
    there are children.
    """
    parents, depth = shape_of or random_parents(NODES, generator)
    shape = fixed_shape(parents, depth, torch.device("cpu"))
    logits = 2 * torch.randn(ROWS, NODES + 1, CODES, generator=generator)
    logits[..., 2:] = logits[..., 2:].masked_fill(
        torch.rand(ROWS, NODES + 1, 1, generator=generator) < 0.2, -torch.inf
    )
    probs = logits.softmax(-1)
    order = (probs / torch.empty_like(probs).exponential_(generator=generator)).argsort(
        -1, descending=True
    )
    rank = torch.tensor([parents[:node].count(parent) for node, parent in enumerate(parents)])
    slots = shape.parents[0] + 1
    tokens = order[:, slots, rank]
    exists = probs[:, slots].gather(2, tokens[..., None])[..., 0] > 0
    index = torch.arange(NODES + 1)[None]
    return DraftTree(tokens, exists, shape, torch.full((ROWS,), shape.max_depth), probs, index)


def chosen_tree(generator: torch.Generator) -> DraftTree:
    """A shape for each row, with nodes that do not exist."""
    drawn = [random_parents(NODES, generator) for _ in range(ROWS)]
    parents, depth = (torch.tensor(part) for part in zip(*drawn, strict=True))
    exists = torch.rand(ROWS, NODES, generator=generator) < 0.9
    for row in range(ROWS):
        for node, parent in enumerate(parents[row].tolist()):
            exists[row, node] &= parent < 0 or exists[row, parent]
    levels = int(depth.max())
    shape = shape_from_parents(parents, depth, exists, max_depth=levels, width=NODES)
    tokens = torch.stack([torch.randperm(CODES, generator=generator)[:NODES] for _ in range(ROWS)])
    return DraftTree(tokens, exists, shape, depth.amax(1))


def tables(generator: torch.Generator) -> NeighbourTables:
    order = torch.stack([torch.randperm(CODES, generator=generator) for _ in range(CODES)])
    own = order == torch.arange(CODES)[:, None]
    others = order[~own].view(CODES, -1)
    return NeighbourTables(torch.cat([torch.arange(CODES)[:, None], others], dim=1).int())


FUSED = [
    (name, sampled)
    for name in RULES
    for sampled in (True, False)
    if FusedRule.of(RULES[name], sampled=sampled)
]


@pytest.mark.parametrize(("name", "sampled"), FUSED)
def test_the_kernel_computes_what_the_loops_do(name: str, sampled: bool) -> None:
    """The same path, and residuals that agree to rounding."""
    rule = fused_rule(RULES[name], sampled=sampled)
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    tree, neighbours = (sampled_tree if sampled else chosen_tree)(generator), tables(generator)
    logits = 1.5 * torch.randn(ROWS, NODES + 1, CODES, generator=generator)
    slots = (tree.shape.parents + 1).expand(ROWS, -1)
    # so that paths end at all depths
    logits[torch.arange(ROWS)[:, None], slots, tree.tokens] += 4.0
    logits[0] *= 1e4  # all mass on one token: a rejection of it leaves nothing
    acceptor = Acceptor(
        RULES[name], neighbours, Sampling(), tree.shape.max_depth + 2, GRID, logits.device
    )
    tests = acceptor._tests(tree, batch_of(tree))
    path, num_accepted, residual = acceptor._accept(tree, tests, logits)
    fused_path, fused_num_accepted, fused_residual = acceptor._accept_at_once(
        rule, tree, tests, logits
    )
    assert len(set(num_accepted.tolist())) > 1
    assert fused_num_accepted.tolist() == num_accepted.tolist()
    assert torch.equal(fused_path[:, : path.shape[1]], path)
    assert (fused_path[:, path.shape[1] :] == path[:, -1:]).all()
    torch.testing.assert_close(
        fused_residual / fused_residual.sum(1, keepdim=True), residual, atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize(("name", "sampled"), FUSED)
@pytest.mark.parametrize("everywhere", [True, False])
def test_trees_with_holes_on_every_device(
    name: str, sampled: bool, everywhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child may be missing before one that exists, in every row or in some: the CPU's loop, which
    stops early, an accelerator's, which does not, and the kernel test the same children.
    """
    rule = fused_rule(RULES[name], sampled=sampled)
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    neighbours = tables(generator)
    tree = sampled_tree(generator, WIDE)
    if not sampled:
        tree.probs = tree.probs_index = None
    holes = torch.rand(1 if everywhere else ROWS, NODES, generator=generator) < 0.3
    holes[:, 0] = True
    for node, parent in enumerate(tree.shape.parents[0].tolist()):
        holes[:, node] |= holes[:, parent] & (parent >= 0)
    tree.exists = tree.exists & ~holes
    logits = 1.5 * torch.randn(ROWS, NODES + 1, CODES, generator=generator)
    slots = (tree.shape.parents + 1).expand(ROWS, -1)
    logits[torch.arange(ROWS)[:, None], slots, tree.tokens] += 4.0
    acceptor = Acceptor(
        RULES[name], neighbours, Sampling(), tree.shape.max_depth, GRID, logits.device
    )
    tests = acceptor._tests(tree, batch_of(tree))
    path, num_accepted, residual = acceptor._accept(tree, tests, logits)
    assert int(num_accepted.max()) > 0
    fused_path, *fused = acceptor._accept_at_once(rule, tree, tests, logits)
    without_shortcuts(monkeypatch)
    full_path, *full = acceptor._accept(tree, tests, logits)
    for other_path, (other_num_accepted, other_residual) in (
        (fused_path, fused),
        (full_path, full),
    ):
        assert other_num_accepted.tolist() == num_accepted.tolist()
        assert torch.equal(other_path[:, : path.shape[1]], path)
        normalised = other_residual / other_residual.sum(1, keepdim=True)
        torch.testing.assert_close(normalised, residual, atol=1e-6, rtol=1e-5)


def test_a_rejection_that_leaves_nothing_after_another_one() -> None:
    """All of the second child's residual is its neighbours', and the proposal's last token is the
    child itself. The exact rule's residual [r - p]_+ follows, with the proposal that the first
    rejection has put into a buffer.
    """
    rule, first, second = AcceptanceRule(Additive(4, 1.0), Constant(0.5)), 2, 5
    probs, proposal = torch.zeros(ROWS, 3, CODES), torch.zeros(ROWS, 3, CODES)
    probs[..., [second, 7, 8, 9]] = torch.tensor([0.625, 0.125, 0.125, 0.125])
    # after the first rejection r is 1/4 at four tokens, and p is 1 at the second
    proposal[..., [first, second]] = 0.5
    table = tables(torch.Generator().manual_seed(0)).neighbours
    assert table is not None
    table[first, :4], table[second, :4] = (
        torch.tensor([first, 10, 11, 12]),
        torch.tensor([second, 7, 8, 9]),
    )
    shape = fixed_shape([-1, -1], [1, 1], torch.device("cpu"))
    tokens = torch.tensor([0, first, second]).expand(ROWS, -1).contiguous()
    eligible = (tokens > 0).contiguous()
    tests = [torch.full((ROWS, 1, 2), 9.0), torch.full((ROWS, 2), 0.5)]  # 9 rejects
    _, num_accepted, residual = kernels.accept_tree(
        probs,
        [shape.children, tokens, eligible],
        tests,
        [proposal, torch.zeros(1, 3, dtype=torch.int64)],
        table,
        *astuple(fused_rule(rule, sampled=True)),
    )
    assert num_accepted.tolist() == [0] * ROWS
    expected = torch.zeros(ROWS, CODES)
    expected[:, 7:10] = 1 / 3
    torch.testing.assert_close(residual / residual.sum(1, keepdim=True), expected)


@pytest.mark.parametrize("k", [9, BLOCK + 4])
def test_any_layout_of_the_neighbour_table(k: int) -> None:
    """Columns of a wider table, int64, rows from elsewhere; more neighbours than a block has
    entries.
    """
    generator = torch.Generator().manual_seed(k)
    tree, table = chosen_tree(generator), tables(generator).neighbours
    assert table is not None
    logits = torch.randn(ROWS, NODES + 1, CODES, generator=generator)
    rule = AcceptanceRule(Additive(k, 0.4))
    layouts = [
        table[:, :k].contiguous(),
        table[:, :k],
        table.long(),
        table.repeat(1, 2).long()[:, :k],
    ]
    assert {layout.stride() for layout in layouts} == {(k, 1), (CODES, 1), (2 * CODES, 1)}
    results = []
    for layout in layouts:
        acceptor = Acceptor(
            rule, NeighbourTables(layout), Sampling(), tree.shape.max_depth, GRID, logits.device
        )
        tests = acceptor._tests(tree, batch_of(tree))
        results.append(
            acceptor._accept_at_once(fused_rule(rule, sampled=False), tree, tests, logits)
        )
    path, num_accepted, residual = acceptor._accept(tree, tests, logits)
    assert len(set(num_accepted.tolist())) > 1
    for fused_path, fused_num_accepted, fused_residual in results:
        assert fused_num_accepted.tolist() == num_accepted.tolist()
        assert torch.equal(fused_path[:, : path.shape[1]], path)
        torch.testing.assert_close(
            fused_residual / fused_residual.sum(1, keepdim=True), residual, atol=1e-6, rtol=1e-5
        )


def fused_rule(rule: AcceptanceRule, *, sampled: bool) -> FusedRule:
    fused = FusedRule.of(rule, sampled=sampled)
    assert fused is not None
    return fused


def batch_of(tree: DraftTree) -> Batch:
    """Rows at places in the image where some trees reach past its end."""
    emitted = torch.arange(ROWS) % 5 + 1
    batch = SimpleNamespace(
        emitted=emitted,
        remaining=8 - emitted,
        rng=CounterRNG(torch.arange(ROWS), 8),
        token_positions=emitted[:, None] + torch.arange(tree.shape.max_depth + 1),
    )
    return cast(Batch, batch)


@pytest.mark.parametrize("name", ["lantern", "cool", "typical", "fuzzy kl and under"])
def test_logits_that_are_not_numbers_reach_the_residual(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    tree, neighbours = sampled_tree(generator), tables(generator)
    logits = torch.randn(ROWS, NODES + 1, CODES, generator=generator)
    logits[2:4] = torch.nan
    acceptor = Acceptor(
        RULES[name], neighbours, Sampling(), tree.shape.max_depth, GRID, logits.device
    )
    rule = fused_rule(RULES[name], sampled=True)
    _, num_accepted, residual = acceptor._accept_at_once(
        rule, tree, acceptor._tests(tree, batch_of(tree)), logits
    )
    assert (
        residual.isnan().any(1).tolist()
        == residual.isnan().all(1).tolist()
        == [False] * 2 + [True] * 2 + [False] * 4
    )
    assert num_accepted[2:4].tolist() == [0, 0]


COMPILE = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from workers.decoding.rng_kernel import bits
from workers.decoding.accept_kernel import accept_path

POINTERS = dict(
    fp32="probs proposals uniforms omegas factors residuals remaining result", i32="neighbours", u8="eligible",
    i64="proposal_rows children tokens path num_accepted keys positions",
)
TYPES = {name: f"*{kind}" for kind, names in POINTERS.items() for name in names.split()}


def compile(kernel, constants, types=TYPES):
    kinds = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=kinds, constexprs=places)
    made = triton.compile(source, target=GPUTarget("cuda", CAPABILITY, 32)).asm["ptx"]
    print(kernel.__name__, *re.findall(r"\\b(?:div|rem)\\.[su]64", made))


for kind, paper, exact, sampled in (
    (0, False, False, True), (1, True, True, True), (2, True, False, False), (3, False, True, True),
    (4, False, False, False), (8, False, False, True),
):
    constants = dict(
        KIND=kind, PAPER=paper, EXACT_RESIDUAL=exact, SAMPLED=sampled, MODULATED=kind in (1, 4), BLOCK=4096, CHUNK=128,
    )
    types = TYPES | {"bound": "fp32", "scale": "fp32", "neighbours": "*i64" if kind == 3 else "*i32"}
    compile(accept_path, constants, types)
strides = dict.fromkeys(("key_strides", "position_strides", "slot_strides"), ("i32",) * 3)
compile(bits, {"PURPOSE": 3, "BLOCK": 1024}, TYPES | strides | {"slots": "*i64", "result": "*i64"})
numbers = [part for part in accept_path.params if part.name not in TYPES and not part.is_constexpr]
print(*[part.name for part in numbers if not part.do_not_specialize])
"""


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_they_compile_for_a_gpu(capability: int) -> None:
    """To machine code, without a device, and without divisions of 64 bits, which GPUs do in many
    instructions. Of its numbers, Triton may specialise only the vocabulary and the bounds, so
    another k, tree or table is not another kernel.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    code = COMPILE.replace("CAPABILITY", str(capability))
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *compiled, specialised = done.stdout.splitlines()
    assert compiled == ["accept_path"] * 6 + ["bits"]
    assert specialised.split() == ["bound", "scale", "vocabulary"]


@pytest.mark.parametrize(
    ("sampled", "rejected", "written"),
    [(False, 0, 1), (False, 1, 2), (False, 3, 2), (True, 0, 1), (True, 3, 7)],
)
def test_how_often_a_distribution_is_written(
    sampled: bool, rejected: int, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is copied once. The first rejection of a chosen child writes a residual, and
    others change it; each rejection of a sampled child writes a residual and the rest of the
    proposal.
    """
    interpreter = pytest.importorskip("triton.runtime.interpreter").InterpreterBuilder
    store, stored = interpreter.create_masked_store, []

    def count(self: object, pointers: Any, *rest: Any) -> Any:
        stored.append(pointers.data.size)
        return store(self, pointers, *rest)

    monkeypatch.setattr(interpreter, "create_masked_store", count)
    shape = fixed_shape([-1] * 4, [1] * 4, torch.device("cpu"))
    probs = torch.full((ROWS, 5, CODES), 0.2 / (CODES - 4))
    probs[..., 1:5] = 0.2
    proposals = (
        [torch.full_like(probs, 1 / CODES), torch.zeros(1, 5, dtype=torch.int64)] if sampled else []
    )
    eligible = pad(torch.ones(ROWS, 4, dtype=torch.bool), (1, 0))
    # 9 rejects, 0 accepts
    uniforms = (9.0 * (torch.arange(4) < rejected)).expand(ROWS, 1, 4).contiguous()
    tokens = torch.arange(5).expand(ROWS, -1).contiguous()
    omegas = torch.full((ROWS, 2), 0.5)
    nodes, tests = [shape.children, tokens, eligible], [uniforms, omegas]
    kernels.accept_tree(
        probs, nodes, tests, proposals, None, *astuple(fused_rule(RULES["exact"], sampled=sampled))
    )
    assert stored.count(BLOCK) == ROWS * -(-CODES // BLOCK) * written


def test_rules_that_need_every_tokens_mass_are_left_to_the_loops() -> None:
    assert FusedRule.of(AcceptanceRule(Grouped()), sampled=False) is None
    under = replace(RULES["lantern"], schedule=Constant(0.6), resampling="optimal")
    assert FusedRule.of(under, sampled=True) is None
    assert FusedRule.of(under, sampled=False) is not None


def test_threshold_tests_with_another_residual_are_left_to_the_loops() -> None:
    assert FusedRule.of(replace(RULES["typical"], resampling="optimal"), sampled=False) is None
    assert FusedRule.of(RULES["fuzzy"], sampled=False) is None, "chosen drafts have no distribution"


def test_random_bits_are_the_same() -> None:
    keys = image_keys(3, [1, 2], [0, 5])
    positions = torch.arange(5)[None] + torch.tensor([[0], [900]])
    slots = torch.arange(7) + 16_384
    for purpose in Purpose:
        for shapes in (
            (keys[:, None, None], positions[..., None], slots),
            (keys[:, None], positions, slots[:5]),
        ):
            expected = bits(*shapes[:2], purpose, shapes[2])
            for function in (random_bits, bits_by_numpy):
                assert torch.equal(function(*shapes[:2], int(purpose), shapes[2]), expected)
