"""Predictions of many settings of a space, as one table: the pool that a search chooses from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import pyarrow as pa

from search_spaces.params import ConfigError
from search_spaces.trial import DecodingConfig, NoDrafter
from workers.metrics.estimate import Estimate
from workers.replay.prediction import MEASURES, Prediction
from workers.replay.replayer import Replayer, recording_key

LENGTH = "mean_accepted_length"
QUANTITIES = (LENGTH, *MEASURES)


def why_unpredictable(config: DecodingConfig) -> str | None:
    """The reason why replay cannot describe a setting; None if it can."""
    try:
        if not isinstance(config.drafter, NoDrafter):
            recording_key(config)
    except ConfigError as error:
        return str(error)
    return None


def check_predictable(configs: Iterable[DecodingConfig]) -> None:
    """Raise ValueError if replay can describe none of these settings, or if nothing is drafted in any of them."""
    reasons = set()
    for config in configs:
        if not isinstance(config.drafter, NoDrafter):
            reason = why_unpredictable(config)
            if reason is None:
                return
            reasons.add(reason)
    why = "; ".join(sorted(reasons)) or "it has no setting with a drafter"
    raise ValueError(f"space: replay can describe none of its settings ({why}); run the sweep with another sampler")


def predict_setting(replayer: Replayer, config: DecodingConfig) -> Prediction:
    """The prediction for a setting whose recording exists. Vanilla's is known."""
    if isinstance(config.drafter, NoDrafter):
        images = len(replayer.requests)
        return Prediction(Estimate(1.0, 0.0, images), dict.fromkeys(MEASURES, Estimate(0.0, 0.0, images)))
    return replayer.predict(config)


def predict_quantities(replayer: Replayer, config: DecodingConfig) -> dict[str, Estimate]:
    """`QUANTITIES` of a setting whose recording exists."""
    prediction = predict_setting(replayer, config)
    return {LENGTH: prediction.mean_accepted_length, **prediction.cost}


def prediction_table(replayer: Replayer, configs: Sequence[DecodingConfig], params: Sequence[str]) -> pa.Table:
    """Record the exact rule for these settings, and predict each. A row per setting: its digest, its config and its
    parameters in the study as JSON, and for each of `QUANTITIES` the value and its standard error.
    """
    replayer.record(configs)
    predicted = [predict_quantities(replayer, config) for config in configs]
    arrays = {
        "digest": pa.array([config.digest() for config in configs], pa.string()),
        "config": pa.array([json.dumps(config.to_mapping()) for config in configs], pa.string()),
        "params": pa.array(params, pa.string()),
    }
    for name in QUANTITIES:
        arrays[name] = pa.array([values[name].value for values in predicted], pa.float64())
        arrays[f"{name}_error"] = pa.array([values[name].error for values in predicted], pa.float64())
    return pa.table(arrays)
