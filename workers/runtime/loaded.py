"""A sweep's models, captions and networks, loaded once in a worker, and one engine per decoding config, which is reused
across shards. Runs can be cancelled, and are retried at half the batch size if memory runs out.
"""

from __future__ import annotations

import platform
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from search_spaces.plugins import load_plugins
from search_spaces.trial import DecodingConfig
from workers.data.captions import captions_hash, read_captions
from workers.data.shards import Experiment
from workers.data.storage import Storage
from workers.decoding.engine import Engine
from workers.decoding.state import Batch, Request
from workers.decoding.statistics import Result
from workers.loading.models import Capabilities, Models
from workers.loading.models_yaml import Entry, folder_entry, load_entry
from workers.metrics.extractors import Extractors, ImageScores
from workers.metrics.metric import METRICS
from workers.metrics.registry import select_metrics
from workers.metrics.sweep_reference import SweepReference
from workers.runtime.device import compute_facts, pick_device, this_device
from workers.runtime.memory import OutOfMemory, guard_memory, in_chunks, limit_memory
from workers.runtime.numerics import measure_numerics
from workers.runtime.specification import WorkerSpec

_STORE_TOKEN = "store.id"  # a file that the driver writes before workers start
IMAGES_PER_DECODE = 64  # decoded from tokens together
_MAX_ENGINES = 4  # rebuilding their lookup tables and tree shapes for every shard is slow


class Cancelled(RuntimeError):
    """The task was cancelled; it leaves no results."""


class CancellableEngine(Engine):
    """An engine that checks before every pass whether its task was cancelled."""

    is_cancelled: Callable[[], bool]

    def step(self, batch: Batch) -> Tensor:
        if self.is_cancelled():
            raise Cancelled("the task was cancelled")
        return super().step(batch)


class Engines:
    """Engines of one model by config. A config that the model does not support is refused before anything runs."""

    def __init__(self, models: Models, seed: int, is_cancelled: Callable[[], bool]) -> None:
        self.models, self.seed, self.is_cancelled = models, seed, is_cancelled
        self.capabilities = Capabilities.of(models)
        self._engines: OrderedDict[DecodingConfig, CancellableEngine] = OrderedDict()

    def get(self, config: DecodingConfig, kept: int = _MAX_ENGINES) -> CancellableEngine:
        """The engine of a config. kept: engines that stay, at least.

        Raises:
            ConfigError: the model does not support it.
        """
        if config not in self._engines:
            self.capabilities.check(config)
            drafter = self.models.drafters.get(config.drafter.kind)
            engine = CancellableEngine(self.models.target, config, drafter, seed=self.seed)
            engine.is_cancelled = self.is_cancelled
            self._engines[config] = engine
            if len(self._engines) > max(kept, _MAX_ENGINES):
                self._engines.popitem(last=False)
        self._engines.move_to_end(config)
        return self._engines[config]

    def generate(self, config: DecodingConfig, requests: Sequence[Request], batch: int) -> tuple[list[Result], int]:
        """The results in the order of the requests, and the batch size used: `batch`, or half of it if memory ran out.

        Raises:
            ConfigError: the model does not support the config.
            OutOfMemory: not even half the batch fits.
            Cancelled: the task was cancelled.
            DecodingError: the target's logits are not finite.
        """
        half = max(1, batch // 2)
        try:
            return self.generate_once(config, requests, batch), batch
        except OutOfMemory:
            if half == batch:
                raise
        return self.generate_once(config, requests, half), half

    def generate_once(
        self,
        config: DecodingConfig,
        requests: Sequence[Request],
        batch: int,
        alternating: Collection[DecodingConfig] = (),
    ) -> list[Result]:
        """Like `generate`, without the retry at half the batch size.

        alternating: configs whose engines keep their batches and graphs meanwhile, because they take turns with this
        one.
        """

        def run() -> list[Result]:
            engine = self.get(config, len(alternating))
            for other in self._engines.keys() - {config, *alternating}:
                self._engines[other].release()
            engine.batch_size = batch
            try:
                return list(engine.run(requests))
            except (RuntimeError, MemoryError):
                del self._engines[config]  # the interrupted pass leaves its timer and caches in an undefined state
                raise

        results = {(r.request.caption_id, r.request.sample): r for r in guard_memory(run, f"batch {batch}")}
        return [results[request.caption_id, request.sample] for request in requests]


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


class LoadedSweep:
    """What this machine computes a sweep's results with.

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
        self.sweep_reference = SweepReference(self.storage, spec.reference, self.extractors, side)
        self.reference = self.sweep_reference.facts
        select_metrics(spec.metrics, self.available)
        self._measured = {"memory": memory, "numerics": measure_numerics(target, self.extractors, texts)}

    @property
    def available(self) -> set[str]:
        """The inputs of metrics that this model, its captions and the sweep's sections provide."""
        return self.extractors.available(reference=self.reference is not None)

    def facts(self) -> dict[str, Any]:
        """What was loaded and what it can compute, as plain data."""
        metrics, unavailable = select_metrics([*METRICS.all(), *self.spec.batch_metrics], self.available)
        source = str(self.spec.captions.get("source", "scenes"))
        return {
            "capabilities": self.capabilities.to_mapping(),
            "models": dict(self.models.hashes),
            "extractors": dict(self.experiment.extractors),
            "precision": self.experiment.precision,
            "metrics": {metric.name: metric.to_mapping() for metric in metrics},
            "without": unavailable | dict(self.extractors.unavailable),
            "captions": {"count": len(self.captions), "hash": self.experiment.captions, "source": source},
            "reference": self.reference,
            **self._measured,
            **compute_facts(self.device),
            "timing_device": this_device(self.device).hardware,
        }

    def score(self, results: list[Result]) -> ImageScores:
        """Features and scores of the results' images, in their order."""

        def score(chunk: Sequence[Result]) -> ImageScores:
            tokens = torch.stack([result.tokens for result in chunk]).to(self.device)
            captions = [result.request.caption for result in chunk]
            return self.extractors.score(self.models.target.decode(tokens), captions)

        return ImageScores.concat(in_chunks(score, results, IMAGES_PER_DECODE))
