"""The evaluator: loads models, captions and nets once, then turns tasks into files. It does not know Ray or the search.

The name of a result's file follows from its task: a file that exists is not computed again.
"""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from search_spaces.plugins import load_plugins
from workers.data.captions import captions_hash, read_captions
from workers.data.records import ShardError, read_shard, write_shard
from workers.data.reference import FILE
from workers.data.shards import PREDICTIONS, Experiment, MeasureTask, PredictTask, QualityShard, TimingShard
from workers.data.storage import Storage
from workers.decoding.state import Request
from workers.decoding.statistics import Result
from workers.loading.models_yaml import Entry, folder_entry, load_entry
from workers.metrics.extractors import Extractors, ImageScores
from workers.metrics.metric import REFERENCE
from workers.metrics.registry import select_metrics
from workers.metrics.sweep_reference import SweepReference
from workers.runtime.device import compute_facts, pick_device, versions
from workers.runtime.engines import Engines
from workers.runtime.memory import guard_memory, in_chunks, limit_memory
from workers.runtime.numerics import measure_numerics
from workers.runtime.shard_tables import quality_table, timing_table
from workers.runtime.specification import WorkerSpec
from workers.runtime.timing import time_pairs
from workers.runtime.trial_metrics import ShardReader, compute_trial_metrics, draw_pictures, read_metrics, write_metrics

_STORE_TOKEN = "store.id"  # a file that the driver writes before workers start
IMAGES_PER_DECODE = 64  # decoded from tokens together


def _open_store(spec: WorkerSpec) -> Storage:
    """The sweep's store.

    Raises:
        ValueError: it is not the driver's store, such as a folder of the same name on another machine.
    """
    storage = Storage(spec.store)
    is_drivers = spec.token is None or (
        storage.exists(_STORE_TOKEN) and storage.read(_STORE_TOKEN).decode("utf-8", "replace") == spec.token
    )
    if not is_drivers:
        raise ValueError(
            f"{storage.display_name}: on {platform.node()} this is not the folder that the driver writes to; "
            "give --out a bucket, or a folder that all machines share"
        )
    return storage


class Evaluator:
    """Runs a sweep's tasks on this machine.

    Raises:
        ValueError: no such device, metric or captions; a caption that the target cannot read.
        WeightsError: a weight file is missing, damaged or of another family.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        load_plugins()  # before the weights: one may be missing on this machine
        self.spec, self.storage = spec, _open_store(spec)
        self.device = pick_device(spec.device)
        memory = limit_memory(self.device, spec.gpu_share)
        entry = folder_entry() if spec.models is None else Entry.from_mapping(spec.models)
        self.models = load_entry(entry, self.device)
        self.captions = read_captions(**spec.captions)
        texts = [caption.text for caption in self.captions]
        target = self.models.target
        target.check(texts)  # every caption, before the first image is generated
        self._cancelled = threading.Event()
        self._running: dict[str, Any] | None = None
        self.engines = Engines(self.models, spec.seed, self._cancelled.is_set)
        self.capabilities = self.engines.capabilities
        self.extractors = Extractors.load(
            entry.folder,
            image_size=self.capabilities.image_size,
            captions=texts,
            device=self.device,
            weights=entry.metrics,
            metrics=spec.metrics,
        )
        self.experiment = Experiment(
            models=self.models.hashes,
            captions=captions_hash(self.captions),
            seed=spec.seed,
            extractors=self.extractors.identities,
            precision=str(next(target.parameters()).dtype).removeprefix("torch."),
        )
        side = self.capabilities.image_size
        self._sweep_reference = SweepReference(self.storage, spec.reference, self.extractors, side)
        self.reference = self._sweep_reference.facts
        select_metrics(spec.metrics, self.available)
        self._measured = {"memory": memory, "numerics": measure_numerics(target, self.extractors, texts)}

    @property
    def available(self) -> set[str]:
        """The inputs of metrics that this model, its captions and the sweep's sections provide."""
        return self.extractors.available(reference=self.reference is not None)

    def facts(self) -> dict[str, Any]:
        """What was loaded and what it can compute, as plain data."""
        metrics, unavailable = select_metrics(None, self.available)
        source = str(self.spec.captions.get("source", "scenes"))
        return {
            "capabilities": self.capabilities.to_mapping(),
            "models": dict(self.models.hashes),
            "extractors": dict(self.experiment.extractors),
            "precision": self.experiment.precision,
            "metrics": {metric.name: metric.description for metric in metrics},
            "without": unavailable | dict(self.extractors.unavailable),
            "captions": {"count": len(self.captions), "hash": self.experiment.captions, "source": source},
            "reference": self.reference,
            **self._measured,
            **compute_facts(self.device),
        }

    def cancel(self, task: Mapping[str, Any] | None = None) -> None:
        """Stops the running task before its next round; with `task`, only if that is the running one."""
        if task is None or task == self._running:
            self._cancelled.set()

    def run(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Runs a task by its "kind": quality, timing, measure, reference or predict; see the method of that name.

        If shards are damaged or missing, the result is {"unusable": the reason by the shard's name} instead.

        Raises:
            ValueError: no such kind.
            Cancelled: `cancel` was called while it ran.
        """
        self._cancelled.clear()
        self._running, kind = dict(task), task.get("kind")
        try:
            if kind == QualityShard.kind:
                return self.quality(QualityShard.from_mapping(task))
            if kind == TimingShard.kind:
                return self.timing(TimingShard.from_mapping(task))
            if kind == MeasureTask.kind:
                return self.measure(MeasureTask.from_mapping(task))
        except ShardError as error:
            return {"unusable": error.reasons}
        if kind == REFERENCE:
            return self.prepare_reference()
        if kind == PredictTask.kind:
            return self.predict(PredictTask.from_mapping(task))
        raise ValueError(f"unknown kind of task {kind!r}; use quality, timing, measure, reference or predict")

    def quality(self, shard: QualityShard) -> dict[str, Any]:
        """Draws a shard's images, scores them, and writes the rows, unless the file exists.

        Raises:
            ConfigError: the model does not support the config.
            OutOfMemory, Cancelled, DecodingError: see `Engines.draw`.
        """
        name, start = shard.name(self.experiment), time.perf_counter()
        if self.storage.exists(name):
            return self._stored_result(name)
        results, batch = self.engines.draw(shard.config, self._requests(shard), shard.batch)
        scores = self._score(results)
        table = quality_table(results, seed=self.spec.seed, batch=batch, features=scores.features, scores=scores.scores)
        return self._write(name, table, shard, time.perf_counter() - start)

    def timing(self, shard: TimingShard) -> dict[str, Any]:
        """Times a shard's captions with the baseline and with the config, and writes the rows, unless the file exists.

        Raises:
            ConfigError: the model does not support the config.
            OutOfMemory: the stated batch does not fit; timings at another batch would not be comparable.
            Cancelled, DecodingError: see `Engines.draw`.
        """
        name, start = shard.name(self.experiment), time.perf_counter()
        if self.storage.exists(name):
            return self._stored_result(name)
        requests = self._requests(shard)
        batches = [requests[i : i + shard.batch] for i in range(0, len(requests), shard.batch)]
        baseline, candidate = (
            partial(self.engines.draw_once, config, batch=shard.batch, alternating=(shard.baseline, shard.config))
            for config in (shard.baseline, shard.config)
        )
        rows = time_pairs(
            baseline,
            None if shard.config == shard.baseline else candidate,
            batches,
            shard.repetitions,
            self.device,
            precision=shard.precision,
            encode=self._encode,
        )
        return self._write(name, timing_table(rows), shard, time.perf_counter() - start)

    def measure(self, task: MeasureTask) -> dict[str, Any]:
        """Computes a config's metrics from its stored shards and draws its pictures, unless the file exists.

        Raises:
            ShardError: shards are missing or damaged.
            ValueError: a metric is unknown.
        """
        name, start = task.name(), time.perf_counter()
        if (stored := read_metrics(self.storage, name)) is not None:
            return stored | {"ran": False}
        metrics, unavailable = select_metrics(task.metrics, self.available)
        positions = {caption.id: position for position, caption in enumerate(self.captions)}
        shards = ShardReader(self.storage, self.extractors.columns, tuple(self.extractors.scorers), positions)
        needs_reference = any(REFERENCE in metric.needs for metric in metrics)
        references = self._sweep_reference.load() if needs_reference else {}
        names, classifier = [metric.name for metric in metrics], self.extractors.classifier
        result = compute_trial_metrics(shards, task, names, references=references, classifier=classifier)
        result["skipped"] |= unavailable
        result["pictures"] = draw_pictures(shards, task, self.models.target, task.config.digest())
        result |= {"seconds": time.perf_counter() - start, "worker": self.spec.worker}
        return write_metrics(self.storage, name, result) | {"ran": True}

    def prepare_reference(self) -> dict[str, Any]:
        """Writes the features of the real images to the store, unless they exist; returns the reference's facts.

        Raises:
            ValueError: an image cannot be read, there are too few, or the store's are those of another reference.
        """
        start = time.perf_counter()
        if self.reference is None:
            return {"name": FILE, "count": 0, "seconds": 0.0, "ran": False, "worker": self.spec.worker}
        ran = self._sweep_reference.prepare()
        seconds = time.perf_counter() - start
        return {"name": FILE, **self.reference, "seconds": seconds, "ran": ran, "worker": self.spec.worker}

    def predict(self, task: PredictTask) -> dict[str, Any]:
        """Predicts settings by replay and writes a row for each, unless the file exists.

        Raises:
            ConfigError: the model does not support a config, or replay cannot describe it.
            OutOfMemory, DecodingError: as in `Engines.draw`.
        """
        from workers.replay.prediction_table import predict_settings  # only some sweeps predict

        start, ran = time.perf_counter(), not self.storage.exists(PREDICTIONS)
        if ran:
            make = partial(predict_settings, self.models, self.captions, task, seed=self.spec.seed)
            table = guard_memory(make, f"batch {task.batch}")
            captions = min(task.captions, len(self.captions))
            metadata = {"kind": task.kind, "experiment": self.experiment.digest(), "captions": captions}
            write_shard(self.storage, PREDICTIONS, table, metadata | {"versions": versions()})
        return {"name": PREDICTIONS, "seconds": time.perf_counter() - start, "ran": ran, "worker": self.spec.worker}

    def _encode(self, requests: Sequence[Request]) -> None:
        """Encodes the captions; a text encoder that caches its latest captions then has them."""
        self.models.target.encode([request.caption for request in requests], guided=False)

    def _requests(self, shard: QualityShard | TimingShard) -> list[Request]:
        if shard.stop > len(self.captions):
            raise ValueError(f"captions {shard.start}..{shard.stop}: the sweep has {len(self.captions)}")
        samples = shard.samples if isinstance(shard, QualityShard) else 1
        captions = self.captions[shard.start : shard.stop]
        return [Request(caption.id, caption.text, sample) for caption in captions for sample in range(samples)]

    def _score(self, results: list[Result]) -> ImageScores:
        """Features and scores of the results' images, in their order."""

        def score(chunk: Sequence[Result]) -> ImageScores:
            tokens = torch.stack([result.tokens for result in chunk]).to(self.device)
            captions = [result.request.caption for result in chunk]
            return self.extractors.score(self.models.target.decode(tokens), captions)

        return ImageScores.concat(in_chunks(score, results, IMAGES_PER_DECODE))

    def _write(self, name: str, table: Any, shard: QualityShard | TimingShard, seconds: float) -> dict[str, Any]:
        """Writes a shard's table with its metadata; returns what the driver needs of it."""
        if self.storage.exists(name):  # a second worker ran the task and was quicker: trials may have read its file
            return self._stored_result(name)
        metadata = {
            "kind": shard.kind,
            "name": name,
            "setting": shard.config.digest(),
            "captions": [caption.id for caption in self.captions[shard.start : shard.stop]],
            "config": shard.config.to_mapping(),
            "experiment": self.experiment.digest(),
            "extractors": dict(self.experiment.extractors),
            "images": shard.images,
            "seconds": seconds,
            "worker": self.spec.worker,
            "cuda_graphs": self.engines.get(shard.config).uses_graphs,
            **compute_facts(self.device),
        }
        write_shard(self.storage, name, table, metadata)
        return {"name": name, "images": shard.images, "seconds": seconds, "ran": True, "worker": self.spec.worker}

    def _stored_result(self, name: str) -> dict[str, Any]:
        """What `_write` returned for a shard whose file exists."""
        _, metadata = read_shard(self.storage, name, [], fix="")
        return {"name": name, "ran": False, **{key: metadata[key] for key in ("images", "seconds", "worker")}}
