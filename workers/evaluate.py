"""The evaluator: models, captions and nets loaded once; shards in, files out. It knows nothing of Ray or of the search.

Every result is a file under its own name: what is there is not made again.
"""

from __future__ import annotations

import json
import platform
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from search_spaces.trial import DecodingConfig
from workers.data.captions import captions_hash, read_captions
from workers.data.records import quality_table, read_shard, timing_table, write_shard
from workers.data.reference import FILE
from workers.data.shards import Experiment, MeasureTask, QualityShard, TimingShard
from workers.data.storage import Storage
from workers.decoding.engine import Result
from workers.decoding.state import Request
from workers.loading.models_yaml import Entry, folder_entry, load_entry
from workers.metrics.extractors import Extractors, ImageScores, available_inputs
from workers.metrics.metric import REFERENCE
from workers.metrics.registry import select_metrics
from workers.metrics.sweep_reference import SweepReference
from workers.metrics.trial_metrics import Shards, compute_trial_metrics, draw_pictures
from workers.runtime.device import device_name, pick_device, versions
from workers.runtime.engines import Engines
from workers.runtime.memory import in_chunks
from workers.runtime.specification import WorkerSpec
from workers.runtime.timing import pairs

TOKEN = "store.id"  # what the driver writes before workers start
PICTURES_AT_ONCE = 64  # decoded from tokens together


def shared_store(spec: WorkerSpec) -> Storage:
    """The sweep's store, which must be the one that the driver sees.

    Raises:
        ValueError: it is another one, as a folder of the same name on another machine is.
    """
    storage = Storage(spec.store)
    if spec.token is not None and (not storage.exists(TOKEN) or storage.read(TOKEN).decode() != spec.token):
        raise ValueError(
            f"{storage.shown}: on {platform.node()} this is not the folder that the driver writes to; give --out a "
            "bucket, or a folder that all machines share"
        )
    return storage


class Evaluator:
    """Runs a sweep's tasks on this machine.

    Raises:
        ValueError: no such device, metric or captions; a caption that the target cannot read.
        WeightsError: a weight file is missing, damaged or of another family.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        torch.set_num_threads(spec.threads)
        self.spec, self.storage = spec, shared_store(spec)
        self.device = pick_device(spec.device)
        entry = folder_entry() if spec.models is None else Entry.from_mapping(spec.models)
        self.models = load_entry(entry, self.device)
        self.captions = read_captions(**spec.captions)
        texts = [caption.text for caption in self.captions]
        target = self.models.target
        self._cancelled = threading.Event()
        self._running: dict[str, Any] | None = None
        self.engines = Engines(self.models, spec.seed, self._cancelled.is_set)
        self.capabilities = self.engines.capabilities
        target.check(texts)  # every caption, before the first is drawn
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
        self._real = SweepReference(self.storage, spec.reference, self.extractors, self.capabilities.image_size)
        self.reference = self._real.facts
        select_metrics(spec.metrics, self.available)

    @property
    def available(self) -> set[str]:
        """What metrics may need and this model, its captions and the sweep's sections give."""
        return available_inputs(self.extractors.columns, reference=self.reference is not None)

    def facts(self) -> dict[str, Any]:
        """What was loaded and what it can give, as plain data."""
        metrics, lacking = select_metrics(None, self.available)
        captions = self.spec.captions
        return {
            "capabilities": self.capabilities.to_mapping(),
            "models": dict(self.models.hashes),
            "extractors": dict(self.experiment.extractors),
            "precision": self.experiment.precision,
            "metrics": {metric.name: metric.described for metric in metrics},
            "without": lacking | dict(self.extractors.absent),
            "captions": {
                "count": len(self.captions),
                "hash": self.experiment.captions,
                "source": str(captions.get("source", "scenes")),
            },
            "reference": self.reference,
            "device": device_name(self.device),
            "threads": torch.get_num_threads(),
            "versions": versions(),
        }

    def cancel(self, task: Mapping[str, Any] | None = None) -> None:
        """Stop the running task before its next round; with `task`, only if that is the one (it may be done by now)."""
        if task is None or task == self._running:
            self._cancelled.set()

    def run(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """One task by its "kind": quality, timing, measure or reference; see the method of that name.

        Raises:
            ValueError: no such kind.
            Cancelled: `cancel` was called while it ran.
        """
        self._cancelled.clear()
        self._running, kind = dict(task), task.get("kind")
        if kind == QualityShard.kind:
            return self.quality(QualityShard.from_mapping(task))
        if kind == TimingShard.kind:
            return self.timing(TimingShard.from_mapping(task))
        if kind == MeasureTask.kind:
            return self.measure(MeasureTask.from_mapping(task))
        if kind == REFERENCE:
            return self.prepare_reference()
        raise ValueError(f"a task of kind {kind!r}: there are quality, timing, measure and reference")

    def quality(self, shard: QualityShard) -> dict[str, Any]:
        """Draw a shard's images, read them, and write the rows; a shard that is there is only told.

        Raises:
            ConfigError: the model cannot serve the setting.
            OutOfMemory, Cancelled, DecodingError: see `Engines.draw`.
        """
        name = shard.name(self.experiment)
        if self.storage.exists(name):
            return self._told(name)
        begin = time.perf_counter()
        results, batch = self.engines.draw(self._setting(shard.config), self._requests(shard), shard.batch)
        readings = self._read(results)
        table = quality_table(
            results, seed=self.spec.seed, batch=batch, features=readings.features, scores=readings.scores
        )
        return self._keep(name, table, shard.kind, shard.config, shard.images, time.perf_counter() - begin)

    def timing(self, shard: TimingShard) -> dict[str, Any]:
        """Time a shard's captions with the baseline and with the setting, and write the rows.

        Raises:
            ConfigError: the model cannot serve the setting.
            OutOfMemory: the stated batch does not fit; another one would be another measurement.
            Cancelled, DecodingError: see `Engines.draw`.
        """
        name = shard.name(self.experiment)
        if self.storage.exists(name):
            return self._told(name)
        begin = time.perf_counter()
        setting, baseline = self._setting(shard.config), self._setting(shard.baseline)
        requests = self._requests(shard)
        batches = [requests[start : start + shard.batch] for start in range(0, len(requests), shard.batch)]
        draws = [partial(self.engines.draw_once, config, batch=shard.batch) for config in (baseline, setting)]
        rows = pairs(
            draws[0],
            None if setting == baseline else draws[1],
            batches,
            shard.repetitions,
            self.device,
            read=self._read_captions,
        )
        table = timing_table(rows)
        return self._keep(name, table, shard.kind, shard.config, shard.images, time.perf_counter() - begin)

    def measure(self, task: MeasureTask) -> dict[str, Any]:
        """Metrics of a setting from its stored shards, and its pictures; what is there is only read.

        Raises:
            FileNotFoundError, ValueError: a shard is missing or damaged, or a metric is unknown.
        """
        name, begin = task.name(), time.perf_counter()
        if self.storage.exists(name):
            told: dict[str, Any] = json.loads(self.storage.read(name))
            return told | {"ran": False}
        there, lacking = select_metrics(task.metrics, self.available)
        shards = Shards(self.storage, self.extractors.stored, tuple(self.extractors.scores))
        needs_reference = any(REFERENCE in metric.needs for metric in there)
        references = self._real.load() if needs_reference else {}
        wanted, net = [metric.name for metric in there], self.extractors.reader
        found = compute_trial_metrics(shards, task, wanted, references=references, net=net)
        found["skipped"] |= lacking
        digest = self._setting(task.config).digest()
        found["pictures"] = draw_pictures(shards, task, self.models.target, digest)
        found |= {"seconds": time.perf_counter() - begin, "worker": self.spec.worker}
        self.storage.write(name, json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False).encode())
        return found | {"ran": True}

    def prepare_reference(self) -> dict[str, Any]:
        """Write the features of the real images to the store, unless they are there; returns the reference's facts.

        Raises:
            ValueError: an image cannot be read, there are too few, or the store's are those of another reference.
        """
        begin = time.perf_counter()
        if self.reference is None:
            return {"name": FILE, "count": 0, "seconds": 0.0, "ran": False, "worker": self.spec.worker}
        ran = self._real.prepare()
        seconds = time.perf_counter() - begin
        return {"name": FILE, **self.reference, "seconds": seconds, "ran": ran, "worker": self.spec.worker}

    def _read_captions(self, requests: Sequence[Request]) -> None:
        """Encode them, so that a text encoder which remembers its latest captions has them at hand."""
        self.models.target.encode([request.caption for request in requests], guided=False)

    def _setting(self, config: Mapping[str, Any]) -> DecodingConfig:
        return DecodingConfig.from_mapping(config, defaults=self.models.target.sampling)

    def _requests(self, shard: QualityShard | TimingShard) -> list[Request]:
        if shard.stop > len(self.captions):
            raise ValueError(f"captions {shard.start}..{shard.stop} are wanted, the sweep has {len(self.captions)}")
        samples = shard.samples if isinstance(shard, QualityShard) else 1
        chosen_captions = self.captions[shard.start : shard.stop]
        return [Request(caption.id, caption.text, sample) for caption in chosen_captions for sample in range(samples)]

    def _read(self, results: list[Result]) -> ImageScores:
        """Features and scores of the results' images, in their order."""

        def read(some: Sequence[Result]) -> ImageScores:
            tokens = torch.stack([result.tokens for result in some]).to(self.device)
            return self.extractors.read(self.models.target.decode(tokens), [result.request.caption for result in some])

        return ImageScores.joined(in_chunks(read, results, PICTURES_AT_ONCE))

    def _keep(
        self, name: str, table: Any, kind: str, config: Mapping[str, Any], images: int, seconds: float
    ) -> dict[str, Any]:
        """Write a shard with what it belongs to; returns what the driver wants to know."""
        meta = {
            "kind": kind,
            "config": dict(config),
            "experiment": self.experiment.digest(),
            "extractors": dict(self.experiment.extractors),
            "images": images,
            "seconds": seconds,
            "worker": self.spec.worker,
            "device": device_name(self.device),
            "threads": torch.get_num_threads(),
            "versions": versions(),
        }
        write_shard(self.storage, name, table, meta)
        return {"name": name, "images": images, "seconds": seconds, "ran": True, "worker": self.spec.worker}

    def _told(self, name: str) -> dict[str, Any]:
        """A shard that is there already, as `_keep` told of it."""
        _, meta = read_shard(self.storage, name, [])
        told = {key: meta[key] for key in ("images", "seconds", "worker")}
        return {"name": name, "ran": False, **told}
