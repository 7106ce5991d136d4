"""The atlas: random settings of every drafter, tree and rule, each measured on the same 192
captions.

    python -m benchmarks.atlas run FOLDER    the sweep (benchmarks/atlas.yaml), or the rest of it
    python -m benchmarks.atlas collect FOLDER     the table from the sweep's store
    python -m benchmarks.atlas time          seconds of a pass of every shape, one thread; resumable
    python -m benchmarks.atlas predict       what replay predicts, from other captions, as many as
                                             a sweep records
    python -m benchmarks.atlas replay             how well it predicted

The first four write to benchmarks/data, which `benchmarks.search` reads; see
`benchmarks.atlas_table`.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.atlas_replay import compare_replay
from benchmarks.atlas_table import (
    COSTS,
    DATA,
    PREDICTIONS,
    RECORDED,
    Atlas,
    StepCost,
    caption_texts,
    collect,
    read_costs,
)
from benchmarks.common import engine_for
from search_spaces.samplers import PoolOptions
from search_spaces.trial import DecodingConfig
from workers.data.shards import PredictTask
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.loading.models_yaml import load_folder
from workers.replay.prediction import QUANTITIES
from workers.replay.prediction_table import predict_settings, why_unpredictable
from workers.replay.replayer import MAX_STEPS, runs_to_record
from workers.runtime.process import use_threads

SPACE = Path(__file__).with_suffix(".yaml")


def run(folder: Path) -> int:
    """Start or resume the sweep; its exit code."""
    command = [
        sys.executable,
        "-c",
        "from orchestrator.cli.app import main; main()",
        "launch",
        str(SPACE),
    ]
    return subprocess.call([*command, "--out", str(folder), "--no-mlflow", "--resume"])


def time_shapes(configs: Iterable[DecodingConfig], images: int, folder: Path = DATA) -> None:
    """Time one setting of every shape that the file lacks, in turn with vanilla, and add it to the
    file.
    """
    use_threads(1)
    models, path = load_folder(), folder / COSTS
    stored: dict[str, Any] = (
        json.loads(path.read_text())
        if path.exists()
        else {"machine": platform.platform(), "shapes": []}
    )
    costs = read_costs(folder)
    requests = [Request(c.id, c.text) for c in caption_texts(images, _captions())]
    by_shape: dict[str, DecodingConfig] = {}
    for config in configs:
        by_shape.setdefault(config.shape.key, config)
    vanilla_shape, vanilla_config = next(
        (key, config) for key, config in by_shape.items() if config.is_vanilla
    )
    vanilla = engine_for(models, vanilla_config, batch=1)
    for shape, config in sorted(by_shape.items(), key=lambda entry: entry[0] != vanilla_shape):
        if shape in costs:
            continue
        if shape == vanilla_shape:
            costs[shape] = _cost([_seconds(vanilla, request) for request in requests])
        else:
            engine = engine_for(models, config, batch=1)
            _seconds(engine, requests[0])  # warms it up
            pairs = [
                (_seconds(vanilla, request), _seconds(engine, request)) for request in requests
            ]
            costs[shape] = _relative_cost(pairs, costs[vanilla_shape].per_pass)
        stored["shapes"].append({"config": config.to_mapping(), **asdict(costs[shape])})
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(stored))
        print(f"{len(costs)}/{len(by_shape)} {costs[shape]}", flush=True)


def _seconds(engine: Engine, request: Request) -> tuple[float, float]:
    """CPU seconds of an image's prefill and of one pass after it. Other processes on the machine do
    not count.
    """
    start = time.process_time()
    (result,) = engine.run([request])
    seconds, statistics = time.process_time() - start, result.statistics
    prefill = seconds * statistics.seconds["prefill"] / statistics.latency
    return prefill, (seconds - prefill) / statistics.passes


def _cost(images: Sequence[tuple[float, float]]) -> StepCost:
    prefill, per_pass = np.array(images).T
    return StepCost(
        float(prefill.mean()),
        float(per_pass.mean()),
        float(per_pass.std(ddof=1) / len(images) ** 0.5),
    )


def _relative_cost(
    pairs: Sequence[tuple[tuple[float, float], tuple[float, float]]], vanilla: float
) -> StepCost:
    """From images in turn with vanilla's, as multiples of what vanilla's pass took at that
    moment.
    """
    return _cost(
        [(prefill * vanilla / other, own * vanilla / other) for (_, other), (prefill, own) in pairs]
    )


def predict(
    configs: Sequence[DecodingConfig], images: int, steps: int, folder: Path = DATA
) -> None:
    """Record captions that the table does not have, and write the predictions of every setting,
    with the number of recorded images.
    """
    use_threads(1)
    described = tuple(config for config in configs if why_unpredictable(config) is None)
    task = PredictTask(described, ("null",) * len(described), captions=images, batch=48)
    table = predict_settings(
        load_folder(), caption_texts(images, _captions()), task, max_steps=steps
    )
    columns = ["digest", *(column for name in QUANTITIES for column in (name, f"{name}_error"))]
    runs = sum(map(len, runs_to_record(described).values()))
    table = table.select(columns).replace_schema_metadata({RECORDED: str(images * runs)})
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / PREDICTIONS, compression="zstd")


def _captions() -> dict[str, object]:
    from search_spaces.sweep import SweepConfig

    return SweepConfig.read(str(SPACE)).captions.to_mapping()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "collect"):
        commands.add_parser(name).add_argument("folder", type=Path)
    commands.add_parser("time").add_argument("--images", type=int, default=2)
    predict_command = commands.add_parser("predict")
    predict_command.add_argument("--images", type=int, default=PoolOptions().captions)
    predict_command.add_argument(
        "--steps", type=int, default=MAX_STEPS, help="of each recording, about"
    )
    commands.add_parser("replay")
    options = parser.parse_args(arguments)
    actions: dict[str, Callable[[], object]] = {
        "run": lambda: sys.exit(run(options.folder)),
        "collect": lambda: collect(str(options.folder)).save(),
        "time": lambda: time_shapes(Atlas.load().configs, options.images),
        "predict": lambda: predict(Atlas.load().configs, options.images, options.steps),
        "replay": lambda: print("\n".join(compare_replay(Atlas.load()))),
    }
    actions[options.command]()


if __name__ == "__main__":
    main()
