"""A session: when it ends, who begins, which engines it keeps, and that it is timed in one mode."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from search_spaces.acceptance import EXACT
from search_spaces.drafters import Eagle
from search_spaces.presets import preset
from search_spaces.trees import Chain, Dynamic
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes import tape
from tests.fakes.tiny_models import tiny_scenes
from tests.fakes.toys import BASE, toy_drafter, toy_target
from workers.data.captions import Caption
from workers.data.shards import PredictTask, TimingSession
from workers.decoding import graphs
from workers.decoding.engine import Engine
from workers.decoding.graphs import PassGraphs
from workers.decoding.state import Request
from workers.decoding.timer import PhaseTimer
from workers.loading.models import Models
from workers.loading.models_yaml import folder_entry, load_entry
from workers.metrics.timings import Load
from workers.replay.prediction_table import predict_settings
from workers.runtime import sessions
from workers.runtime.engines import CancellableEngine, Engines
from workers.runtime.sessions import time_session

VANILLA = DecodingConfig(sampling=Sampling(temperature=1.0, cfg=1.0))
CHAINS = tuple(
    DecodingConfig.from_mapping(
        {"drafter": "eagle", "tree": {"policy": "chain", "length": length}}, VANILLA.sampling
    )
    for length in range(1, 6)
)
REQUESTS = [Request(number, "a large red ring") for number in range(4)]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    """Of a tiny model."""
    models = load_entry(
        folder_entry(tiny_scenes(tmp_path_factory.mktemp("weights"))), torch.device("cpu")
    )
    return Engines(models, 0, lambda: False)


@pytest.mark.parametrize(("precision", "repetitions"), [(0.0, 3), (10.0, 1)])
def test_a_session_ends_when_its_costs_are_precise(
    precision: float, repetitions: int, engines: Engines
) -> None:
    session = TimingSession((VANILLA, CHAINS[2]), 0, 2, (1, 2), 3, precision)
    rows, *_ = time_session(engines, REQUESTS[:2], session)
    assert {row["repetition"] for row in rows if row["batch"] == 1} == set(range(repetitions))


def test_each_session_has_an_order_of_its_own(engines: Engines) -> None:
    def order(number: int) -> tuple[str, ...]:
        session = TimingSession((VANILLA, CHAINS[2]), 0, 4, (1,), 1, number=number)
        return tuple(row["setting"] for row in time_session(engines, REQUESTS, session)[0])

    assert order(0) == order(0)
    assert len({order(number) for number in range(4)}) > 1


def test_a_session_builds_an_engine_once(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many settings take turns: another start would be timed with the first of its
    batches.
    """
    built, build = list[DecodingConfig](), CancellableEngine.__init__

    def count(
        engine: CancellableEngine, target: Any, config: DecodingConfig, *rest: Any, **options: Any
    ) -> None:
        built.append(config)
        build(engine, target, config, *rest, **options)

    monkeypatch.setattr(CancellableEngine, "__init__", count)
    fresh = Engines(engines.models, 0, lambda: False)
    configs = (VANILLA, *CHAINS)
    time_session(fresh, REQUESTS[:2], TimingSession(configs, 0, 2, (1,), 2))
    assert sorted(built, key=configs.index) == list(configs)


class GraphClock:
    """CPU time in which a pass that runs eagerly or is captured takes a second, and all else next
    to nothing.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.runner = graphs.eager_runner
        monkeypatch.setattr(graphs, "eager_runner", self.eager)
        monkeypatch.setattr(time, "thread_time", self.read)
        tape.without_shortcuts(monkeypatch)

    def read(self) -> float:
        self.now += 1e-6
        return self.now

    def eager(self, timer: PhaseTimer) -> graphs.RunPhase:
        self.now += 1.0
        return self.runner(timer)

    def capture(self, function: Callable[[], Any]) -> tuple[tape.Tape, Any]:
        self.now += 1.0
        return tape.capture(function)

    def engines(self) -> Engines:
        """Engines of a toy whose passes are captured."""
        target = toy_target(config=replace(BASE, rows=6))
        drafter = toy_drafter("eagle", target)
        assert drafter is not None
        engines = Engines(Models(target, {"eagle": drafter}, {}), 0, lambda: False)
        make = engines.get

        def get(config: DecodingConfig, kept: int = 0) -> CancellableEngine:
            engine = make(config, kept)
            engine.new_capture = lambda: self.capture
            return engine

        engines.get = get  # type: ignore[method-assign]
        return engines


@pytest.mark.parametrize("batch", [1, 4])
def test_timed_batches_only_replay_graphs(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows leave a batch of drafts one by one, so each batch meets keys of its own; vanilla's rows
    end together.
    """
    monkeypatch.setattr(PassGraphs, "failure", None)
    clock = GraphClock(monkeypatch)
    configs = (
        VANILLA,
        CHAINS[3],
        DecodingConfig(Eagle(), Dynamic(3, 3, 8), EXACT, VANILLA.sampling),
    )
    requests = [Request(number, "a large red ring") for number in range(3 * batch)]
    rows, *_ = time_session(
        clock.engines(), requests, TimingSession(configs, 0, 3 * batch, (batch,), 1)
    )
    assert len(rows) == 3 * 3
    assert max(row["seconds"] for row in rows) < 0.1


def test_costs_for_predictions_are_those_of_replayed_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PassGraphs, "failure", None)
    clock = GraphClock(monkeypatch)
    config, build = DecodingConfig(Eagle(), Chain(4), EXACT, VANILLA.sampling), Engine.__init__

    def captured(engine: Engine, *arguments: Any, **options: Any) -> None:
        build(engine, *arguments, **options)
        engine.new_capture = lambda: clock.capture

    monkeypatch.setattr(Engine, "__init__", captured)
    captions = [Caption(number, "a large red ring") for number in range(8)]
    task = PredictTask((config,), ("{}",), 8, 4, (config,), 4)
    row = predict_settings(clock.engines().models, captions, task).to_pylist()[0]
    assert row["cost_per_pass"] < 1e-3


def test_a_session_in_which_graphs_are_given_up_is_timed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PassGraphs, "failure", None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    calls: list[int] = []

    def time(settings: Any, batches: Any, *rest: Any, **options: Any) -> list[dict[str, Any]]:
        calls.append(len(batches[0]))
        if len(calls) == 2:
            monkeypatch.setattr(PassGraphs, "failure", "an operation cannot be captured")
        row = {"caption_ids": [0], "repetition": 0, "batch": calls[-1], "turn": len(calls)}
        return [
            {"setting": name, **row, "seconds": 1.0, "prefill": 0.0, "passes": 1, "wall": 1.0}
            for name in settings
        ]

    monkeypatch.setattr(sessions, "time_in_turn", time)
    target = SimpleNamespace(device=torch.device("cuda:0"), encode=lambda captions, guided: None)
    engines = cast(Engines, SimpleNamespace(models=SimpleNamespace(target=target)))
    configs = (preset("vanilla"), preset("sjd"))
    session = TimingSession(configs, 0, 8, (1, 8), 1)
    table, facts = sessions.run_session(
        engines, [Caption(number, "a") for number in range(8)], session, "a launch"
    )
    assert calls == [1, 8, 1, 8]
    assert table.column("turn").to_pylist() == [3, 3, 4, 4]
    assert facts["timed_on"] == "a GPU, without CUDA graphs"
    assert facts["call"] == "a launch"
    load = Load(**facts["load"])
    assert load.cores == os.cpu_count()
    assert load.average is not None
    assert load.wall_over_cpu is not None


def test_containers_of_one_machine_are_one_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two have host names of their own, and the machine's boot id. Systems without one have a host
    name only.
    """
    monkeypatch.setattr(sessions, "time_in_turn", lambda *_, **__: [])
    target = SimpleNamespace(device=torch.device("cpu"), encode=lambda captions, guided: None)
    engines = cast(Engines, SimpleNamespace(models=SimpleNamespace(target=target)))
    session = TimingSession((preset("vanilla"), preset("sjd")), 0, 2, (1,), 1)
    captions = [Caption(number, "a") for number in range(2)]
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("d7b4c1f0\n")

    def host(name: str) -> str:
        monkeypatch.setattr(platform, "node", lambda: name)
        return str(sessions.run_session(engines, captions, session, "a call")[1]["host"])

    monkeypatch.setattr(sessions, "_BOOT_ID", boot_id)
    assert host("pod-1") == host("pod-2") == "d7b4c1f0"
    boot_id.unlink()
    assert host("pod-1") == "pod-1"


def test_a_session_that_waits_for_a_core_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that sleeps half of the time, as one does whose core another process holds."""

    def half_asleep(*_: object, **__: object) -> list[dict[str, Any]]:
        start = time.thread_time()
        while time.thread_time() - start < 0.05:
            time.sleep(0.002)
            until = time.thread_time() + 0.002
            while time.thread_time() < until:
                pass
        return []

    monkeypatch.setattr(sessions, "time_in_turn", half_asleep)
    target = SimpleNamespace(device=torch.device("cpu"), encode=lambda captions, guided: None)
    engines = cast(Engines, SimpleNamespace(models=SimpleNamespace(target=target)))
    session = TimingSession((preset("vanilla"), preset("sjd")), 0, 2, (1,), 1)
    captions = [Caption(number, "a") for number in range(2)]
    _, facts = sessions.run_session(engines, captions, session, "")
    assert facts["load"]["wall_over_cpu"] > 1.5
