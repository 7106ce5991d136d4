"""What a batch carries at fixed addresses, and rounds that cannot be recorded."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from search_spaces.acceptance import AcceptanceRule
from search_spaces.drafters import Eagle
from search_spaces.neighbourhoods import Additive
from search_spaces.trees import Adjacency, Chain, Dynamic
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes import tape
from tests.fakes.toys import BASE, toy_drafter, toy_target
from workers.decoding.engine import Engine
from workers.decoding.graphs import PassGraphs, are_supported
from workers.decoding.row_buffers import RowBuffers
from workers.decoding.state import Batch, Request
from workers.loading.models import Models
from workers.models.cache import KVCache
from workers.runtime.engines import Engines


class Owner:
    """Four captions, two rows of a transformer each."""

    def __init__(self) -> None:
        self.captions, self.rows, self.other = (
            torch.arange(4),
            torch.arange(8),
            torch.arange(4) + 10,
        )


def test_buffers_keep_their_addresses() -> None:
    owner = Owner()
    buffers = RowBuffers(4, fixed=True)
    buffers.add(owner, "captions", "rows", "other")
    places = [x.data_ptr() for x in (owner.captions, owner.rows, owner.other)]

    owner.captions, owner.other = owner.other, owner.captions  # each is the other's old value
    owner.rows = owner.rows + 100
    buffers.copy_back()
    assert [x.data_ptr() for x in (owner.captions, owner.rows, owner.other)] == places
    assert owner.captions.tolist() == [10, 11, 12, 13]
    assert owner.other.tolist() == [0, 1, 2, 3]

    buffers.keep(torch.tensor([3, 1]))
    assert [x.data_ptr() for x in (owner.captions, owner.rows, owner.other)] == places
    assert owner.captions.tolist() == [13, 11]
    assert owner.rows.tolist() == [103, 101, 107, 105]  # both streams of each caption
    assert buffers.size == 2

    buffers.reset(4)
    assert [x.data_ptr() for x in (owner.captions, owner.rows, owner.other)] == places
    assert (owner.captions.shape, owner.rows.shape) == ((4,), (8,))


@pytest.mark.parametrize("fixed", [False, True])
def test_caches_keep_the_rows_of_the_captions_that_stay(fixed: bool) -> None:
    cache = KVCache(layers=1, rows=6, columns=2, kv_heads=1, head_dim=8)
    cache.storage.copy_(torch.arange(12.0)[:, None].expand(1, 2, 12, 8))
    buffers = RowBuffers(3, fixed=fixed)
    buffers.add_cache(cache)
    buffers.keep(torch.tensor([2, 0]))
    assert cache.read(0, 2)[0][..., 0].flatten().tolist() == [4, 5, 0, 1, 10, 11, 6, 7]


@pytest.mark.parametrize("failing", [1, 3, 4, 6])
def test_a_round_that_cannot_be_captured_runs_eagerly(
    failing: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever capture fails, after it has assigned what it could: the tokens are the same, and
    the log says why.
    """
    monkeypatch.setattr(PassGraphs, "failure", None)
    tape.without_shortcuts(monkeypatch)
    target, config = (
        toy_target(),
        DecodingConfig(
            Eagle(),
            Dynamic(depth=4, width=4, nodes=12),
            AcceptanceRule(Additive(8, 0.3)),
            Sampling(cfg=2.0),
        ),
    )
    requests = [Request(number, caption) for number, caption in enumerate(["abc", "de", "f"])]

    def tokens(engine: Engine) -> list[list[int]]:
        results = sorted(engine.run(requests), key=lambda result: result.request.caption_id)
        return [result.tokens.tolist() for result in results]

    calls = 0

    def capture(function: Callable[[], Any]) -> tuple[tape.Tape, Any]:
        nonlocal calls
        calls += 1
        captured = tape.capture(function)  # what it has assigned is not computed before a replay
        if calls == failing:
            raise RuntimeError("operation not permitted when stream is capturing")
        return captured

    engine = Engine(target, config, toy_drafter("eagle", target), batch_size=2)
    engine.new_capture = lambda: capture
    assert tokens(engine) == tokens(
        Engine(target, config, toy_drafter("eagle", target), batch_size=2)
    )
    assert calls == failing
    assert "not permitted" in str(PassGraphs.failure)
    assert "not permitted" in caplog.text
    assert not engine.uses_graphs
    assert not are_supported(torch.device("cuda"))


def test_engines_with_one_drafter_do_not_disturb_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tape.without_shortcuts(monkeypatch)
    target = toy_target()
    config = DecodingConfig(Eagle(), Dynamic(depth=3, width=2, nodes=6), sampling=Sampling(cfg=2.0))
    drafter = toy_drafter("eagle", target)
    engines = [Engine(target, config, drafter, seed=seed, batch_size=2) for seed in (0, 1)]
    for engine in engines:
        engine.new_capture = lambda: tape.capture
    runs = [
        [result.tokens.tolist() for result in engine.run([Request(7, "abc")])]
        for engine in engines * 2
    ]
    assert runs[:2] == runs[2:]
    assert runs[0] != runs[1]


def test_the_environment_turns_graphs_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECFRONTIER_CUDA_GRAPHS", raising=False)
    assert are_supported(torch.device("cuda"))
    assert not are_supported(torch.device("cpu"))
    monkeypatch.setenv("SPECFRONTIER_CUDA_GRAPHS", "0")
    assert not are_supported(torch.device("cuda"))


def test_a_tensor_that_changes_its_shape_is_refused() -> None:
    owner, buffers = Owner(), RowBuffers(4, fixed=True)
    buffers.add(owner, "captions")
    owner.captions = owner.captions[:, None]
    with pytest.raises(ValueError, match="captions"):
        buffers.copy_back()


@pytest.mark.parametrize("static", [False, True])
def test_a_batch_is_freed_without_a_garbage_collection(
    static: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape.without_shortcuts(monkeypatch)
    target = toy_target()
    config = DecodingConfig(Eagle(), Dynamic(depth=3, width=2, nodes=6), sampling=Sampling(cfg=2.0))
    engine, batches = Engine(target, config, toy_drafter("eagle", target), batch_size=2), []
    if static:
        engine.new_capture = lambda: tape.capture

    def allocate(size: int) -> Batch:
        batch = Engine.allocate(engine, size)
        batches.append(weakref.ref(batch))
        return batch

    monkeypatch.setattr(engine, "allocate", allocate)
    gc.disable()
    try:
        for caption in ("abc", "de"):
            list(engine.run([Request(0, caption), Request(1, caption)]))
        assert [batch() is not None for batch in batches] == ([True] if static else [False, False])
        engine.batch_size = 1
        list(engine.run([Request(0, "abc")]))
        engine.release()
        assert not any(batch() for batch in batches)
    finally:
        gc.enable()


def test_engines_that_take_turns_keep_their_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    tape.without_shortcuts(monkeypatch)
    target, captures = toy_target(), 0

    def capture(function: Callable[[], Any]) -> tuple[tape.Tape, Any]:
        nonlocal captures
        captures += 1
        return tape.capture(function)

    vanilla = DecodingConfig(sampling=Sampling(cfg=2.0))
    config = DecodingConfig(Eagle(), Dynamic(depth=3, width=2, nodes=6), sampling=Sampling(cfg=2.0))
    drafter = toy_drafter("eagle", target)
    assert drafter is not None
    chain = replace(config, policy=Chain(4))  # with the same drafter
    engines, settings = (
        Engines(Models(target, {"eagle": drafter}, {}), 0, lambda: False),
        (vanilla, config, chain),
    )
    for each in settings:
        engines.get(each).new_capture = lambda: capture
    for turn in range(3):
        before = captures
        for each in settings:
            engines.generate_once(each, [Request(0, "abc")], 1, alternating=settings)
        assert (captures == before) == (turn > 0)
    engines.generate_once(vanilla, [Request(0, "abc")], 1)
    assert engines.get(config)._batch is None


def test_after_a_failed_capture_no_setting_has_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise settings would be timed against a vanilla of another kind."""
    monkeypatch.setattr(PassGraphs, "failure", None)
    tape.without_shortcuts(monkeypatch)
    target, replays = toy_target(), 0
    replay = tape.Tape.replay

    def count(self: tape.Tape) -> None:
        nonlocal replays
        replays += 1
        replay(self)

    monkeypatch.setattr(tape.Tape, "replay", count)
    engine = Engine(target, DecodingConfig(sampling=Sampling(cfg=2.0)), batch_size=1)
    engine.new_capture = lambda: tape.capture
    found = [
        [result.tokens.tolist() for result in engine.run([Request(0, "abc")])] for _ in range(2)
    ]
    assert replays > 0
    monkeypatch.setattr(PassGraphs, "failure", "another engine's pass could not be captured")
    before = replays
    found.append([result.tokens.tolist() for result in engine.run([Request(0, "abc")])])
    assert replays == before
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("adjacency", [False, True])
def test_few_graphs_serve_all_passes_of_many_images(
    adjacency: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most a graph per step of tokens, power of two of rows and plan; captures are a small part
    of the passes.
    """
    tape.without_shortcuts(monkeypatch)
    target = toy_target(config=replace(BASE, rows=16, cols=8))
    policy = (
        Adjacency(depth_range=(2, 3), width_range=(2, 3), start_depth=2, start_width=2, nodes=6)
        if adjacency
        else Dynamic(depth=2, width=2, nodes=4)
    )
    config = DecodingConfig(Eagle(), policy, sampling=Sampling(cfg=1.0))
    engine = Engine(target, config, toy_drafter("eagle", target), batch_size=2)
    engine.new_capture = lambda: tape.capture
    results = list(engine.run([Request(number, "abc") for number in range(9)]))
    assert engine._batch is not None
    assert engine._batch.graphs is not None
    keys = engine._batch.graphs.keys
    sizes, spans, plans = ({key[n:m] for key in keys} for n, m in ((0, 1), (1, 2), (2, None)))
    assert len(sizes) <= 2
    assert len(spans) <= 4  # 128 tokens in steps of 32
    assert len(plans) <= 1 + adjacency
    passes = sum(result.statistics.passes for result in results) / 2
    assert len(keys) < 0.05 * passes


def test_what_a_worker_keeps_over_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of the last setting only, and a few engines without any."""
    tape.without_shortcuts(monkeypatch)
    target = toy_target()
    drafter = toy_drafter("eagle", target)
    assert drafter is not None
    engines = Engines(Models(target, {"eagle": drafter}, {}), 0, lambda: False)
    graphs, made = [], []
    for length in range(1, 8):
        config = DecodingConfig(Eagle(), Chain(length=length), sampling=Sampling(cfg=2.0))
        engine = engines.get(config)
        engine.new_capture = lambda: tape.capture
        engines.generate_once(config, [Request(0, "abc"), Request(1, "abc")], 2)
        assert engine._batch is not None
        graphs.append(weakref.ref(engine._batch.graphs))
        made.append(weakref.ref(engine))
        del engine
    assert [found() is not None for found in graphs] == [False] * 6 + [True]
    assert [found() is not None for found in made] == [False] * 3 + [True] * 4
