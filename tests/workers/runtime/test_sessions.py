"""A session is timed in one mode: with CUDA graphs or without."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from search_spaces.presets import preset
from workers.data.captions import Caption
from workers.data.shards import TimingSession
from workers.decoding.graphs import RoundGraphs
from workers.runtime import sessions
from workers.runtime.engines import Engines


def test_a_session_in_which_graphs_are_given_up_is_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RoundGraphs, "failure", None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    calls: list[int] = []

    def time(settings: Any, batches: Any, *rest: Any, **options: Any) -> list[dict[str, Any]]:
        calls.append(len(batches[0]))
        if len(calls) == 2:
            monkeypatch.setattr(RoundGraphs, "failure", "an operation cannot be captured")
        row = {"caption_ids": [0], "repetition": 0, "batch": calls[-1], "turn": len(calls)}
        return [{"setting": name, **row, "seconds": 1.0, "prefill": 0.0, "passes": 1, "wall": 1.0} for name in settings]

    monkeypatch.setattr(sessions, "time_in_turn", time)
    target = SimpleNamespace(device=torch.device("cuda:0"), encode=lambda captions, guided: None)
    engines = cast(Engines, SimpleNamespace(models=SimpleNamespace(target=target)))
    configs = (preset("vanilla"), preset("sjd"))
    session = TimingSession(configs, 0, 8, (1, 8), 1)
    table, facts = sessions.run_session(engines, [Caption(number, "a") for number in range(8)], session)
    assert calls == [1, 8, 1, 8]
    assert table.column("turn").to_pylist() == [3, 3, 4, 4]
    assert facts["timed_on"] == "a GPU, without CUDA graphs"
