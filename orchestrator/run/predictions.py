"""Predicts a whole search space from a few recorded images: accepted length, speed-up and cost of every setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from orchestrator.results.describe import family
from orchestrator.results.names import SettingNames
from orchestrator.results.pareto import nondominated
from orchestrator.results.sweep import Sweep
from orchestrator.results.trials import typed_table
from orchestrator.run.predicted_pool import can_run, draw_settings, split_predictable
from orchestrator.run.preflight_models import check_configs, in_section, models_entry
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, NoDrafter
from workers.data.captions import read_captions
from workers.decoding.state import Request
from workers.loading.models import Capabilities, Models
from workers.loading.models_yaml import load_entry
from workers.metrics.estimate import Estimate
from workers.replay.correction import Correction, Observation
from workers.replay.costs import CostModel, ImageCost, configs_to_time, speedup
from workers.replay.pool import LENGTH, predict_setting, why_unpredictable
from workers.replay.replayer import Replayer

if TYPE_CHECKING:
    import pyarrow

_FACTS = {"setting": str, "label": str, "family": str, "on_front": bool, "approximate": bool, "digest": str}
_AXES = (("speedup", "maximize"), ("excess", "minimize"))  # of the predicted front


@dataclass(frozen=True, slots=True)
class PredictedSetting:
    """A setting and its predictions by name: mean_accepted_length, speedup, and the measures of `StepOutcomes`.

    approximate: see `Prediction`.
    """

    label: str
    config: DecodingConfig
    values: dict[str, Estimate]
    approximate: bool = False
    on_front: bool = False


@dataclass(frozen=True)
class PredictedSpace:
    """The settings of a space, and why others could not be predicted (by reason: their number).

    corrected_by: trials that the predictions were corrected by.
    """

    settings: list[PredictedSetting]
    left_out: dict[str, int]
    sweep: SweepConfig
    corrected_by: int = 0

    @property
    def front(self) -> list[PredictedSetting]:
        """The settings that no other beats in predicted speed-up and excess, by rising speed-up."""
        members = [setting for setting in self.settings if setting.on_front]
        return sorted(members, key=lambda setting: setting.values["speedup"].value)

    @cached_property
    def names(self) -> SettingNames:
        """The names of the settings."""
        return SettingNames(self.sweep.sampling)

    def table(self) -> pyarrow.Table:
        """A row per setting: name, label, front, config digest, every key of the config, every value with its error."""
        rows = []
        for setting in self.settings:
            row = {
                "setting": self.names.name(setting.config),
                "label": setting.label,
                "family": family(setting.config),
                "on_front": setting.on_front,
                "approximate": setting.approximate,
                "digest": setting.config.digest(),
                **setting.config.flat(),
            }
            for name, estimate in setting.values.items():
                row |= {name: estimate.value, f"{name}_error": estimate.error}
            rows.append(row)
        return typed_table(rows, _FACTS)


def predict_space(
    sweep: SweepConfig,
    *,
    count: int,
    captions: int,
    device: torch.device,
    log: Callable[[str], None],
    recordings: Path | None = None,
    trials: Sweep | None = None,
) -> PredictedSpace:
    """Record the exact rule, time a few settings, and predict `count` settings of the space and all enqueued ones.

    captions: images that are recorded, the first of the sweep's. recordings: a folder that keeps them. trials: a sweep
    whose trials correct the predictions.

    Raises:
        ConfigError, ValueError: the models do not support the space; replay can describe none of it; the trials are of
            other weights.
        DecodingError: logits are not finite.
    """
    entry = models_entry(sweep)
    models = load_entry(entry, device)
    capabilities = Capabilities.of(models)
    sweep = sweep.resolve(capabilities.sampling)
    check_configs(sweep, capabilities)
    drawn, left_out = split_predictable(draw_settings(sweep, capabilities, count))
    pool = [(setting.label, setting.config) for setting in drawn]
    with in_section("captions"):
        requests = [Request(c.id, c.text) for c in read_captions(**sweep.captions.to_mapping())[:captions]]
    replayer = Replayer(models, requests, seed=sweep.seed, folder=recordings)
    measured = [] if trials is None else measured_trials(trials, models, capabilities)
    log(f"recording {len(requests)} images for each drafter and kind of tree")
    replayer.record([*(config for _, config in pool), *(config for config, _ in measured)])
    observations = [Observation(config, replayer.predict(config), length) for config, length in measured]
    correction = Correction.fit(observations) if observations else None
    to_time = configs_to_time(config for _, config in pool)
    log(f"timing {len(to_time)} settings")
    costs = CostModel({config: _time(replayer, config, requests, sweep.timing.batch) for config in to_time})
    log(f"predicting {len(pool)} settings")
    settings = [_predict(replayer, costs, correction, label, config) for label, config in pool]
    values = [[setting.values[name].value for name, _ in _AXES] for setting in settings]
    front = nondominated(values, [direction for _, direction in _AXES])
    settings = [replace(s, on_front=bool(member)) for s, member in zip(settings, front, strict=True)]
    return PredictedSpace(settings, left_out, sweep, len(observations))


def measured_trials(trials: Sweep, models: Models, capabilities: Capabilities) -> list[tuple[DecodingConfig, Estimate]]:
    """The settings of a sweep that these models can run and replay can describe, with their mean accepted lengths.

    Raises:
        ValueError: the sweep's weights are not these models'.
    """
    changed = [name for name, known in trials.identity.models.items() if models.hashes.get(name, known) != known]
    if changed:
        problem = f"other weights of {', '.join(changed)}; name a sweep of the same models"
        raise ValueError(f"{trials.storage.display_name}: its trials ran with {problem}")
    found = []
    for record in trials.records:
        length, config = record.metrics.get(LENGTH), record.config
        if length is None or length.error is None or config is None or isinstance(config.drafter, NoDrafter):
            continue
        if can_run(capabilities, config) and why_unpredictable(config) is None:
            found.append((config, Estimate(**asdict(length))))
    return found


def _time(replayer: Replayer, config: DecodingConfig, requests: Sequence[Request], batch: int) -> ImageCost:
    """The cost of a setting on two batches of images, after one that warms it up."""
    replayer.run(config, requests[:1], 1)
    return ImageCost.of(result.statistics for result in replayer.run(config, requests[: 2 * batch], batch))


def _predict(
    replayer: Replayer, costs: CostModel, correction: Correction | None, label: str, config: DecodingConfig
) -> PredictedSetting:
    vanilla = next(cost for timed, cost in costs.timed.items() if isinstance(timed.drafter, NoDrafter))
    prediction = predict_setting(replayer, config)
    if correction is not None and not isinstance(config.drafter, NoDrafter):
        prediction = correction(config, prediction)
    length, tokens = prediction.mean_accepted_length, replayer.models.target.grid.tokens
    values = {LENGTH: length, "speedup": speedup(length, costs.cost(config), vanilla, tokens), **prediction.cost}
    return PredictedSetting(label, config, values, prediction.approximate)
