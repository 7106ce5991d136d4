"""Counts of accepted and tested drafts, against a walk through every draft tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor

from search_spaces.drafters import JacobiRows
from search_spaces.presets import PRESETS
from search_spaces.trees import Chain
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.toys import toy_drafter, toy_target
from tests.workers.decoding.test_engine import REQUESTS, SMALL, fitted
from workers.decoding.engine import Engine
from workers.decoding.rows import RowsBatch
from workers.decoding.skipping import SkippedTree
from workers.decoding.state import Batch
from workers.decoding.statistics import ImageStatistics, Result
from workers.decoding.tree import DraftTree
from workers.models.target import Target

SKIPPING = DecodingConfig.from_mapping(
    {
        "drafter": "eagle",
        "tree": {"policy": "dynamic", "depth": 3, "width": 3, "nodes": 8},
        "acceptance": {"verification": "uniform_skipping", "interval": 2},
    }
)
GREEDY = PRESETS["eagle2"].with_sampling(Sampling(cfg=2.0, temperature=0.0))
METHODS: dict[str, DecodingConfig] = {
    "skipping": SKIPPING,
    "greedy": fitted(GREEDY, GREEDY.sampling),
    **{
        name: fitted(PRESETS[name])
        for name in (
            "vanilla",
            "speculative",
            "speculative_block",
            "eagle1_traversal",
            "eagle2",
            "lantern",
            "medusa",
            "adt",
            "sjd",
            "cool",
        )
    },
}


@dataclass(frozen=True)
class Pass:
    """The draft tree of one image, as it was before acceptance."""

    position: int  # index of the next token
    tokens: list[int]
    parents: list[int]
    depth: list[int]
    exists: list[bool]
    skipped: int

    @classmethod
    def of(cls, batch: Batch, tree: DraftTree) -> Pass:
        skipped = int(tree.skipped[0]) if isinstance(tree, SkippedTree) else 0
        return cls(
            position=int(batch.emitted[0]),
            tokens=tree.tokens[0].tolist(),
            parents=tree.shape.parents[0].tolist(),
            depth=tree.shape.depth[0].tolist(),
            exists=tree.exists[0].tolist(),
            skipped=skipped,
        )

    def children(self, node: int, image_len: int) -> list[int]:
        """Nodes below a node (-1: the root) that may be accepted: the last token is no draft."""
        return [
            child
            for child, parent in enumerate(self.parents)
            if parent == node
            and self.exists[child]
            and self.position + self.depth[child] < image_len
        ]


def counted(
    passes: Sequence[Pass], emitted: Sequence[int], tokens: Sequence[int]
) -> tuple[Counter[int], Counter[int]]:
    """How many verifications accepted so many drafts, and tested one at each position."""
    accepted: Counter[int] = Counter()
    tested: Counter[int] = Counter()
    for one, count in zip(passes, emitted, strict=True):
        node = -1
        for token in tokens[one.position : one.position + count - 1]:
            below = one.children(node, len(tokens))
            (node,) = (child for child in below if one.tokens[child] == token)
        verified = count - 1 - one.skipped
        accepted[verified] += 1
        last = verified + bool(one.children(node, len(tokens)))
        tested.update(range(1, last + 1))
    return accepted, tested


def by_count(statistics: ImageStatistics) -> tuple[Counter[int], Counter[int]]:
    histogram = dict(enumerate(statistics.acceptance_histogram.tolist()))
    tested = dict(enumerate(statistics.tested.tolist(), start=1))
    return Counter(histogram), Counter(tested)


def run(target: Target, config: DecodingConfig, batch: int, observer: Any = None) -> list[Result]:
    drafter = toy_drafter(config.drafter.kind, target)
    engine = Engine(target, config, drafter, batch_size=batch, observer=observer)
    return sorted(engine.run(REQUESTS), key=lambda result: result.request.caption_id)


@pytest.mark.parametrize("method", METHODS)
def test_counts_are_those_of_a_walk_through_each_tree(method: str) -> None:
    """One image at a time; then in batches of four of six images, which gives the same counts."""
    target = toy_target(config=SMALL)
    seen: list[Pass] = []

    def observe(batch: Batch, tree: DraftTree, _: Tensor) -> None:
        seen.append(Pass.of(batch, tree))

    alone = run(target, METHODS[method], 1, observe)
    for result in alone:
        own, seen = seen[: result.statistics.passes], seen[result.statistics.passes :]
        emitted = result.statistics.emitted.tolist()
        expected = counted(own, emitted, result.tokens.tolist())
        found = by_count(result.statistics)
        assert all(one == other for one, other in zip(found, expected, strict=True)), method
    for one, other in zip(alone, run(target, METHODS[method], 4), strict=True):
        assert one.tokens.equal(other.tokens), "the images are the same"
        assert by_count(one.statistics) == by_count(other.statistics)


def test_each_open_row_of_an_image_is_a_verification_of_its_own() -> None:
    target = toy_target(config=SMALL)
    config = DecodingConfig(JacobiRows(lag=2), Chain(3), sampling=Sampling(cfg=2.0))
    opened = [0]

    def observe(batch: Batch, *_: object) -> None:
        assert isinstance(batch, RowsBatch)
        opened[0] += int(batch.is_open.sum())

    results = run(target, config, 1, observe)
    histograms = [by_count(result.statistics)[0] for result in results]
    assert sum(histogram.total() for histogram in histograms) == opened[0]
    tokens = sum(
        (accepted + 1) * count for histogram in histograms for accepted, count in histogram.items()
    )
    assert tokens == sum(int(result.statistics.emitted.sum()) for result in results)
    assert max(histograms[0]) > 0
