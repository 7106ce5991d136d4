"""The table of predictions: one worker function writes it, and the search and `specfrontier
predict` read it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from search_spaces.params import ConfigError
from search_spaces.trial import DecodingConfig
from workers.data.captions import Caption
from workers.data.shards import PredictTask
from workers.decoding.state import Request
from workers.loading.models import Models
from workers.metrics.estimate import Estimate
from workers.replay.costs import ImageCost
from workers.replay.prediction import QUANTITIES, Prediction
from workers.replay.replayer import MAX_STEPS, Replayer, recording_key
from workers.runtime.timing import time_images


class PredictedSetting(NamedTuple):
    """A row of the table."""

    config: DecodingConfig
    params: Mapping[str, Any] | None  # parameters in the study of a search; None: not in its space
    prediction: Prediction
    cost: ImageCost | None  # None: not timed


def why_unpredictable(config: DecodingConfig) -> str | None:
    """The reason why replay cannot describe a setting; None if it can."""
    try:
        if not config.is_vanilla:
            recording_key(config)
    except ConfigError as error:
        return str(error)
    return None


def check_predictable(configs: Iterable[DecodingConfig]) -> None:
    """Raise ValueError if replay can describe none of these settings, or if none of them drafts."""
    reasons = set()
    for config in configs:
        if not config.is_vanilla:
            reason = why_unpredictable(config)
            if reason is None:
                return
            reasons.add(reason)
    why = "; ".join(sorted(reasons)) or "it has no setting with a drafter"
    raise ValueError(
        f"space: replay can describe none of its settings ({why}); run the sweep with another "
        "search.sampler, such as tpe"
    )


def predict_settings(
    models: Models,
    captions: Sequence[Caption],
    task: PredictTask,
    *,
    seed: int = 0,
    max_steps: int = MAX_STEPS,
    log: Callable[[str], None] = lambda line: None,
) -> pa.Table:
    """Record the task's captions, time some of its settings, and predict all.

    The table has a row per setting: its digest, its config and its parameters in the study as JSON,
    for each of `QUANTITIES` the value and its standard error, and the seconds of an image
    (`ImageCost`), null for a setting that was not timed.

    Args:
        models: the models.
        captions: captions of the sweep.
        task: the settings, and how many captions are recorded.
        seed: seed of the images.
        max_steps: about so many steps are kept of a recording.
        log: gets lines about the progress.

    Raises:
        ConfigError: the model does not support a setting, or replay cannot describe it.
        DecodingError: see `Engine`.
    """
    requests = [Request(caption.id, caption.text) for caption in captions[: task.captions]]
    replayer = Replayer(models, requests, seed=seed, batch=task.batch, max_steps=max_steps)
    log(f"recording {len(requests)} images for each drafter and kind of tree")
    replayer.record(task.configs)
    if task.timed:
        log(f"timing {len(task.timed)} settings")
    costs = {config: _time(replayer, config, task.timing_batch) for config in task.timed}
    log(f"predicting {len(task.configs)} settings")
    predictions = [replayer.predict(config) for config in task.configs]
    arrays = {
        "digest": pa.array([config.digest() for config in task.configs], pa.string()),
        "config": pa.array(
            [json.dumps(config.to_mapping()) for config in task.configs], pa.string()
        ),
        "params": pa.array(task.params, pa.string()),
        "approximate": pa.array([prediction.approximate for prediction in predictions], pa.bool_()),
    }
    for name in QUANTITIES:
        arrays[name] = pa.array(
            [prediction.values[name].value for prediction in predictions], pa.float64()
        )
        arrays[f"{name}_error"] = pa.array(
            [prediction.values[name].error for prediction in predictions], pa.float64()
        )
    for field in ImageCost._fields:
        arrays[f"cost_{field}"] = pa.array(
            [getattr(costs.get(config), field, None) for config in task.configs], pa.float64()
        )
    return pa.table(arrays)


def read_predictions(table: pa.Table, captions: int) -> list[PredictedSetting]:
    """The rows of a table of predictions from so many recorded images. Old tables have no costs,
    and do not say whether a prediction is approximate.
    """
    settings = []
    for row in table.to_pylist():
        values = {name: Estimate(row[name], row[f"{name}_error"], captions) for name in QUANTITIES}
        costs = [row.get(f"cost_{field}") for field in ImageCost._fields]
        settings.append(
            PredictedSetting(
                DecodingConfig.from_mapping(json.loads(row["config"])),
                json.loads(row["params"]),
                Prediction(values, row.get("approximate", False)),
                None if None in costs else ImageCost(*costs),
            )
        )
    return settings


def _time(replayer: Replayer, config: DecodingConfig, batch: int) -> ImageCost:
    """The cost of a setting on two batches of images, after one image that is not timed."""
    engine = replayer.engine(config, batch)
    requests = replayer.requests
    list(engine.run(requests[:1]))
    _, _, results = time_images(
        lambda requests: list(engine.run(requests)), requests[: 2 * batch], engine.device
    )
    return ImageCost.of(result.statistics for result in results)
