"""Sweeps made up for tests: the files of a sweep's folder with plausible numbers in them, and no
model run.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from PIL import Image

from orchestrator.store import events
from orchestrator.store.files import EVENTS, write_sweep_text
from orchestrator.store.identity import Identity, write_identity
from orchestrator.store.names import SettingNames
from orchestrator.store.records import EarlyStop, TrialRecord, write_trial
from search_spaces.presets import PRESETS
from search_spaces.trial import DecodingConfig, Sampling
from workers.data.checked_json import dump_checked
from workers.data.records import write_shard
from workers.data.shards import FORMAT
from workers.data.storage import Storage
from workers.metrics.estimate import BLOCKS, Estimate

SAMPLING = Sampling(temperature=1.0, top_k=0, top_p=1.0, cfg=1.5)
BASELINE = DecodingConfig(sampling=SAMPLING)
METRICS: Mapping[str, Mapping[str, Any]] = {
    "speedup": {
        "direction": "maximize",
        "unit": "x",
        "about": "latency of vanilla over that of the setting",
    },
    "latency": {
        "direction": "minimize",
        "unit": "s/image",
        "about": "seconds for an image at the timing batch",
    },
    "step_compression": {
        "direction": "maximize",
        "unit": "tokens/pass",
        "about": "tokens of an image per target pass",
    },
    "fid": {
        "direction": "minimize",
        "unit": "",
        "about": "Fréchet distance to the reference images",
    },
    "drift": {
        "direction": "minimize",
        "unit": "",
        "about": "Fréchet distance to vanilla's images of the captions",
    },
    "clip_score": {"direction": "maximize", "unit": "", "about": "agreement of image and caption"},
}
NEEDS = {
    "speedup": ["timings"],
    "latency": ["timings"],
    "step_compression": ["emitted", "passes"],
    "fid": ["features", "reference"],
    "drift": ["features", "baseline"],
    "clip_score": ["score.clip_score"],
}
CAPTIONS = (
    "a large red circle on a plain green background",
    "two <b>blue</b> rings & a star",
    "a small “white” cross",
)
IMAGES, GRID, ENDED = 192, (8, 8), "2026-01-02T03:{:02d}:{:02d}+00:00"


def settings(count: int, rng: np.random.Generator) -> list[tuple[str, DecodingConfig]]:
    """Label and setting of each trial: vanilla, some presets, vanilla at another temperature, then
    proposals.
    """
    made = [
        (name, PRESETS[name].with_sampling(SAMPLING))
        for name in ("vanilla", "eagle2", "lantern", "cool")
    ]
    made.append(("vanilla, cooler", DecodingConfig(sampling=Sampling(0.9, 0, 1.0, 1.5))))
    while len(made) < count:
        rule: dict[str, Any] = [
            {},
            {
                "neighbourhood": "additive",
                "k": int(rng.integers(2, 200)),
                "delta": round(float(rng.random()) * 0.4, 3),
            },
            {
                "neighbourhood": "multiplicative",
                "k": 50,
                "lambda": round(1 + 4 * float(rng.random()), 2),
            },
            {"schedule": "exponential", "budget": round(1 + float(rng.random()), 2), "nu": 0.1},
        ][int(rng.integers(4))]
        tree: dict[str, Any] = [
            {"policy": "chain", "length": int(rng.integers(2, 7))},
            {"policy": "dynamic", "depth": int(rng.integers(2, 6)), "width": 4, "nodes": 8},
        ][int(rng.integers(2))]
        setting = {"drafter": "eagle", "tree": tree, "acceptance": rule}
        made.append(("", DecodingConfig.from_mapping(setting).with_sampling(SAMPLING)))
    return made[:count]


def metrics_of(setting: DecodingConfig, rng: np.random.Generator) -> dict[str, Estimate]:
    """Numbers as they might come out: looser rules are faster and worse."""
    flat = setting.flat()
    is_relaxed = float(flat.get("acceptance.delta", 0)) * 2 + math.log(
        float(flat.get("acceptance.lambda", 1))
    )
    is_relaxed += 1.5 * (float(flat["acceptance.budget"]) - 1)
    drafted = setting.policy.bounds.depth > 0
    steps = 1 + drafted * (0.8 + 0.9 * is_relaxed + 0.1 * min(setting.policy.bounds.depth, 5))
    speed = max(0.2, steps * (0.75 if drafted else 1.0) * float(np.exp(0.05 * rng.normal())))
    cooler = setting.sampling is not None and setting.sampling.temperature < 1
    fid = 4 + 1.5 * is_relaxed**1.5 - 0.6 * cooler + 0.15 * float(rng.normal())
    drift = 0.4 + is_relaxed + 0.5 * cooler + 0.05 * abs(float(rng.normal()))
    return {
        "speedup": Estimate(speed, 0.02 * speed, 9),
        "latency": Estimate(0.5 / speed, 0.01 / speed, 9),
        "step_compression": Estimate(steps, 0.01, IMAGES),
        "fid": _jackknifed(fid, 0.12),
        "drift": _jackknifed(drift, 0.05)
        if setting != BASELINE
        else Estimate(0.0, 0.0, IMAGES, (0.0,) * 24),
        "clip_score": Estimate(30 - 2 * is_relaxed + 0.2 * float(rng.normal()), 0.1, IMAGES),
    }


def _jackknifed(value: float, error: float) -> Estimate:
    """A metric with replicates, most of whose error all trials share."""
    shared, own = (
        np.random.default_rng(seed).normal(size=24) for seed in (0, int(1e9 * abs(value)))
    )
    effects = 0.9 * shared + 0.4 * own
    effects -= effects.mean()
    replicates = value + effects * error / np.sqrt(23 / 24 * np.square(effects).sum())
    return Estimate(value, error, IMAGES, tuple(replicates.tolist()))


def identity(name: str, **changed: Any) -> Identity:
    """The identity of a sweep; `changed` replaces entries of its plain data."""
    return Identity.from_mapping(
        {
            "name": name,
            "experiment": "0123456789abcdef0123",
            "format": FORMAT,
            "target": "scenes",
            "models": {"target.safetensors": "0f" * 8, "eagle.safetensors": "1e" * 8},
            "extractors": {
                "features": "scenes-features 2d2d2d2d",
                "clip_score": "scenes-clip 3c3c3c3c",
            },
            "captions": {"count": IMAGES, "hash": "4b" * 8, "source": "scenes"},
            "reference": {"identity": "5a" * 8, "count": 4096, "source": "scenes"},
            "seed": 0,
            "grid": list(GRID),
            "image_size": 32,
            "baseline": BASELINE.to_mapping(),
            "metrics": {key: {**entry, "needs": NEEDS[key]} for key, entry in METRICS.items()},
            "objectives": [
                {"metric": "speedup", "direction": "maximize"},
                {"metric": "fid", "direction": "minimize"},
            ],
            "constraints": ["clip_score >= 0.9 * vanilla"],
            "versions": {"specfrontier": "0.1.0"},
            "files": {},
            "samples": 1,
            "device": "cpu",
            "threads": None,
            "numerics": {},
            "timing": {"images": 8, "batch": 1, "repetitions": 1},
            "plugins": [],
            "started": "2026-01-02T03:00:00+00:00",
            **changed,
        }
    )


def write_sweep(
    folder: Path,
    trials: int = 20,
    seed: int = 0,
    name: str = "synthetic",
    *,
    budget: int | None = None,
    shards: bool = False,
    failed: Sequence[int] = (7,),
    stopped: Mapping[int, int] | None = None,
    repeated: Mapping[int, int] | None = None,
    about: str = "",
    **changed: Any,
) -> list[TrialRecord]:
    """Write a sweep of `trials` trials into `folder`; returns its records by number.

    failed: numbers of failed trials. stopped: {trial: rival} of trials that stopped early.
    repeated: {later: earlier} trials of one setting. shards: image rows as well. budget: trials
    planned (default: as many as there are). about: of sweep.yaml. changed: entries of identity.json
    to replace.
    """
    rng = np.random.default_rng(seed)
    storage = Storage(str(folder))
    made = settings(trials, rng)
    facts = identity(name, **changed)
    planned = {"name": name, "about": about, "budget": {"trials": budget or trials}}
    write_sweep_text(storage, yaml.safe_dump(planned, sort_keys=False))
    write_identity(storage, facts)
    records: list[TrialRecord] = []
    log: list[events.Event] = [events.Launch(at=facts.started, note="starting workers")]
    names = SettingNames(facts.sampling)
    for number, (label, setting) in enumerate(made):
        twin = records[repeated[number]] if repeated and number in repeated else None
        record = _record(number, label, setting, rng, number in failed, twin)
        if number in (stopped or {}):
            record = stop_early(record, (stopped or {})[number])
        if shards and record.state == "complete" and twin is None:
            record = _with_shard(storage, record, rng)
        write_trial(storage, record)
        _write_pictures(storage, record.digest, rng)
        records.append(record)
        log += _events(record, names)
    lines = [dump_checked(event.to_mapping()) + b"\n" for event in log]
    storage.write(EVENTS, b"".join(lines))
    return records


def stop_early(record: TrialRecord, rival: int) -> TrialRecord:
    """The record of a complete trial, had racing stopped it at half of its images. Its values are
    too good there.
    """
    images = record.images // 2
    metrics = {
        name: replace(entry, value=entry.value / 2, n=images)
        for name, entry in record.metrics.items()
    }
    metrics["speedup"] = replace(metrics["speedup"], value=99.0)
    return replace(
        record,
        state="stopped",
        metrics=metrics,
        history=((images, metrics),),
        images=images,
        cause=f"trial {rival} is better in both",
        stop=EarlyStop(rival, images, 1e-4),
    )


def _record(
    number: int,
    label: str,
    setting: DecodingConfig,
    rng: np.random.Generator,
    fails: bool,
    twin: TrialRecord | None,
) -> TrialRecord:
    started, finished = (
        ENDED.format((number + part) // 60, (number + part) % 60) for part in (0, 1)
    )
    config: DecodingConfig | None = setting
    if fails:
        cause = "OutOfMemoryError: at batch 24, after 48 did not fit either"
        return TrialRecord(
            number, label, "failed", config, cause=cause, started=started, finished=finished
        )
    metrics: Mapping[str, Estimate] = metrics_of(setting, rng)
    if twin is not None:
        config, metrics = twin.config, twin.metrics
    half = {
        key: Estimate(entry.value * 1.1, math.inf, entry.n // 2) for key, entry in metrics.items()
    }
    return TrialRecord(
        number=number,
        label=label,
        state="complete",
        config=config,
        metrics=metrics,
        constraints={"clip_score >= 0.9 * vanilla": 27.0 - metrics["clip_score"].value},
        history=((IMAGES // 2, half), (IMAGES, metrics)),
        shards=twin.shards if twin is not None else (),
        passes={1: (143 / metrics["speedup"].value,) * (BLOCKS + 1)},
        images=IMAGES,
        seconds=12.5,
        duplicate_of=None if twin is None else twin.number,
        started=started,
        finished=finished,
    )


def _events(record: TrialRecord, names: SettingNames) -> list[events.Event]:
    """The events of a trial."""
    started = events.TrialStarted(
        record.number, record.label, names.name(record.config), IMAGES, 1, 1, {}, at=record.started
    )
    return [started, replace(events.TrialFinished.of(record, names), at=record.finished)]


def _with_shard(storage: Storage, record: TrialRecord, rng: np.random.Generator) -> TrialRecord:
    """The record with one quality shard of a row per caption."""
    count, cells = len(CAPTIONS), GRID[0] * GRID[1]
    rows = {
        "caption_id": pa.array(range(count), pa.int64()),
        "caption": pa.array(CAPTIONS, pa.string()),
        "sample": pa.array([0] * count, pa.int32()),
        "tokens": pa.array(rng.integers(0, 512, (count, cells)).tolist(), pa.list_(pa.int32())),
        "emitted": pa.array([[2] * (cells // 2)] * count, pa.list_(pa.int32())),
        "passes": pa.array([cells // 2] * count, pa.int32()),
        "latency": pa.array(rng.random(count), pa.float64()),
    }
    facts = {
        "kind": "quality",
        "config": record.config.to_mapping() if record.config else {},
        "experiment": "0123456789abcdef0123",
    }
    name = f"shards/quality-{record.digest}{record.number:04d}.parquet"
    write_shard(storage, name, pa.table(rows), facts)
    return replace(record, shards=(name,))


def _write_pictures(storage: Storage, digest: str, rng: np.random.Generator) -> None:
    """A tiny picture and heat map under the digest of a setting."""
    for folder in ("pictures", "heatmaps"):
        buffer = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(buffer, "PNG")
        storage.write(f"{folder}/{digest}.png", buffer.getvalue())
