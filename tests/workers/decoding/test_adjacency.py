"""The adjacency policy's arithmetic: rows of different sizes in one batch, TokenFlock's means,
random starts.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.toys import BASE, toy_drafter, toy_target
from workers.decoding.adjacency import AdjacencyTree
from workers.decoding.engine import Engine
from workers.decoding.state import Batch, Request
from workers.decoding.statistics import Result

REQUESTS = [Request(n, caption) for n, caption in enumerate(["abc", "defgh", "i"])]


def adjacency(acceptance: object = "exact", **tree: object) -> DecodingConfig:
    shape = {
        "policy": "adjacency",
        "depth_range": [2, 5],
        "width_range": [2, 6],
        "start_width": 4,
        "nodes": 20,
        **tree,
    }
    config = DecodingConfig.from_mapping(
        {"drafter": "eagle", "tree": shape, "acceptance": acceptance}
    )
    return replace(config, sampling=Sampling(cfg=2.0))


def engine(config: DecodingConfig, batch: int = 1) -> Engine:
    target = toy_target(config=replace(BASE, rows=6, cols=6))
    return Engine(target, config, toy_drafter("eagle", target), batch_size=batch)


def opened(config: DecodingConfig, size: int = 1) -> tuple[AdjacencyTree, Batch]:
    made = engine(config, size)
    batch = made.allocate(size)
    assert isinstance(made.drafting, AdjacencyTree)
    return made.drafting, batch


@pytest.mark.parametrize("initialisation", ["horizontal", "random"])
@pytest.mark.parametrize(
    "acceptance", ["exact", {"neighbourhood": "additive", "k": 12, "delta": 0.4}]
)
def test_a_narrow_row_does_not_depend_on_wider_rows(
    initialisation: str, acceptance: object
) -> None:
    """Trees of three levels and more, of mixed widths: tokens, rounds and node counts do not depend
    on the batch.
    """
    config = adjacency(acceptance, initialisation=initialisation, nodes=40, beta=0.3)

    def draw(batch: int) -> dict[int, Result]:
        return {r.request.caption_id: r for r in engine(config, batch).run(REQUESTS)}

    alone, together = draw(1), draw(3)
    assert max(int(r.statistics.depth.max()) for r in alone.values()) >= 3
    for key, result in alone.items():
        assert torch.equal(result.tokens, together[key].tokens)
        assert torch.equal(result.statistics.nodes, together[key].statistics.nodes)
        assert torch.equal(result.statistics.emitted, together[key].statistics.emitted)


def test_tokenflock_averages_only_known_alphas() -> None:
    """The prefill's token has no alpha: it counts for depth and width, not for alpha."""
    drafting, batch = opened(adjacency(initialisation="tokenflock", radius=4))
    batch.emitted[:] = 3
    drafting.sizes.history[0, 2:4] = torch.tensor([2.0, 4.0, 0.5])  # of tokens 1 and 2
    near = drafting.sizes.flock(batch.emitted)
    shape, alpha = drafting.sizes.mean_size(*near), drafting.sizes.mean_alpha(*near)
    assert alpha.tolist() == [0.5]
    start = drafting.sizes.start
    assert shape[0].tolist() == [round((float(start[0]) + 4) / 3), round((float(start[1]) + 8) / 3)]
    assert drafting.sizes.mean_alpha(
        *drafting.sizes.flock(torch.ones(1, dtype=torch.int64))
    ).tolist() == [-1.0]


def test_random_starts_copy_nothing_from_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    config = adjacency(initialisation="random")
    drafting, batch = opened(config, 50)
    monkeypatch.delattr(torch, "tensor")
    size, _ = drafting.sizes.inherited_state(batch.keys, batch.emitted)
    depth, width = size.unbind(1)
    assert 2 <= depth.min() <= depth.max() <= 5
    assert 2 <= width.min() <= width.max() <= 6


def test_the_cache_holds_paths_wider_than_trees() -> None:
    """Where the host does not know how far a result went, paths are as wide as the deepest tree,
    whatever its nodes.
    """
    _, batch = opened(adjacency(depth_range=[2, 8], nodes=6))
    assert batch.cache.columns >= 5 + 36 + 8 + 1
    assert batch.columns.max() + 35 < batch.cache.columns
