"""What a batch carries at fixed addresses, and rounds that cannot be recorded."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from search_spaces.acceptance import AcceptanceRule
from search_spaces.neighbourhoods import Additive
from search_spaces.trees import Dynamic
from search_spaces.trial import DecodingConfig, Eagle, Sampling
from tests.fakes import tape
from tests.fakes.toys import toy_drafter, toy_target
from workers.decoding.engine import Engine
from workers.decoding.row_tensors import RowTensors
from workers.decoding.state import Request
from workers.models.cache import KVCache


def test_carried_tensors_keep_their_addresses() -> None:
    owner = SimpleNamespace(captions=torch.arange(4), rows=torch.arange(8), other=torch.arange(4) + 10)
    carried = RowTensors(4, fixed=True)
    carried.add(owner, "captions", "rows", "other")
    places = [x.data_ptr() for x in (owner.captions, owner.rows, owner.other)]

    owner.captions, owner.other = owner.other, owner.captions  # each is the other's old value
    owner.rows = owner.rows + 100
    carried.settle()
    assert [x.data_ptr() for x in (owner.captions, owner.rows, owner.other)] == places
    assert owner.captions.tolist() == [10, 11, 12, 13]
    assert owner.other.tolist() == [0, 1, 2, 3]

    carried.keep(torch.tensor([3, 1]))
    assert [x.data_ptr() for x in (owner.captions, owner.rows, owner.other)] == places
    assert owner.captions.tolist() == [13, 11]
    assert owner.rows.tolist() == [103, 101, 107, 105]  # both streams of each caption
    assert carried.size == 2

    carried.reset(4)
    assert [x.data_ptr() for x in (owner.captions, owner.rows, owner.other)] == places
    assert (owner.captions.shape, owner.rows.shape) == ((4,), (8,))


@pytest.mark.parametrize("fixed", [False, True])
def test_caches_keep_the_rows_of_the_captions_that_stay(fixed: bool) -> None:
    cache = KVCache(layers=1, rows=6, columns=2, kv_heads=1, head_dim=1)
    cache.storage.copy_(torch.arange(12.0)[:, None].expand(1, 2, 12, 1))
    carried = RowTensors(3, fixed=fixed)
    carried.add_cache(cache)
    carried.keep(torch.tensor([2, 0]))
    assert cache.read(0, 2)[0].flatten().tolist() == [4, 5, 0, 1, 10, 11, 6, 7]


@pytest.mark.parametrize("failing", [1, 3, 4, 6])
def test_a_round_that_cannot_be_recorded_runs_eagerly(
    failing: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever recording fails, after it has assigned what it could: the tokens are the same, and the log says why."""
    tape.without_shortcuts(monkeypatch)
    target, config = toy_target(), DecodingConfig(
        Eagle(), Dynamic(depth=4, width=4, nodes=12), AcceptanceRule(Additive(8, 0.3)), Sampling(cfg=2.0)
    )  # fmt: skip
    requests = [Request(number, caption) for number, caption in enumerate(["abc", "de", "f"])]

    def tokens(engine: Engine) -> list[list[int]]:
        results = sorted(engine.run(requests), key=lambda result: result.request.caption_id)
        return [result.tokens.tolist() for result in results]

    calls = 0

    def record(function: Callable[[], Any]) -> tuple[tape.Tape, Any]:
        nonlocal calls
        calls += 1
        recorded = tape.record(function)
        if calls == failing:
            raise RuntimeError("operation not permitted when stream is capturing")
        return recorded

    engine = Engine(target, config, toy_drafter("eagle", target), batch_size=2)
    engine.capture = record
    assert tokens(engine) == tokens(Engine(target, config, toy_drafter("eagle", target), batch_size=2))
    assert calls == failing
    assert engine._kept is not None
    assert engine._kept.graphs is not None
    assert engine._kept.graphs.failure is not None
    assert not engine._kept.graphs.shapes
    assert "not permitted" in caplog.text


def test_a_batch_is_allocated_again_when_its_drafter_served_another(monkeypatch: pytest.MonkeyPatch) -> None:
    tape.without_shortcuts(monkeypatch)
    target = toy_target()
    config = DecodingConfig(Eagle(), Dynamic(depth=3, width=2, nodes=6), sampling=Sampling(cfg=2.0))
    drafter = toy_drafter("eagle", target)
    engines = [Engine(target, config, drafter, seed=seed, batch_size=2) for seed in (0, 1)]
    for engine in engines:
        engine.capture = tape.record
    runs = [[result.tokens.tolist() for result in engine.run([Request(7, "abc")])] for engine in engines * 2]
    assert runs[:2] == runs[2:]
    assert runs[0] != runs[1]
    engines[0].release()
    assert engines[0]._kept is None
