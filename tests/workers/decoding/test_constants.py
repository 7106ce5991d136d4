"""Constants are made once for each engine, and freed with it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from search_spaces.drafters import Eagle
from search_spaces.trees import Dynamic
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes import tape
from tests.fakes.toys import toy_drafter, toy_target
from workers.decoding.constants import Constants, arange, identity, kept_in
from workers.decoding.engine import Engine
from workers.decoding.state import Request

CPU, META = torch.device("cpu"), torch.device("meta")


def test_they_are_made_once_for_each_owner_size_and_device() -> None:
    one, other = Constants(), Constants()
    with kept_in(one):
        first = arange(1, 9, 2, CPU)
        assert first.tolist() == [1, 3, 5, 7]
        assert arange(1, 9, 2, CPU) is first
        assert arange(1, 9, 3, CPU).tolist() == [1, 4, 7]
        assert arange(1, 9, 2, META).is_meta
        with kept_in(other):
            assert arange(1, 9, 2, CPU) is not first
        assert torch.equal(identity(3, CPU), torch.eye(3).bool())
        assert arange(1, 9, 2, CPU) is first
    assert (len(one), len(other)) == (4, 1)


def test_without_an_owner_nothing_is_kept() -> None:
    assert arange(1, 9, 2, CPU) is not arange(1, 9, 2, CPU)


@pytest.mark.parametrize("captures", [False, True])
def test_an_engines_constants_are_freed_with_it(
    captures: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two engines of one tree have constants of their own, which the passes of each find again."""
    tape.without_shortcuts(monkeypatch)
    target = toy_target()
    config = DecodingConfig(Eagle(), Dynamic(depth=3, width=2, nodes=6), sampling=Sampling(cfg=2.0))
    engines = [Engine(target, config, toy_drafter("eagle", target)) for _ in range(2)]
    made: list[list[weakref.ref[torch.Tensor]]] = []
    for engine in engines:
        if captures:
            engine.new_capture = lambda: tape.capture
        counts = []
        for _ in range(2):
            list(engine.run([Request(0, "abc")]))
            counts.append(len(engine.constants))
        assert counts[0] == counts[1] > 3
        made.append(
            [
                weakref.ref(value)
                for value in engine.constants.values()
                if isinstance(value, torch.Tensor)
            ]
        )
    assert not {id(ref()) for ref in made[0]} & {id(ref()) for ref in made[1]}
    del engine, engines[0]
    gc.collect()
    assert not any(ref() is not None for ref in made[0])
    assert all(ref() is not None for ref in made[1])
