"""The evaluator: turns a sweep's tasks into files. It does not know Ray or the search.

The name of a result's file follows from its task: a file that exists is not computed again. Each
kind of task has one function, and a function registered here is a new kind:

    @makes(QualityShard)
    def make_images(worker: LoadedSweep, shard: QualityShard) -> dict[str, Any]: ...

A function returns the facts of its file that the driver needs, as plain data: its name, `ran`
(False: the file existed and was not made again), the seconds that it took, and the worker that made
it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import torch
from PIL import Image
from torch import Tensor

from search_spaces.plugins import Registry
from workers.data.checked_json import dump_checked, load_checked
from workers.data.pictures import accepted_by_cell, heat_map, image_grid, png, to_pictures
from workers.data.records import ACCEPTANCE, ShardError, read_shard, tokens_of, write_shard
from workers.data.reference import FILE
from workers.data.shards import (
    FACTS,
    PREDICTIONS,
    TAKEN_FROM,
    TOKEN_CHECK,
    MeasureTask,
    PredictTask,
    QualityShard,
    ReferenceTask,
    Serializable,
    TimingSession,
)
from workers.data.storage import Storage
from workers.decoding.token_check import TokenCheck
from workers.decoding.token_checker import READ_TOGETHER, TokenChecker
from workers.metrics.acceptance import AcceptanceCounts, acceptance_file
from workers.metrics.costs import batch_passes
from workers.metrics.definition import IMAGES, REFERENCE, TOKENS
from workers.metrics.estimate import BLOCKS, Estimate
from workers.metrics.metric import ComputedMetric, MetricInputs, Rows
from workers.metrics.registry import compute_metrics, select_metrics
from workers.models.target import Target
from workers.runtime.device import versions
from workers.runtime.loaded import LoadedSweep
from workers.runtime.memory import OutOfMemory, guard_memory, in_chunks
from workers.runtime.sessions import run_session
from workers.runtime.shard_tables import ShardReader, quality_table, requests_of, shard_metadata
from workers.runtime.specification import WorkerSpec

_GRID_IMAGES = 16
_GRID_COLUMNS = 4

_Task = TypeVar("_Task", bound=Serializable)
_Make = Callable[[LoadedSweep, _Task], dict[str, Any]]


class TaskKind(NamedTuple):
    """A kind of task: the class of its plain data, and the function that makes its file."""

    task: type[Serializable]
    make: _Make[Any]


TASK_KINDS: Registry[TaskKind] = Registry("kind of task")


def makes(task: type[_Task]) -> Callable[[_Make[_Task]], _Make[_Task]]:
    """Decorator: the function makes the file of tasks of this class, unless the file exists."""

    def register(make: _Make[_Task]) -> _Make[_Task]:
        TASK_KINDS.add(task.kind, TaskKind(task, make), make.__module__)
        return make

    return register


class Evaluator(LoadedSweep):
    """Runs a sweep's tasks on this machine, one at a time.

    Raises:
        ValueError, WeightsError: see `LoadedSweep`.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(spec)
        self._running: dict[str, Any] | None = None

    def cancel(self, task: Mapping[str, Any] | None = None) -> None:
        """Stops the running task before its next pass; with `task`, only if that is the running
        one.
        """
        if task is None or task == self._running:
            self._cancelled.set()

    def run(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Make the file of a task in plain data, unless it exists; see the module for what is
        returned.

        If shards are damaged or missing, the result is {"unusable": the reason by the shard's name}
        instead.

        Raises:
            ConfigError: no such kind of task.
            Cancelled: `cancel` was called while it ran.
        """
        self._cancelled.clear()
        self._running = dict(task)
        try:
            return self.make(TASK_KINDS.lookup(task.get("kind")).task.from_mapping(task))
        except ShardError as error:
            # The reference is not the result of another task: only the user can replace it.
            if task["kind"] == ReferenceTask.kind:
                raise
            return {"unusable": error.reasons}

    def make(self, task: Serializable) -> dict[str, Any]:
        """The result of a task, like `run`; shards that are damaged or missing raise ShardError."""
        return TASK_KINDS[task.kind].make(self, task)


@makes(ReferenceTask)
def make_reference(worker: LoadedSweep, _: ReferenceTask) -> dict[str, Any]:
    """Compute the features of the real images; returns the reference's facts too.

    Raises:
        ValueError: an image cannot be read, there are too few, or the store's are those of another
            reference.
    """
    start = time.perf_counter()
    assert worker.reference is not None, "a sweep without a reference has no such task"
    ran = worker.sweep_reference.prepare()
    return {"name": FILE, **worker.reference, **_timed(worker, start), "ran": ran}


@makes(PredictTask)
def make_predictions(worker: LoadedSweep, task: PredictTask) -> dict[str, Any]:
    """Predict settings by replay, a row for each.

    Raises:
        ConfigError: the model does not support a config, or replay cannot describe it.
        OutOfMemory, DecodingError: as in `Engines.generate`.
    """
    from workers.replay.prediction_table import predict_settings  # only some sweeps predict

    start = time.perf_counter()
    ran = not worker.storage.exists(PREDICTIONS)
    if ran:
        make = partial(
            predict_settings, worker.models, worker.captions, task, seed=worker.spec.seed
        )
        table = guard_memory(make, f"batch {task.batch}")
        captions = min(task.captions, len(worker.captions))
        metadata = {
            "kind": task.kind,
            "experiment": worker.experiment.digest(),
            "captions": captions,
        }
        write_shard(worker.storage, PREDICTIONS, table, metadata | {"versions": versions()})
    return {"name": PREDICTIONS, **_timed(worker, start), "ran": ran}


@makes(QualityShard)
def make_images(worker: LoadedSweep, shard: QualityShard) -> dict[str, Any]:
    """Generate a shard's images and score them, a row for each; those of an earlier sweep are taken
    over.

    Raises:
        ConfigError: the model does not support the config.
        OutOfMemory, Cancelled, DecodingError: see `Engines.generate`.
    """
    about = {
        "setting": shard.config.digest(),
        "config": shard.config.to_mapping(),
        "extractors": dict(worker.experiment.extractors),
    }

    def compute() -> tuple[pa.Table, dict[str, Any]]:
        requests = requests_of(worker.captions, shard, shard.samples)
        for earlier in worker.earlier:
            if (table := earlier.find(shard, requests)) is not None:
                return table, about | {TAKEN_FROM: earlier.storage.display_name}
        results, batch = worker.engines.generate(shard.config, requests, worker.batch_of(shard))
        scores = worker.score(results)
        table = quality_table(
            results,
            seed=worker.spec.seed,
            batch=batch,
            features=scores.features,
            scores=scores.scores,
        )
        return table, about

    return _make_shard(worker, shard, compute)


@makes(TimingSession)
def make_timings(worker: LoadedSweep, session: TimingSession) -> dict[str, Any]:
    """Time a session's captions with all of its configs in turn.

    Raises:
        ConfigError: the model does not support a config.
        OutOfMemory: a batch does not fit; timings at another batch would not be comparable.
        Cancelled, DecodingError: see `Engines.generate`.
    """

    compute = partial(run_session, worker.engines, worker.captions, session, worker.spec.call)
    return _make_shard(worker, session, compute)


@makes(MeasureTask)
def make_metrics(worker: LoadedSweep, task: MeasureTask) -> dict[str, Any]:
    """Compute a config's metrics from its stored shards, and plot its pictures; returns the file's
    content too.

    Raises:
        ShardError: shards are missing or damaged.
        ValueError: a metric is unknown.
    """
    name = task.name()
    start = time.perf_counter()
    # A damaged file, and one whose shards are damaged, is computed again.
    with suppress(FileNotFoundError, ValueError):
        stored = load_checked(worker.storage.read(name))
        for shard in (*task.quality, *task.timing):
            read_shard(worker.storage, shard, [])
        if stored.get("name") == name:
            return stored | {"ran": False}
    metrics, unavailable = select_metrics(task.metrics, worker.available, worker.metrics)
    positions = {caption.id: position for position, caption in enumerate(worker.captions)}
    extractors = worker.extractors
    with_tokens = any(not {IMAGES, TOKENS}.isdisjoint(metric.needs) for metric in metrics)
    shards = ShardReader(
        worker.storage, extractors.columns, tuple(extractors.scorers), positions, with_tokens
    )
    needs_reference = any(REFERENCE in metric.needs for metric in metrics)
    references = worker.sweep_reference.load() if needs_reference else {}
    target = worker.models.target
    others = {
        "references": references,
        "classifier": extractors.classifier,
        "decode": lambda tokens: target.decode(tokens.to(target.device)),
        "captions": [caption.text for caption in worker.captions],
    }
    result = _trial_metrics(shards, task, {metric.name: metric for metric in metrics}, others)
    result["skipped"] |= unavailable
    result["pictures"] = []
    if task.quality:
        table = shards.tokens_and_passes(task.quality)
        if task.check:
            try:
                result["check"] = asdict(_check_tokens(worker, table, task))
            except OutOfMemory as error:  # the images are worth more than their check
                result["skipped"][TOKEN_CHECK] = str(error)
        digest = task.config.digest()
        result["pictures"] = _plot_pictures(worker.storage, table, target, digest)
        _write_acceptance(worker, table, digest)
    result = {"name": name, **result, **_timed(worker, start)}
    worker.storage.write(name, dump_checked(result))
    return result | {"ran": True}


def _check_tokens(worker: LoadedSweep, table: pa.Table, task: MeasureTask) -> TokenCheck:
    """Check the tokens of all images of a task.

    Raises:
        OutOfMemory: the target cannot read a whole image.
    """
    texts = {caption.id: caption.text for caption in worker.captions}
    captions = [texts[caption] for caption in table.column("caption_id").to_pylist()]
    tokens = tokens_of(table)
    sampling = task.config.sampling
    assert sampling is not None, "a shard's config has sampling"
    checker = TokenChecker(worker.models.target, sampling, worker.spec.seed)

    def add(rows: Sequence[int]) -> None:
        checker.add([captions[row] for row in rows], tokens[list(rows)])

    in_chunks(add, range(len(captions)), READ_TOGETHER)
    return checker.result()


def _trial_metrics(
    shards: ShardReader,
    task: MeasureTask,
    metrics: Mapping[str, ComputedMetric],
    others: Mapping[str, Any],
) -> dict[str, Any]:
    """The metrics of a task, their history (see `MeasureTask`), why others are skipped, and the
    device of the speeds among them ("": none). `others` are the inputs of metrics that do not come
    from shards.

    Raises:
        ShardError: shards are missing or damaged.
    """
    parts = shards.images(task.quality)
    baseline_parts = shards.images(task.baseline_quality)
    timings = shards.timings(task.timing)
    shards.check()
    full = MetricInputs(
        images=Rows.merge(parts),
        timings=timings,
        config=task.config,
        baseline=Rows.merge(baseline_parts) if task.baseline_quality else None,
        **others,
    )
    estimates, skipped = compute_metrics(full, metrics, metrics)
    for name, estimate in list(estimates.items()):
        if not math.isfinite(estimate.value):
            skipped[name] = f"its value is {estimate.value}"
            del estimates[name]
    history: list[tuple[int, dict[str, dict[str, Any]]]] = []
    if task.halfway and len(parts) > 1:
        half = replace(full, images=Rows.merge(parts[: (len(parts) + 1) // 2]), _cache={})
        history.append(
            (half.images.count, _plain(compute_metrics(half, list(estimates), metrics)[0]))
        )
    found = _plain(estimates)
    passes = {}
    if parts:
        of_images = full.column("passes").numpy()
        blocks = full.blocks.numpy()
        for batch in (1, *timings.batches):
            passes[str(batch)] = batch_passes(of_images, blocks, batch).tolist()
    return {
        "metrics": found,
        "history": [*history, (full.images.count, found)],
        "skipped": skipped,
        "passes": passes,
        "taken": sum(shards.taken.get(name, 0) for name in task.quality),
        "device": str(timings.device_of(task.config.shape) or ""),
    }


def _plain(estimates: Mapping[str, Estimate]) -> dict[str, dict[str, Any]]:
    """The estimates with finite values as plain data. An estimate whose error is unknown keeps only
    its value and its number of images.
    """
    plain = {}
    for name, estimate in estimates.items():
        if not math.isfinite(estimate.value):
            continue
        known = estimate
        if not math.isfinite(estimate.error):
            known = Estimate(estimate.value, math.inf, estimate.n)
        plain[name] = known.to_mapping()
    return plain


def _write_acceptance(worker: LoadedSweep, table: pa.Table, digest: str) -> None:
    """Write the counts of accepted drafts by group of captions, in place of those of fewer images;
    nothing if an earlier version generated images, which did not count them.
    """
    known = [name for name in ACCEPTANCE if name in table.column_names]
    if len(known) < len(ACCEPTANCE) or any(table[name].null_count for name in known):
        return
    places = {caption.id: place for place, caption in enumerate(worker.captions)}
    own = [places[caption] for caption in table["caption_id"].to_pylist()]
    histograms, tested = (table[name].to_pylist() for name in ACCEPTANCE)
    counts = AcceptanceCounts.of(
        histograms,
        tested,
        groups=[worker.captions[place].group for place in own],
        blocks=[place % BLOCKS for place in own],
    )
    write_shard(worker.storage, acceptance_file(digest), counts.to_table(), {"kind": "acceptance"})


def _plot_pictures(storage: Storage, table: pa.Table, target: Target, digest: str) -> list[str]:
    """Write the grid of the first images, if the target can decode them, and the heat map of
    accepted lengths; returns their names.
    """

    def decode(tokens: Sequence[Tensor]) -> list[Image.Image]:
        return to_pictures(target.decode(torch.stack(list(tokens)).to(target.device)))

    files = {}
    if not target.no_images:
        parts = in_chunks(decode, tokens_of(table.slice(0, _GRID_IMAGES)).unbind(), _GRID_IMAGES)
        pictures = [picture for part in parts for picture in part]
        files[f"pictures/{digest}.png"] = image_grid(pictures, _GRID_COLUMNS)
    lengths = table.column("emitted").to_pylist()
    passes = sum(map(len, lengths))
    emitted = sum(map(sum, lengths))
    title = (
        f"accepted length of each cell's pass, {len(lengths)} images (mean over passes "
        f"{emitted / passes:.2f})"
    )
    files[f"heatmaps/{digest}.png"] = heat_map(accepted_by_cell(lengths, target.grid), title)
    for name, picture in files.items():
        storage.write(name, png(picture))
    return list(files)


def _timed(worker: LoadedSweep, start: float) -> dict[str, Any]:
    return {"seconds": time.perf_counter() - start, "worker": worker.spec.worker}


def _make_shard(
    worker: LoadedSweep,
    shard: QualityShard | TimingSession,
    compute: Callable[[], tuple[pa.Table, Mapping[str, Any]]],
) -> dict[str, Any]:
    """Write a shard's table with its metadata, unless the file exists. `compute` returns the table,
    and metadata of this kind of shard.
    """
    name = shard.name(worker.experiment)
    start = time.perf_counter()
    ran = False
    metadata = dict[str, Any]()
    if not worker.storage.exists(name):
        table, about = compute()
        metadata = {**about, "images": shard.images, **_timed(worker, start)}
        # Another worker may have been faster, and trials may have read its file.
        if ran := not worker.storage.exists(name):
            common = shard_metadata(shard, worker.experiment, worker.captions, worker.device)
            write_shard(worker.storage, name, table, common | metadata)
    if not ran:
        _, metadata = read_shard(worker.storage, name, [], fix="")
    return {"name": name, **{key: metadata[key] for key in FACTS if key in metadata}, "ran": ran}
