"""The atlas: a table of many settings of the built-in model, each measured on the same captions,
that searches are replayed on. `python -m benchmarks.atlas` makes it.

benchmarks/data/atlas.parquet has a row per setting: its config, target passes of every image, and
fid and drift of every span of captions with their jackknife replicates. atlas_costs.json has
seconds of a pass of every shape, with a config of that shape: no file but a config's own digest
holds a hash of code. atlas_predictions.parquet has what replay predicts of each setting from other
captions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from search_spaces.trial import DecodingConfig
from workers.data.captions import Caption, read_captions
from workers.data.records import FEATURES, features_of, read_shard
from workers.data.reference import read_reference
from workers.data.storage import Storage
from workers.metrics.definition import Direction
from workers.metrics.estimate import BLOCKS as BLOCKS
from workers.metrics.frechet import Gaussian, distance_between, distance_to_reference

Floats = NDArray[np.float64]
DATA = Path(__file__).parent / "data"
TABLE, COSTS, PREDICTIONS = "atlas.parquet", "atlas_costs.json", "atlas_predictions.parquet"
RUNGS = (24, 48, 96)  # captions of a half
HALF = 96
# of captions
SPANS = (*((0, rung) for rung in RUNGS), (0, 2 * HALF), *((HALF, HALF + rung) for rung in RUNGS))
QUALITY = ("fid", "drift")
DIRECTIONS: tuple[Direction, ...] = ("maximize", "minimize")  # of speed-up and fid
_METADATA = b"specfrontier"
RECORDED = "recorded"  # in the metadata of the predictions' file: the number of recorded images


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of one image: `prefill` once and `per_pass` for each pass after it; error: of
    `per_pass`.
    """

    prefill: float
    per_pass: float
    error: float


@dataclass(frozen=True)
class Atlas:
    """S settings, vanilla first.

    passes [S, captions]: target passes of each image, prefill excluded. quality: by metric [S,
    spans, 1 + blocks], the value on each of `SPANS`, then with each block of its captions left out.
    depth, nodes [S]: drafted per pass. costs: by shape. predictions: columns [S] by name, NaN where
    replay cannot describe a setting. recorded: images that were drawn for the predictions.
    """

    configs: tuple[DecodingConfig, ...]
    labels: tuple[str, ...]
    passes: NDArray[np.int16]
    depth: Floats
    nodes: Floats
    quality: Mapping[str, Floats]
    facts: Mapping[str, Any]
    costs: Mapping[str, StepCost]
    predictions: Mapping[str, Floats]
    recorded: int = 0

    def __len__(self) -> int:
        return len(self.configs)

    @cached_property
    def shapes(self) -> tuple[str, ...]:
        return tuple(config.shape.key for config in self.configs)

    def mean_accepted_length(self, span: tuple[int, int]) -> Floats:
        """Tokens per pass [S, 1 + blocks] of a span."""
        return self.tokens / _left_out_means(self.passes, span)

    @property
    def tokens(self) -> int:
        """Tokens of an image after its first one: vanilla's passes."""
        return int(self.passes[0, 0])

    def speedup(self, span: tuple[int, int]) -> Floats:
        """Vanilla's seconds per image over each setting's [S, 1 + blocks], from passes and step
        costs.
        """
        vanilla, own = self.costs[self.shapes[0]], [self.costs[shape] for shape in self.shapes]
        prefill, per_pass = (
            np.array([getattr(cost, name) for cost in own]) for name in ("prefill", "per_pass")
        )
        seconds = prefill[:, None] + _left_out_means(self.passes, span) * per_pass[:, None]
        ratio: Floats = (vanilla.prefill + self.tokens * vanilla.per_pass) / seconds
        return ratio

    def objectives(self, span: tuple[int, int]) -> Floats:
        """Speed-up and fid [S, 2, 1 + blocks] of a span."""
        return np.stack([self.speedup(span), self.quality["fid"][:, SPANS.index(span)]], axis=1)

    def save(self, folder: Path = DATA) -> None:
        """Write the rows (not costs and predictions, which have files of their own)."""
        columns: dict[str, pa.Array] = {
            "label": pa.array(self.labels),
            "digest": pa.array([config.digest() for config in self.configs]),
            "config": pa.array([json.dumps(config.to_mapping()) for config in self.configs]),
            "passes": _lists(self.passes),
            "depth": pa.array(self.depth.astype(np.float32)),
            "nodes": pa.array(self.nodes.astype(np.float32)),
            **{
                name: _lists(values.reshape(len(self), -1).astype(np.float32))
                for name, values in self.quality.items()
            },
        }
        layout = {"spans": SPANS, "blocks": BLOCKS}
        table = pa.table(columns).replace_schema_metadata(
            {_METADATA: json.dumps({**self.facts, **layout}).encode()}
        )
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / TABLE, compression="zstd", compression_level=19)

    @classmethod
    def load(cls, folder: Path = DATA) -> Atlas:
        """Read the table; costs and predictions are empty where their files are missing.

        Raises:
            FileNotFoundError: the table is missing.
            ValueError: it was made with other spans or blocks of captions.
        """
        table = pq.read_table(folder / TABLE)
        facts = json.loads(table.schema.metadata[_METADATA])
        if (facts["blocks"], facts["spans"]) != (BLOCKS, [list(span) for span in SPANS]):
            raise ValueError(
                f"{folder / TABLE}: made with other spans of captions; run `benchmarks.atlas "
                "collect` again"
            )
        configs = tuple(
            DecodingConfig.from_mapping(json.loads(text)) for text in table["config"].to_pylist()
        )
        shape = (len(configs), len(SPANS), 1 + BLOCKS)
        return cls(
            configs,
            tuple(table["label"].to_pylist()),
            np.array(table["passes"].to_pylist(), dtype=np.int16),
            table["depth"].to_numpy().astype(np.float64),
            table["nodes"].to_numpy().astype(np.float64),
            {
                name: np.array(table[name].to_pylist(), dtype=np.float64).reshape(shape)
                for name in QUALITY
            },
            facts,
            read_costs(folder),
            *_read_predictions(folder, [config.digest() for config in configs]),
        )

    def select(self, rows: Sequence[int]) -> Atlas:
        """The table of these settings; the first must be vanilla."""
        index = np.array(rows)
        return replace(
            self,
            configs=tuple(self.configs[row] for row in rows),
            labels=tuple(self.labels[row] for row in rows),
            passes=self.passes[index],
            depth=self.depth[index],
            nodes=self.nodes[index],
            quality={name: values[index] for name, values in self.quality.items()},
            predictions={name: values[index] for name, values in self.predictions.items()},
        )


def read_costs(folder: Path = DATA) -> dict[str, StepCost]:
    """Costs by the shape's key; empty without a file."""
    if not (folder / COSTS).exists():
        return {}
    entries = json.loads((folder / COSTS).read_text())["shapes"]
    return {
        DecodingConfig.from_mapping(entry.pop("config")).shape.key: StepCost(**entry)
        for entry in entries
    }


def _read_predictions(folder: Path, digests: Sequence[str]) -> tuple[dict[str, Floats], int]:
    """The predictions, and the number of recorded images; none without a file."""
    if not (folder / PREDICTIONS).exists():
        return {}, 0
    table = pq.read_table(folder / PREDICTIONS)
    row_of = {digest: row for row, digest in enumerate(table["digest"].to_pylist())}
    rows = np.array([row_of.get(digest, -1) for digest in digests])
    columns = {
        name: np.where(
            rows < 0, np.nan, table[name].to_numpy(zero_copy_only=False).astype(np.float64)[rows]
        )
        for name in table.column_names
        if name != "digest"
    }
    return columns, int(table.schema.metadata[RECORDED.encode()])


def collect(store: str) -> Atlas:
    """The table of a sweep's store: its finished trials, each config once.

    Raises:
        ValueError: vanilla has not finished, or the sweep has too few captions.
    """
    storage = Storage(store)
    trials: dict[str, dict[str, Any]] = {}
    for name in storage.names("trials"):
        # as plain data: stores of all versions can be read
        trial = json.loads(storage.read(f"trials/{name}"))
        if trial["state"] == "complete":
            trials.setdefault(json.dumps(trial["config"], sort_keys=True), trial)
    rows = sorted(trials.values(), key=lambda trial: int(trial["number"]))
    configs = [DecodingConfig.from_mapping(trial["config"]) for trial in rows]
    if not configs or not configs[0].is_vanilla:
        raise ValueError(
            f"{store}: vanilla has not finished; every other setting is compared with it"
        )
    identity = json.loads(storage.read("identity.json"))
    columns = _Shards(storage, _extractor(storage, rows[0]))
    images = [columns.read(trial) for trial in rows]
    features = torch.stack([image.features for image in images])
    if features.shape[1] != 2 * HALF:
        raise ValueError(
            f"{store}: {features.shape[1]} images per trial; the table needs {2 * HALF}"
        )
    reference = read_reference(storage).features[0]
    facts = {
        name: identity[name]
        for name in ("name", "experiment", "captions", "reference", "models", "extractors")
    }
    return Atlas(
        tuple(configs),
        tuple(trial["label"] for trial in rows),
        np.stack([image.passes for image in images]),
        np.array([image.depth for image in images]),
        np.array([image.nodes for image in images]),
        _quality(features, reference),
        facts,
        {},
        {},
    )


@dataclass(frozen=True, slots=True)
class _Images:
    features: Tensor  # [captions, d] float64, in the captions' order
    passes: NDArray[np.int16]
    depth: float  # mean over passes
    nodes: float


@dataclass(frozen=True, slots=True)
class _Shards:
    storage: Storage
    extractor: str

    def read(self, trial: Mapping[str, Any]) -> _Images:
        """A trial's images, in the captions' order."""
        columns = ["caption_id", "passes", "depth", "nodes", FEATURES + self.extractor]
        names = [name for name in trial["shards"] if "/quality-" in name]
        parts = [read_shard(self.storage, name, columns, kind="quality")[0] for name in names]
        table = pa.concat_tables(sorted(parts, key=lambda part: part["caption_id"][0].as_py()))
        depth, nodes = (
            np.concatenate(table[name].to_pylist()).mean() for name in ("depth", "nodes")
        )
        passes = table["passes"].to_numpy().astype(np.int16)
        return _Images(
            features_of(table, self.extractor).double(), passes, float(depth), float(nodes)
        )


def _extractor(storage: Storage, trial: Mapping[str, Any]) -> str:
    """The name of the features that a trial's shards have."""
    shard = next(name for name in trial["shards"] if "/quality-" in name)
    names = read_shard(storage, shard, kind="quality")[0].column_names
    return next(str(name).removeprefix(FEATURES) for name in names if name.startswith(FEATURES))


def _quality(features: Tensor, reference: Tensor) -> dict[str, Floats]:
    """fid and drift [S, spans, 1 + blocks] of features [S, captions, d]; row 0 is vanilla."""
    real = Gaussian.fit(reference)
    result = {name: np.zeros((len(features), len(SPANS), 1 + BLOCKS)) for name in QUALITY}
    for place, (start, stop) in enumerate(SPANS):
        blocks, vanilla = torch.arange(start, stop) % BLOCKS, features[0, start:stop]
        for row, images in enumerate(features[:, start:stop]):
            estimates = {"fid": distance_to_reference(images, real, blocks)}
            if row:
                estimates["drift"] = distance_between(images, vanilla, blocks)
            for name, estimate in estimates.items():
                result[name][row, place] = estimate.value, *estimate.replicates
    return result


def _left_out_means(passes: NDArray[np.int16], span: tuple[int, int]) -> Floats:
    """Mean passes per image [S, 1 + blocks] of a span: of all its captions, then without each
    block.
    """
    part = passes[:, slice(*span)].astype(np.float64)
    blocks = np.arange(*span) % BLOCKS
    kept = np.concatenate([np.ones((1, len(blocks))), blocks != np.arange(BLOCKS)[:, None]])
    means: Floats = part @ kept.T / kept.sum(1)
    return means


def _lists(rows: NDArray[Any]) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])


def caption_texts(count: int, captions: Mapping[str, Any]) -> list[Caption]:
    """The next `count` captions after the sweep's."""
    first = int(captions["count"])
    return read_captions(str(captions["source"]), count=first + count, seed=int(captions["seed"]))[
        first:
    ]
