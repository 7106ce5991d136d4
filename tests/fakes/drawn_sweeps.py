"""Synthetic sweeps whose tokens the built-in model can draw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from orchestrator.store.files import SWEEP, write_sweep_text
from orchestrator.store.records import TrialRecord
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.records import read_shard, write_shard
from workers.data.storage import Storage
from workers.loading.models_yaml import find_entry

SIDE, TOKENS = 12, 144
CODES = 1024


def captions(count: int) -> list[str]:
    return [f"caption {number} of a <b>scene</b>" for number in range(count)]


def write_drawn_sweep(
    folder: Path, texts: Sequence[str], trials: int = 12, **options: Any
) -> list[TrialRecord]:
    """`write_sweep` on the built-in model, with random tokens for each caption."""
    hashes = {key: value for key, value in find_entry("builtin").hashes.items() if "." not in key}
    facts: dict[str, Any] = {"grid": [SIDE, SIDE], "image_size": 48, "models": hashes}
    records = write_sweep(folder, trials=trials, shards=True, **(facts | options))
    storage, count = Storage(folder), len(texts)
    plan = yaml.safe_load(storage.read(SWEEP))
    write_sweep_text(storage, yaml.safe_dump(plan | {"models": {"file": "builtin"}}))
    rng = np.random.default_rng(list(str(options.get("name", "")).encode()))
    for record in records:
        for shard in record.shards:
            _, metadata = read_shard(storage, shard)
            rows = {
                "caption_id": pa.array(range(count), pa.int64()),
                "caption": pa.array(list(texts), pa.string()),
                "sample": pa.array([0] * count, pa.int32()),
                "tokens": pa.array(
                    rng.integers(0, CODES, (count, TOKENS)).tolist(), pa.list_(pa.int32())
                ),
                "emitted": pa.array(
                    [[1 + record.number % 3] * TOKENS] * count, pa.list_(pa.int32())
                ),
                "passes": pa.array([TOKENS] * count, pa.int32()),
                "latency": pa.array([0.1] * count, pa.float64()),
            }
            write_shard(storage, shard, pa.table(rows), metadata)
    return records
