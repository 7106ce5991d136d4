"""Predicts a whole search space from a few recorded images: accepted length, speed-up and cost of every setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from orchestrator.results.describe import describe, family
from orchestrator.results.pareto import nondominated
from orchestrator.run.predicted_pool import draw_settings, split_predictable
from orchestrator.run.preflight_models import check_configs, models_entry
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, NoDrafter
from workers.data.captions import read_captions
from workers.decoding.state import Request
from workers.loading.models import Capabilities, Models
from workers.loading.models_yaml import load_entry
from workers.metrics.estimate import Estimate
from workers.replay.costs import CostModel, ImageCost, configs_to_time, speedup
from workers.replay.pool import LENGTH, predict_quantities
from workers.replay.replayer import Replayer

if TYPE_CHECKING:
    import pyarrow

_AXES = (("speedup", "maximize"), ("excess", "minimize"))  # of the predicted front
_DIGITS = 3


@dataclass(frozen=True, slots=True)
class PredictedSetting:
    """A setting and its predictions by name: mean_accepted_length, speedup, and the measures of `StepOutcomes`."""

    label: str
    config: DecodingConfig
    values: dict[str, Estimate]
    on_front: bool = False


@dataclass(frozen=True, slots=True)
class PredictedSpace:
    """The settings of a space, and why others could not be predicted (by reason: their number)."""

    settings: list[PredictedSetting]
    left_out: dict[str, int]
    sweep: SweepConfig

    @property
    def front(self) -> list[PredictedSetting]:
        """The settings that no other beats in predicted speed-up and excess, by rising speed-up."""
        members = [setting for setting in self.settings if setting.on_front]
        return sorted(members, key=lambda setting: setting.values["speedup"].value)

    def describe(self, setting: PredictedSetting) -> str:
        return setting.label or describe(setting.config, self.sweep.sampling, _DIGITS)

    def table(self) -> pyarrow.Table:
        """A row per setting: label, front, config digest, every key of the config, every value with its error."""
        import pyarrow as pa

        rows = []
        for setting in self.settings:
            row = {
                "label": self.describe(setting),
                "family": family(setting.config),
                "on_front": setting.on_front,
                "digest": setting.config.digest(),
                **setting.config.flat(),
            }
            for name, estimate in setting.values.items():
                row |= {name: estimate.value, f"{name}_error": estimate.error}
            rows.append(row)
        columns = dict.fromkeys(name for row in rows for name in row)
        return pa.table({name: [row.get(name) for row in rows] for name in columns})


def predict_space(
    sweep: SweepConfig, *, count: int, captions: int, device: torch.device, log: Callable[[str], None]
) -> PredictedSpace:
    """Record the exact rule, time a few settings, and predict `count` settings of the space and all enqueued ones.

    captions: images that are recorded, the first of the sweep's.

    Raises:
        ConfigError, ValueError: the models do not support the space; replay can describe none of it.
        DecodingError: logits are not finite.
    """
    entry = models_entry(sweep)
    models = load_entry(entry, device)
    capabilities = Capabilities.of(models)
    sweep = sweep.resolve(capabilities.sampling)
    check_configs(sweep, capabilities)
    drawn, left_out = split_predictable(draw_settings(sweep, capabilities, count))
    pool = [(setting.label, setting.config) for setting in drawn]
    requests = [Request(c.id, c.text) for c in read_captions(**sweep.captions.to_mapping())[:captions]]
    replayer = Replayer(models, requests, seed=sweep.seed)
    log(f"recording {len(requests)} images for each drafter and kind of tree")
    replayer.record(config for _, config in pool)
    to_time = configs_to_time(config for _, config in pool)
    log(f"timing {len(to_time)} settings")
    costs = CostModel({config: _time(replayer, config, requests, sweep.timing.batch) for config in to_time})
    log(f"predicting {len(pool)} settings")
    settings = [_predict(replayer, costs, label, config, models) for label, config in pool]
    values = [[setting.values[name].value for name, _ in _AXES] for setting in settings]
    front = nondominated(values, [direction for _, direction in _AXES])
    settings = [replace(s, on_front=bool(member)) for s, member in zip(settings, front, strict=True)]
    return PredictedSpace(settings, left_out, sweep)


def _time(replayer: Replayer, config: DecodingConfig, requests: Sequence[Request], batch: int) -> ImageCost:
    """The cost of a setting on two batches of images, after one that warms it up."""
    replayer.run(config, requests[:1], 1)
    return ImageCost.of(result.statistics for result in replayer.run(config, requests[: 2 * batch], batch))


def _predict(
    replayer: Replayer, costs: CostModel, label: str, config: DecodingConfig, models: Models
) -> PredictedSetting:
    vanilla = next(cost for timed, cost in costs.timed.items() if isinstance(timed.drafter, NoDrafter))
    values = predict_quantities(replayer, config)
    tokens = models.target.grid.tokens
    faster = speedup(values[LENGTH], costs.cost(config), vanilla, tokens)
    return PredictedSetting(label, config, values | {"speedup": faster})
