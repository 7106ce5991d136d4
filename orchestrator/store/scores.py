"""Scores of a trial's images that the tool of a benchmark has given (`specfrontier measure`), as
metrics of the trial.

A file holds the scores of all images of a trial, a row for each. Its metrics are computed when a
sweep is opened, with errors over the same blocks of captions as all others, so they are in every
table, front and report. As they are of the images' distribution, lossless settings share them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from orchestrator.store.files import SCORES, read_table
from orchestrator.store.identity import Identity
from orchestrator.store.records import TrialRecord
from search_spaces.constraints import check_metric
from workers.data.prompt_benchmarks import PROMPT_BENCHMARKS, PromptBenchmark
from workers.data.shards import digest
from workers.data.storage import Storage, in_parallel
from workers.metrics.definition import IMAGES, Metric
from workers.metrics.estimate import BLOCKS, Estimate
from workers.metrics.readings import Floats

if TYPE_CHECKING:
    import pyarrow

_KIND = "scores"  # of the files
_DIGITS = 8  # of an images' digest


class ScoredImage(NamedTuple):
    """A row of a file of scores."""

    caption_id: int
    sample: int
    position: int  # of the caption in the sweep's list
    group: str  # the value is the mean over groups of the means over images
    score: float


def images_digest(record: TrialRecord) -> str:
    """Identifies the images of a trial: trials of one config share them."""
    return digest(sorted(record.image_shards), _DIGITS)


def images_folder(sweep: str, record: TrialRecord) -> str:
    """The folder that the tools read, whose name they write to their results: sweep, trial and
    images.
    """
    return f"{sweep}-{record.number}-{images_digest(record)}"


def score_file(benchmark: PromptBenchmark, record: TrialRecord) -> str:
    """The name of a trial's file of scores."""
    return f"{SCORES}/{benchmark.name}-{images_digest(record)}.parquet"


def write_scores(
    storage: Storage, benchmark: PromptBenchmark, record: TrialRecord, rows: Sequence[ScoredImage]
) -> None:
    """Store the scores of a trial's images, in place of earlier ones."""
    import pyarrow as pa

    from workers.data.records import write_shard

    table = pa.Table.from_pylist([row._asdict() for row in rows], _schema())
    name = score_file(benchmark, record)
    write_shard(storage, name, table, {"kind": _KIND, "name": name})


def with_scores(
    storage: Storage, identity: Identity, records: Sequence[TrialRecord]
) -> tuple[Identity, Sequence[TrialRecord]]:
    """A sweep's identity and records with the metrics of the scores that its store has.

    Raises:
        ValueError: a file of scores is damaged.
    """
    names = set(storage.names(SCORES))
    if not names:
        return identity, records
    metrics = dict(identity.metrics)
    found = list(records)
    for benchmark in PROMPT_BENCHMARKS.values():
        files = {
            place: f"{SCORES}/{name}"
            for place, record in enumerate(records)
            if (name := score_file(benchmark, record).rpartition("/")[2]) in names
        }
        read = partial(_read, storage)
        for place, table in zip(files, in_parallel(read, files.values()), strict=True):
            values = estimates(benchmark.name, table)
            metrics |= {name: metric_of(benchmark, name) for name in values}
            record = found[place]
            found[place] = replace(record, metrics={**record.metrics, **values})
    return replace(identity, metrics=metrics), found


def _schema() -> pyarrow.Schema:
    """The columns of a file, and their types."""
    import pyarrow as pa

    return pa.schema(
        {
            "caption_id": pa.int64(),
            "sample": pa.int32(),
            "position": pa.int64(),
            "group": pa.string(),
            "score": pa.float64(),
        }
    )


def _read(storage: Storage, name: str) -> pyarrow.Table:
    """A file of scores. Raises ValueError if it is damaged, or has other content."""
    fix = "remove it, and give the results to `specfrontier measure` again"
    table = read_table(storage, name, fix=fix)
    try:
        _check(table)
    except ValueError as error:
        raise ValueError(
            f"{storage.locate(name)}: not scores of images ({error}); {fix}"
        ) from error
    return table


def _check(table: pyarrow.Table) -> None:
    """Raises ValueError unless a table is as `write_scores` has it."""
    if table.schema != _schema() or any(column.null_count for column in table.columns):
        raise ValueError("other columns")
    score = table["score"].to_numpy()
    if not len(score) or not ((score >= 0) & (score <= 1)).all():
        raise ValueError("scores must be from 0 to 1")
    for tag in filter(None, set(table["group"].to_pylist())):
        check_metric(tag)  # it is a part of a metric's name


def metric_of(benchmark: PromptBenchmark, name: str) -> Metric:
    """The metric of a benchmark that has this name: the benchmark's, or that of one of its
    groups.
    """
    about = benchmark.about
    if name != benchmark.name:
        group = name.removeprefix(f"{benchmark.name}_")
        about = f"{benchmark.title}: the share of correct images of prompts with the tag {group}"
    # its network is the tool's own, so that it depends on the images alone
    return Metric(name, "maximize", "share", about, (IMAGES,), definition=benchmark.definition)


def estimates(name: str, table: pyarrow.Table) -> dict[str, Estimate]:
    """The value `name`, the mean over groups of the means over their images, and each group's own
    as `name_group`; with the jackknife over blocks of captions.

    The error is unknown where a block has all of a group's images.
    """
    groups, group = np.unique(np.array(table["group"].to_pylist()), return_inverse=True)
    _, block = np.unique(table["position"].to_numpy() % BLOCKS, return_inverse=True)
    score = table["score"].to_numpy()
    shape = (int(block.max()) + 1, len(groups))
    sums = np.zeros(shape)
    counts = np.zeros(shape)
    np.add.at(sums, (block, group), score)
    np.add.at(counts, (block, group), 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        # [1 + G, groups]: of all blocks, then without each
        means = _left_out(sums) / _left_out(counts)
    found = {name: _estimate(means.mean(axis=1), len(score))}
    for place, label in enumerate(groups.tolist()):
        if label:
            own = int(counts[:, place].sum())
            found[f"{name}_{label}"] = _estimate(means[:, place], own)
    return found


def _left_out(sums: Floats) -> Floats:
    total = sums.sum(axis=0, keepdims=True)
    return np.concatenate([total, total - sums])


def _estimate(values: Floats, images: int) -> Estimate:
    """The estimate of values [1 + G]."""
    if len(values) < 3 or not np.isfinite(values).all():
        return Estimate(float(values[0]), math.inf, images)
    return Estimate.from_replicates(values, images)
