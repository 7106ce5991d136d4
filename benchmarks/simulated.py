"""Workers that draw nothing: they write a small file for every shard, after a stated time or at
once, and make metrics up. What remains of a sweep is its driver, its store, and Ray.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from benchmarks.instant import InstantWorkers
from orchestrator.cluster.placement import Slots
from orchestrator.cluster.tasks import Task
from orchestrator.launch import launch
from search_spaces.trial import DecodingConfig
from workers.data.records import write_shard
from workers.data.shards import Experiment, QualityShard, TimingSession, digest
from workers.data.storage import Storage
from workers.metrics.timings import session_table
from workers.runtime.device import AUTO, pick_device, this_device

_BLOCKS = 24  # of a metric's jackknife replicates
_CODES, _IMAGE_TOKENS, _FEATURES = 1024, 144, 64  # as the built-in model's
_KINDS: Mapping[str, type[QualityShard | TimingSession]] = {
    kind.kind: kind for kind in (QualityShard, TimingSession)
}


def shard_table(images: int) -> pa.Table:
    """Rows of random tokens and features, of the size of a quality shard of the built-in model."""
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "caption_id": pa.array(range(images), pa.int64()),
            "tokens": list(rng.integers(0, _CODES, (images, _IMAGE_TOKENS)).astype(np.int32)),
            "features.fid": list(rng.normal(size=(images, _FEATURES)).astype(np.float32)),
        }
    )


def session_rows(
    session: TimingSession, seed: int = 0, noise: float = 0.01
) -> list[dict[str, Any]]:
    """Rows of a timing session: settings that draft are 1.4 to 2.5 times as fast as vanilla, with
    relative noise.
    """
    rng, rows = np.random.default_rng(seed), list[dict[str, Any]]()
    for batch in session.batches:
        for unit in range(session.start, session.stop, batch):
            captions = {
                "caption_ids": list(range(unit, unit + batch)),
                "repetition": 0,
                "batch": batch,
            }
            for turn, config in enumerate(session.configs):
                passes = _passes(config)
                shape = int(digest(config.shape.key), 16) % 100 / 1000
                cost = (0.01 if config.is_vanilla else 0.012 + shape / 10) * float(
                    np.exp(rng.normal(0, noise))
                )
                seconds = {
                    "seconds": 0.01 + passes * cost,
                    "wall": 0.01 + passes * cost,
                    "prefill": 0.01,
                }
                rows.append(
                    {
                        "setting": config.digest(),
                        **captions,
                        "turn": turn,
                        **seconds,
                        "passes": passes,
                    }
                )
    return rows


def _passes(config: DecodingConfig) -> float:
    return float(_IMAGE_TOKENS if config.is_vanilla else _IMAGE_TOKENS // 3)


def write_session(
    storage: Storage, name: str, session: TimingSession, seed: int = 0, noise: float = 0.01
) -> None:
    """The file of a timing session that nothing ran, as if a worker with one thread on this machine
    had.
    """
    device = this_device(pick_device(AUTO))
    configs = [config.to_mapping() for config in session.configs]
    started = f"2026-01-01T00:{session.number // 60 % 60:02d}:{session.number % 60:02d}+00:00"
    facts = {
        "kind": session.kind,
        "name": name,
        "images": session.images,
        "seconds": 0.0,
        "worker": "simulated",
    }
    facts |= {
        "configs": configs,
        "started": started,
        "timed_on": device.name,
        "threads": 1,
        "clock": device.clock,
    }
    write_shard(
        storage, name, session_table(session_rows(session, seed + session.number, noise)), facts
    )


def write_task(storage: Storage, name: str, task: QualityShard | TimingSession) -> None:
    """The file of a shard or session."""
    if isinstance(task, TimingSession):
        write_session(storage, name, task)
    else:
        write_shard(storage, name, shard_table(task.images), {"kind": task.kind, "name": name})


def measurement(task: Mapping[str, Any], images: int) -> dict[str, Any]:
    """The result of a measure task: every metric with its replicates, at all images and at half of
    them.
    """
    rng = np.random.default_rng(int(digest(task["config"]), 16))
    metrics = {
        name: {
            "value": 1 + 9 * rng.random(),
            "error": 0.1,
            "n": images,
            "replicates": rng.random(_BLOCKS).tolist(),
        }
        for name in task["metrics"]
    }
    passes = {"1": [_passes(DecodingConfig.from_mapping(task["config"]))] * (1 + _BLOCKS)}
    return {
        "metrics": metrics,
        "history": [[images // 2, metrics]],
        "seconds": 0.0,
        "passes": passes,
    }


class SimulatedWorker:
    """In the place of `workers.actor.Worker` in a Ray actor.

    spec: the store's folder, the experiment, and the `seconds` that a shard takes.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.storage, self.seconds, self.name = (
            Storage(spec["store"]),
            spec["seconds"],
            spec["worker"],
        )
        self.experiment = Experiment.from_mapping(spec["experiment"])

    def facts(self) -> dict[str, Any]:
        return {}

    def ping(self) -> None:
        """As `Worker.ping`."""

    def cancel(self, task: Mapping[str, Any] | None = None) -> None:
        """As `Worker.cancel`; nothing is cancelled."""

    def run(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Sleep and write the shard's file. Metrics are there at once."""
        if task["kind"] == "measure":
            return measurement(task, len(task["quality"]))
        time.sleep(self.seconds)
        shard = _KINDS[task["kind"]].from_mapping(task)
        name = shard.name(self.experiment)
        write_task(self.storage, name, shard)
        return {
            "name": name,
            "images": shard.images,
            "seconds": self.seconds,
            "ran": True,
            "worker": self.name,
        }


def simulated_actor() -> Any:
    """`SimulatedWorker` as a Ray actor class; see `workers.actor.actor_class`."""
    import ray

    options: dict[str, Any] = {"max_concurrency": 2}
    return ray.remote(**options)(SimulatedWorker)


class FilePool(InstantWorkers):
    """In the place of `Pool`, with one worker in this process: every quality shard is a copy of one
    file. What a sweep needs besides shards and metrics (the reference, predictions) is really
    computed.

    writing_s: seconds spent on shards' files. They are not flushed to disk, so that many can be
    made.
    """

    def __init__(self, spec: Mapping[str, Any], *rest: object) -> None:
        from workers.evaluate import Evaluator
        from workers.runtime.specification import WorkerSpec

        super().__init__()
        self.evaluator = Evaluator(WorkerSpec(**spec, worker="simulated"))
        self.writing_s = 0.0
        self._file = b""

    def first_facts(self) -> Mapping[str, Any]:
        return self.evaluator.facts()

    def answer(self, task: Task) -> Mapping[str, Any]:
        if task.kind == "measure":
            return measurement(task.payload, len(task.payload["quality"]))
        if task.kind not in _KINDS:
            return self.evaluator.run(task.payload)
        begin = time.perf_counter()
        storage = self.evaluator.storage
        if task.kind == TimingSession.kind:
            write_session(storage, task.name, TimingSession.from_mapping(task.payload))
        elif not self._file:
            write_task(storage, task.name, QualityShard.from_mapping(task.payload))
            self._file = storage.read(task.name)
        else:
            path = storage.path(task.name)
            assert path is not None
            path.write_bytes(self._file)
        self.writing_s += time.perf_counter() - begin
        return super().answer(task)


@contextmanager
def file_launches(pools: list[FilePool]) -> Iterator[None]:
    """While the block runs, launches of this process use a `FilePool`, which is added to `pools`,
    and start no Ray.
    """

    def pool(*arguments: Any) -> FilePool:
        pools.append(FilePool(*arguments))
        return pools[-1]

    @contextmanager
    def no_cluster(address: str | None, slots: Slots, *rest: object) -> Iterator[Slots]:
        yield slots

    make: Callable[..., FilePool] = pool
    with (
        mock.patch.object(launch, "Pool", make),
        mock.patch.object(launch, "connected", no_cluster),
    ):
        yield
