"""A whole step traced as one graph: none of its shapes and branches depends on values.

`torch.compile(fullgraph=True)` raises where Python reads a tensor, and traces again where a shape
or a number of the host has changed. As on an accelerator, loops run to their bounds; attention
spans the whole cache.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from search_spaces.acceptance import AcceptanceRule
from search_spaces.drafters import Eagle, Jacobi, Window
from search_spaces.neighbourhoods import Additive, Multiplicative
from search_spaces.trees import Adjacency, Branching, Chain, Dynamic, Static
from search_spaces.trial import DecodingConfig
from search_spaces.verification import BlockVerification, JointVerification
from tests.fakes import tape
from tests.fakes.toys import BASE, toy_drafter, toy_target
from workers.decoding.engine import Engine
from workers.decoding.state import Batch, Request
from workers.decoding.timer import PhaseTimer

pytestmark = [pytest.mark.slow(seconds=20), pytest.mark.filterwarnings("ignore:.*lru_cache")]

STEPS = 20
LANTERN = AcceptanceRule(Additive(8, 0.3))
CONFIGS = {
    "chain": DecodingConfig(Eagle(), Chain(3), LANTERN),
    "chain, block": DecodingConfig(
        Eagle(), Chain(3), AcceptanceRule(verification=BlockVerification())
    ),
    "window, joint": DecodingConfig(
        Jacobi(), Chain(4), AcceptanceRule(verification=JointVerification())
    ),
    "static tree": DecodingConfig(
        Eagle(),
        Static(paths=((0,), (1,), (0, 0), (0, 1), (0, 0, 0))),
        AcceptanceRule(Multiplicative(8, 2.0)),
    ),
    "dynamic tree": DecodingConfig(Eagle(), Dynamic(depth=3, width=3, nodes=8), LANTERN),
    "adjacency tree": DecodingConfig(
        Eagle(),
        Adjacency(
            beta=0.5, depth_range=(1, 3), width_range=(1, 3), start_depth=2, start_width=2, nodes=5
        ),
    ),
    "window": DecodingConfig(Jacobi(), Chain(4), AcceptanceRule()),
    "window, maximal": DecodingConfig(Jacobi(redraw="maximal"), Chain(4), AcceptanceRule()),
    "window that branches": DecodingConfig(
        Jacobi(redraw="maximal"), Branching(3, 2, 2), AcceptanceRule()
    ),
    "drafted window": DecodingConfig(Eagle(), Window(4), LANTERN),
    "window, reuse": DecodingConfig(Jacobi(redraw="reuse"), Chain(4), AcceptanceRule()),
}
WIDEST = (3, 5)  # of the adjacency trees


class Untimed:
    """A timer that does not read the clock, which is not part of a graph."""

    def start(self) -> Untimed:
        return self

    def lap(self, phase: str) -> None: ...


@pytest.fixture
def bounded_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    tape.without_shortcuts(monkeypatch)


@pytest.fixture(autouse=True)
def one_trace() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.inference_mode(), torch._dynamo.config.patch(error_on_recompile=True):
        yield
    torch._dynamo.reset()


def bounded(engine: Engine, step: Callable[[Batch], Any]) -> Callable[[Batch], Any]:
    """The step, with trees padded to the same size every time."""

    def call(batch: Batch) -> Any:
        engine.drafting.set_bounds(WIDEST)
        return step(batch)

    return call


def traced(engine: Engine) -> Callable[[Batch], Any]:
    return bounded(
        engine, torch.compile(engine.step, fullgraph=True, dynamic=False, backend="eager")
    )


def after_first_step(config: DecodingConfig) -> tuple[Engine, Batch]:
    """Images long enough for all steps. The first step of an image reads one token, later ones what
    a step emits.
    """
    target = toy_target(config=replace(BASE, rows=10, cols=11))
    engine = Engine(target, config, toy_drafter(config.drafter.kind, target), batch_size=2)
    batch, _ = engine.open(deque([Request(0, "abc"), Request(1, "defgh")]))
    engine.timer = cast(PhaseTimer, Untimed())
    batch.sync_host_counts([engine.image_len])
    engine.drafting.next_bounds(batch)
    bounded(engine, engine.step)(batch)
    return engine, batch


@pytest.mark.usefixtures("bounded_loops")
@pytest.mark.parametrize("name", CONFIGS)
def test_steps_are_one_graph(name: str) -> None:
    (engine, batch), (eager, other) = (
        after_first_step(CONFIGS[name]),
        after_first_step(CONFIGS[name]),
    )
    step, eager_step, lengths = traced(engine), bounded(eager, eager.step), set()
    for _ in range(STEPS):
        counts, expected = engine.read(batch, step(batch)), eager.read(other, eager_step(other))
        assert counts == expected
        lengths |= set(counts.emitted)
    assert len(lengths) > 1
    for row, emitted in enumerate(batch.emitted.tolist()):
        assert STEPS < emitted <= engine.image_len
        assert torch.equal(batch.tokens[row, :emitted], other.tokens[row, :emitted])


def test_a_branch_on_a_value_is_detected() -> None:
    """The loops of a CPU end when all rows are decided."""
    engine, batch = after_first_step(CONFIGS["chain"])
    with pytest.raises(
        (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError), match="all_done"
    ):
        traced(engine)(batch)


@pytest.mark.usefixtures("bounded_loops")
def test_a_shape_that_changes_is_detected() -> None:
    """Attention spans as many columns as the longest row has."""
    engine, batch = after_first_step(CONFIGS["chain"])
    step = traced(engine)
    batch.sync_host_counts(batch.emitted.tolist())
    step(batch)
    batch.sync_host_counts(batch.emitted.tolist())
    with pytest.raises(torch._dynamo.exc.RecompileError):
        step(batch)
