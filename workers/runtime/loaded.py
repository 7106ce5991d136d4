"""A sweep's models, captions and networks, loaded once in a worker."""

from __future__ import annotations

import platform
import threading
from collections.abc import Sequence
from typing import Any

import torch

from search_spaces.plugins import load_plugins
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from workers.data.captions import captions_hash, read_captions
from workers.data.shards import Experiment, QualityShard
from workers.data.storage import Storage
from workers.decoding.statistics import Result
from workers.loading.models import Models
from workers.loading.models_yaml import (
    Entry,
    folder_entry,
    load_entry,
    metric_bytes,
    shape_only_models,
)
from workers.metrics.extractors import Extractors, ImageScores
from workers.metrics.library import library_metrics
from workers.metrics.metric import METRICS
from workers.metrics.registry import select_metrics
from workers.metrics.sweep_reference import SweepReference
from workers.models.checkpoint_files import collect_notes
from workers.runtime.batch_size import IMAGES_PER_DECODE, automatic_batch
from workers.runtime.device import compute_facts, pick_device, this_device
from workers.runtime.earlier import EarlierImages
from workers.runtime.engines import Engines
from workers.runtime.memory import in_chunks, limit_memory
from workers.runtime.numerics import measure_numerics
from workers.runtime.peak_memory import check_peak
from workers.runtime.specification import WorkerSpec

_STORE_TOKEN = "store.id"  # a file that the driver writes before workers start


def _open_store(spec: WorkerSpec) -> Storage:
    """The sweep's store.

    Raises:
        ValueError: it is not the driver's store, such as a folder of the same name on another
            machine.
    """
    storage = Storage(spec.store)
    is_drivers = spec.token is None or (
        storage.exists(_STORE_TOKEN)
        and storage.read(_STORE_TOKEN).decode("utf-8", "replace") == spec.token
    )
    if not is_drivers:
        raise ValueError(
            f"{storage.display_name}: on {platform.node()} this is not the folder that the driver "
            "writes to; give --out a bucket, or a folder that all machines share"
        )
    return storage


class LoadedSweep:
    """What this machine computes a sweep's results with.

    Raises:
        ValueError: no such device, metric or captions; a caption that the target cannot read; the
            sweep's peak does not fit this worker's share of the GPU.
        WeightsError: a weight file is missing, damaged or of another family.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        load_plugins()  # before the weights: one may be missing on this machine
        self.metrics = METRICS.including(library_metrics(spec.torchmetrics))
        self.spec = spec
        self.storage = _open_store(spec)
        self.earlier = [found for plain in spec.earlier if (found := EarlierImages.open(plain))]
        self.device = pick_device(spec.device)
        memory = limit_memory(self.device, spec.gpu_share)
        self._memory = memory
        self._batches = dict[DecodingConfig, int]()
        self._per_decode = IMAGES_PER_DECODE
        entry = folder_entry()
        if spec.models is not None:
            entry = Entry.from_mapping(spec.models)
        self._entry = entry
        if spec.sweep is not None and memory is not None:
            sweep = SweepConfig.from_mapping(spec.sweep)
            check_peak(sweep, entry, self._shapes(), spec.gpu_share, memory)
        with collect_notes() as notes:
            self.models = load_entry(entry, self.device)
        self.captions = read_captions(**spec.captions)
        texts = [caption.text for caption in self.captions]
        target = self.models.target
        target.check(texts)  # every caption, before the first image is generated
        self._cancelled = threading.Event()
        self.engines = Engines(self.models, spec.seed, self._cancelled.is_set)
        self.capabilities = self.engines.capabilities
        with collect_notes() as more:
            self.extractors = Extractors.load(
                entry.folder,
                image_size=self.capabilities.image_size,
                captions=texts,
                device=self.device,
                weights=entry.metrics,
                metrics=spec.metrics,
                no_images=target.no_images,
            )
        self.notes = [*notes, *more]
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
        select_metrics(spec.metrics, self.available, self.metrics)
        self._measured = {
            "memory": memory,
            "numerics": measure_numerics(target, self.extractors, texts),
        }

    @property
    def available(self) -> set[str]:
        """The inputs of metrics that this model, its captions and the sweep's sections provide."""
        return self.extractors.available(reference=self.reference is not None)

    def facts(self) -> dict[str, Any]:
        """What was loaded and what it can compute, as plain data."""
        metrics, unavailable = select_metrics(
            [*self.metrics, *self.spec.batch_metrics], self.available, self.metrics
        )
        source = str(self.spec.captions.get("source", "scenes"))
        return {
            "capabilities": self.capabilities.to_mapping(),
            "models": dict(self.models.hashes),
            "extractors": dict(self.experiment.extractors),
            "precision": self.experiment.precision,
            "metrics": {metric.name: metric.to_mapping() for metric in metrics},
            "without": unavailable | dict(self.extractors.unavailable),
            "captions": {
                "count": len(self.captions),
                "hash": self.experiment.captions,
                "source": source,
            },
            "reference": self.reference,
            "notes": self.notes,
            **self._measured,
            **compute_facts(self.device),
            "timing_device": this_device(self.device).hardware,
        }

    def batch_of(self, shard: QualityShard) -> int:
        """The images of a shard that are generated together, if memory does not run out."""
        if isinstance(shard.batch, int):
            return shard.batch
        if shard.config not in self._batches:
            self._batches[shard.config] = self._automatic_batch(shard.config)
        return min(self._batches[shard.config], shard.images)

    def _automatic_batch(self, config: DecodingConfig) -> int:
        if self._memory is None:
            return automatic_batch(self.models, config, None)
        networks = sum(metric_bytes(self._entry).values())
        return automatic_batch(self._shapes(), config, self._memory - networks)

    def _shapes(self) -> Models:
        """The models on the meta device, for a dry run."""
        with collect_notes():  # loading the models reports the notes
            return shape_only_models(self._entry, self._entry.dtype_on(self.device))

    def score(self, results: list[Result]) -> ImageScores:
        """Features and scores of the results' images, in their order. No image is decoded if no
        network reads it.
        """
        if not self.extractors.by_role and not self.extractors.scorers:
            return ImageScores({}, {})
        fitted: list[int] = []

        def score(chunk: Sequence[Result]) -> ImageScores:
            tokens = torch.stack([result.tokens for result in chunk]).to(self.device)
            captions = [result.request.caption for result in chunk]
            scores = self.extractors.score(self.models.target.decode(tokens), captions)
            fitted.append(len(chunk))
            return scores

        scores = ImageScores.concat(in_chunks(score, results, self._per_decode))
        if max(fitted, default=0) < min(self._per_decode, len(results)):
            self._per_decode = max(fitted)  # for the next shards too: a failed try takes time
        return scores
