"""Draft trees: shapes derived from parents, and the target's logits over a tree against each path
run alone.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.fakes.toys import BASE
from workers.decoding.tree import fixed_shape, shape_from_parents
from workers.models.cache import KVCache
from workers.models.masks import AttentionMask
from workers.models.transformer import Transformer, TransformerConfig


def random_parents(nodes: int, generator: torch.Generator) -> tuple[list[int], list[int]]:
    parents: list[int] = []
    depth: list[int] = []
    for node in range(nodes):
        parent = int(torch.randint(-1, node, (1,), generator=generator)) if node else -1
        parents.append(parent)
        depth.append(1 if parent < 0 else depth[parent] + 1)
    return parents, depth


def lineage(parents: list[int], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


@pytest.mark.parametrize("seed", range(8))
def test_shape_agrees_with_following_the_parents(seed: int) -> None:
    parents, depth = random_parents(9, torch.Generator().manual_seed(seed))
    shape = fixed_shape(parents, depth, torch.device("cpu"))
    for node in range(9):
        path = {0} | {a + 1 for a in lineage(parents, node)}
        assert set(shape.mask[0, node + 1].nonzero()[:, 0].tolist()) == path
        children = [i + 1 for i, p in enumerate(parents) if p == node]
        assert [c for c in shape.children[0, node + 1].tolist() if c] == children
    assert [c for c in shape.children[0, 0].tolist() if c] == [
        i + 1 for i, p in enumerate(parents) if p == -1
    ]
    assert shape.offsets[0].tolist() == [0, *depth]


def test_missing_nodes_are_not_children() -> None:
    parents = torch.tensor([[-1, -1, -1, 0, 0]])
    exists = torch.tensor([[True, False, True, True, False]])
    shape = shape_from_parents(
        parents, torch.tensor([[1, 1, 1, 2, 2]]), exists, max_depth=2, width=2
    )
    assert shape.children[0, 0].tolist() == [1, 3]
    assert shape.children[0, 1].tolist() == [4, 0]


OPTIONS: dict[str, TransformerConfig] = {
    "grid rope, zero prompt": replace(BASE, prompt_rope="zero"),
    "grid rope, identity prompt": BASE,
    "line rope": replace(BASE, rope="line"),
    "grouped-query attention": replace(BASE, n_heads=4, n_kv_heads=2, head_dim=8),
    "qk-norm": replace(BASE, rope="line", qk_norm=True),
    "head width unlike dim / heads": replace(BASE, head_dim=12),
    "an EAGLE layer": replace(BASE, n_layers=1, vocab_size=0, input_norm=False, final_norm=False),
}


def prefill(model: Transformer, prompts: torch.Tensor, lengths: list[int], columns: int) -> KVCache:
    """A cache that holds the first lengths[b] of prompts [R, T, D]."""
    cache = model.new_cache(len(lengths), columns)
    order = torch.arange(prompts.shape[1])
    causal = (order[:, None] >= order).expand(len(lengths), 1, -1, -1)
    model(prompts, order, mask=causal, cache=cache.prompts(torch.arange(len(lengths)), len(order)))
    return cache


@pytest.mark.parametrize("name", OPTIONS)
def test_tree_pass_equals_each_path_alone_and_commit_equals_prefill(name: str) -> None:
    """Two rows of different lengths; one random tree; every node's output against the plain causal
    run of its own path.
    """
    config, generator = OPTIONS[name], torch.Generator().manual_seed(5)
    torch.manual_seed(3)
    model = Transformer(config).eval().requires_grad_(False)
    parents, depth = random_parents(8, generator)
    shape = fixed_shape(parents, depth, torch.device("cpu"))
    lengths = [7, 10]
    prompts = torch.randn(2, 10, config.dim, generator=generator)
    block = torch.randn(2, 9, config.dim, generator=generator)  # root and 8 nodes
    cache = prefill(model, prompts, lengths, 24)
    start = torch.tensor(lengths)
    columns = start[:, None] + torch.arange(9)
    positions = start[:, None] + shape.offsets
    mask = AttentionMask(2, 24, dtype=torch.float32, device=torch.device("cpu")).tree(
        columns, shape.additive_mask
    )[..., :20]
    together = model(block, positions, mask=mask, cache=cache.at(columns, 20))
    for row, length in enumerate(lengths):
        for node in range(-1, 8):
            path = [0, *(a + 1 for a in lineage(parents, node))]
            alone = model(
                torch.cat([prompts[row, :length], block[row, path]])[None],
                torch.arange(length + len(path)),
            )
            torch.testing.assert_close(together[row, node + 1], alone[0, -1], atol=2e-5, rtol=1e-4)
    # commit the deepest path of row 0 and a one-node path of row 1; the cache must then equal a
    # fresh prefill's
    deepest = [0, *(a + 1 for a in lineage(parents, depth.index(max(depth))))]
    width = len(deepest)
    paths = torch.tensor([deepest, [0, 1] + [1] * (width - 2)])
    cache.move(start[:, None] + paths, start[:, None] + torch.arange(width))
    for row, kept in enumerate([deepest, [0, 1]]):
        sequence = torch.cat([prompts[row, : lengths[row]], block[row, kept]])[None]
        fresh = prefill(model, sequence, [sequence.shape[1]], sequence.shape[1])
        for layer in range(config.n_layers):
            for moved, made in zip(
                cache.read(layer, 24), fresh.read(layer, sequence.shape[1]), strict=True
            ):
                torch.testing.assert_close(
                    moved[row, :, : sequence.shape[1]], made[0], atol=2e-5, rtol=1e-4
                )


def test_chain_queries_attend_to_earlier_columns_except_padding() -> None:
    """Two rows, one with a padded prompt; the same as the tree that has one node a level."""
    attention_mask = AttentionMask(3, 12, dtype=torch.float32, device=torch.device("cpu"))
    valid = torch.tensor([[True, True, True], [False, True, True]])
    attention_mask.admit(torch.tensor([2, 0]), valid)
    columns = torch.tensor([[3, 4, 5], [6, 7, 8], [7, 8, 9]])
    shape = fixed_shape((-1, 0), (1, 2), torch.device("cpu"))
    assert shape.is_chain
    assert torch.equal(
        attention_mask.chain(columns), attention_mask.tree(columns, shape.additive_mask)
    )
    seen = attention_mask.chain(columns)[:, 0].exp().bool()
    assert torch.equal(seen[2], torch.arange(12) <= columns[2][:, None])
    assert torch.equal(seen[0], (torch.arange(12) <= columns[0][:, None]) & (torch.arange(12) > 0))


def test_prompts_and_kept_rows() -> None:
    cache = KVCache(layers=2, rows=3, columns=6, kv_heads=1, head_dim=2)
    keys, values = torch.randn(2, 2, 4, 1, 2)
    seen = cache.prompts(torch.tensor([2, 0]), 4).update(1, keys, values)
    for own, got, put in zip(
        seen, cache.read(1, 6), (keys.transpose(1, 2), values.transpose(1, 2)), strict=True
    ):
        assert torch.equal(own[..., :2], put)
        assert torch.equal(got[[2, 0], :, :4, :2], put)
        assert not got[..., 2:].any()  # channels that kernels want
        assert not got[1].any()
        assert not got[:, :, 4:].any()
    assert not cache.storage[0].any()
    cache.keep(torch.tensor([2]))
    assert torch.equal(cache.read(1, 4)[1][..., :2], values[:1].transpose(1, 2))


def test_the_cache_is_compacted_in_place_and_used_again() -> None:
    cache = KVCache(layers=3, rows=6, columns=4, kv_heads=1, head_dim=8)
    cache.storage.normal_(generator=torch.Generator().manual_seed(0))
    before = cache.storage.clone().view(3, 2, 6, 4, 8)
    place = cache.storage.data_ptr()
    cache.keep(torch.tensor([5, 0, 2, 3]))
    assert cache.storage.data_ptr() == place
    assert torch.equal(cache.storage.view(3, 2, 4, 4, 8), before[:, :, [5, 0, 2, 3]])
    cache.move(torch.tensor([[3], [2], [1], [3]]), torch.tensor([[0]]).expand(4, 1))
    keys, values = cache.read(2, 1)
    assert torch.equal(keys[:, 0, 0], before[2, 0, [5, 0, 2, 3], [3, 2, 1, 3]])
    assert torch.equal(values[:, 0, 0], before[2, 1, [5, 0, 2, 3], [3, 2, 1, 3]])
    cache.keep(torch.tensor([1, 3, 2]))
    assert torch.equal(cache.storage.view(3, 2, 3, 4, 8)[..., 1, :], before[:, :, [0, 3, 2], 1])
    cache.keep(torch.tensor([], dtype=torch.int64))
    assert cache.storage.numel() == 0
    cache.resize(6)
    assert cache.storage.data_ptr() == place
    assert cache.storage.shape == before.flatten(2, 3).shape


def test_a_cast_keeps_the_rotation_table_without_warnings(recwarn: pytest.WarningsRecorder) -> None:
    body = Transformer(BASE)
    table = body.rotations.clone()
    body.to(torch.bfloat16)
    assert body.rotations.dtype == torch.complex64
    assert torch.equal(body.rotations, table)
    assert "rotations" not in body.state_dict()
    assert not [w for w in recwarn if "omplex" in str(w.message)]
