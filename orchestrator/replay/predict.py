"""Predicts settings of a search space from a few recorded images: the pool of a sweep's search, and
a space's front.

Both are one task (`PredictTask`), run by one function (`predict_settings`) and read by another
(`read_predictions`). A sweep keeps the table in its store. It is written once, before the sampler
is asked, so a resumed sweep chooses from the same pool. `specfrontier predict` also times some
settings, and corrects the predictions by trials that have run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import optuna
from optuna.samplers import RandomSampler

from orchestrator.front.pareto import Floats, nondominated
from orchestrator.replay.rounding import RoundingSampler
from orchestrator.replay.sampler import QualityFeatures, SettingsPool
from orchestrator.store.lossless import QualityGroups
from orchestrator.store.names import SettingNames, family
from orchestrator.store.records import typed_table
from orchestrator.store.sweep import Sweep
from search_spaces.params import ConfigError
from search_spaces.samplers import SAMPLERS, PoolOptions
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from workers.data.captions import Caption
from workers.data.records import read_shard
from workers.data.shards import PREDICTIONS, PredictTask
from workers.data.storage import Storage
from workers.loading.models import Capabilities, Models
from workers.metrics.estimate import Estimate
from workers.replay.correction import Correction, Observation
from workers.replay.costs import CostModel, configs_to_time, speedup
from workers.replay.prediction import LENGTH, QUANTITIES
from workers.replay.prediction_table import (
    PredictedSetting,
    check_predictable,
    predict_settings,
    read_predictions,
    why_unpredictable,
)
from workers.replay.replayer import recording_key

if TYPE_CHECKING:
    import pyarrow

# Each setting's parameters in the search's study; None if the space does not contain it.
Settings: TypeAlias = dict[DecodingConfig, Mapping[str, Any] | None]

optuna.logging.set_verbosity(optuna.logging.WARNING)  # it announces every study

_MAX_REPEATS = 50  # samples in a row without a new setting, after which a space counts as exhausted
_BATCH = 32  # captions recorded together, with `quality.batch: auto`
_LEVEL_COST = 0.1  # seconds of a drafted level over those of a pass of the target
_FACTS = {
    "setting": str,
    "label": str,
    "family": str,
    "on_front": bool,
    "approximate": bool,
    "digest": str,
}
SPEEDUP = "speedup"
_OBJECTIVES = ((SPEEDUP, "maximize"), ("excess", "minimize"))  # objectives of the predicted front


def sample_settings(
    sweep: SweepConfig,
    capabilities: Capabilities,
    count: int,
    earlier: Collection[DecodingConfig] = (),
) -> Iterator[tuple[DecodingConfig, Mapping[str, Any] | None]]:
    """The enqueued settings, those of earlier sweeps' trials, then `count` random ones of the
    space, each once (`Settings`); the model supports all but the first.

    sweep: resolved. The random ones depend on the space and the search's seed alone.
    """
    given = dict.fromkeys(entry.config for entry in sweep.enqueue)
    given |= dict.fromkeys(config for config in earlier if _can_run(capabilities, config))
    yield from ((config, sweep.space.params_of(config, sweep.sampling)) for config in given)
    settings = random_settings(
        sweep, lambda config: config not in given and _can_run(capabilities, config)
    )
    yield from islice(settings, count)


def random_settings(
    sweep: SweepConfig, is_wanted: Callable[[DecodingConfig], bool] = lambda config: True
) -> Iterator[tuple[DecodingConfig, Mapping[str, Any]]]:
    """Different random settings of a space with their parameters, until many samples in a row give
    no new one.

    They depend on the space and the search's seed alone.
    """
    study = optuna.create_study(sampler=RoundingSampler(RandomSampler(seed=sweep.search.seed)))
    known = set[DecodingConfig]()
    repeats = 0
    while repeats < _MAX_REPEATS:
        trial = study.ask()
        repeats += 1
        with suppress(ConfigError):  # parts that cannot be combined
            config = sweep.space.suggest(trial, sweep.sampling)
            if config not in known and is_wanted(config):
                known.add(config)
                repeats = 0
                yield config, dict(trial.params)


def _can_run(capabilities: Capabilities, config: DecodingConfig) -> bool:
    """Whether the model supports a setting."""
    try:
        capabilities.check(config)
    except ConfigError:
        return False
    return True


def _split_predictable(settings: Settings) -> tuple[Settings, Counter[str]]:
    """The settings that replay can describe, and how many it cannot, by reason.

    Raises:
        ValueError: it can describe none of them.
    """
    check_predictable(settings)
    reasons = {config: why_unpredictable(config) for config in settings}
    predictable = {config: params for config, params in settings.items() if reasons[config] is None}
    return predictable, Counter(why for why in reasons.values() if why is not None)


def check_pool(sweep: SweepConfig, capabilities: Capabilities) -> None:
    """Raise ValueError if the sampler of a resolved sweep needs predictions, and replay can
    describe no setting.
    """
    if SAMPLERS.lookup(sweep.search.sampler).from_pool:
        options = PoolOptions.split(sweep.search.options)[0]
        check_predictable(
            config for config, _ in sample_settings(sweep, capabilities, options.pool)
        )


def prediction_task(
    sweep: SweepConfig,
    storage: Storage,
    capabilities: Capabilities,
    log: Callable[[str], None],
    earlier: Collection[DecodingConfig] = (),
) -> PredictTask | None:
    """The task that predicts the pool of a resolved sweep; None if its sampler needs none, or the
    store has it.

    earlier: configs of earlier sweeps' trials, which the sampler is told.

    Raises:
        ValueError: replay can describe no setting of the space.
    """
    if not SAMPLERS.lookup(sweep.search.sampler).from_pool or storage.exists(PREDICTIONS):
        return None
    options = PoolOptions.split(sweep.search.options)[0]
    settings, left_out = _split_predictable(
        dict(sample_settings(sweep, capabilities, options.pool, earlier))
    )
    for why, count in left_out.items():
        log(f"the pool lacks {count} settings: {why}; enqueue some, or use search.sampler tpe")
    return _task(sweep, _without_own_recordings(settings), options.captions)


def _task(sweep: SweepConfig, settings: Settings, captions: int) -> PredictTask:
    params = tuple(json.dumps(entry) for entry in settings.values())
    batch = sweep.quality.batch
    if not isinstance(batch, int):
        batch = _BATCH
    return PredictTask(tuple(settings), params, captions, batch)


def _without_own_recordings(settings: Settings) -> Settings:
    """Without enqueued settings that would need a recording which no setting of the space
    shares.
    """
    keys = {config: recording_key(config) for config in settings if not config.is_vanilla}
    shared = {key for config, key in keys.items() if settings[config] is not None}
    return {
        config: params
        for config, params in settings.items()
        if config not in keys or keys[config] in shared
    }


def read_pool(
    sweep: SweepConfig,
    storage: Storage,
    experiment: str,
    groups: QualityGroups,
    earlier: Collection[DecodingConfig] = (),
) -> SettingsPool:
    """The pool in the store.

    Args:
        sweep: resolved.
        storage: of the sweep.
        experiment: digest of what the sweep's results depend on.
        groups: of lossless settings.
        earlier: see `prediction_task`.

    Raises:
        ValueError: it is damaged, or of other weights, captions or seeds, or of another version of
            the program.
    """
    table, metadata = read_shard(storage, PREDICTIONS, kind=PredictTask.kind)
    if metadata["experiment"] != experiment:
        raise ValueError(
            f"{storage.locate(PREDICTIONS)}: predicted with other weights, captions or seed than "
            "this sweep's; launch under another --name, or restore the file"
        )
    settings = read_predictions(table, metadata["captions"])
    values = {
        name: [setting.prediction.values[name].value for setting in settings] for name in QUANTITIES
    }
    configs = [setting.config for setting in settings]
    features, guesses = describe_settings(configs, values, groups.cols)
    inside = [row for row, setting in enumerate(settings) if setting.params is not None]
    enqueued = {*(entry.config for entry in sweep.enqueue), *earlier}
    return SettingsPool(
        [setting.params for setting in settings if setting.params is not None],
        features[inside],
        guesses[inside],
        outside={
            setting.config.digest(): features[row]
            for row, setting in enumerate(settings)
            if setting.params is None
        },
        enqueued=sum(settings[row].config in enqueued for row in inside),
        quality=_of_quality(sweep, groups, features.shape[1] // 2),
    )


def _of_quality(sweep: SweepConfig, groups: QualityGroups, first: int) -> QualityFeatures:
    """What a sweep measures of the distribution of images. first: column of these features."""
    names = {name for name, metric in groups.metrics.items() if metric.is_of_distribution}
    objectives = [objective.metric for objective in sweep.objectives]
    return QualityFeatures(
        first,
        frozenset(place for place, name in enumerate(objectives) if name in names),
        frozenset(limit.text for limit in sweep.constraints if limit.metric in names),
    )


def describe_settings(
    configs: Sequence[DecodingConfig], values: Mapping[str, Sequence[float]], cols: int | None
) -> tuple[Floats, Floats]:
    """Features [N, d] of settings from their predictions, half of them of costs and then half of
    quality; and guesses [N, 2] of their seconds and their quality, less is better.

    The features of costs are the logs of the passes per token, and of the levels and nodes drafted
    per token; which drafter, tree and neighbourhood the setting has: 1 for its own, 0 for others;
    the square roots of what the relaxation costs, since most rules are close to the exact one; and
    what differs in their sampling. Those of quality are the same for a lossy setting. The quality
    of a lossless one depends on its sampling alone, so that all of one sampling have the same
    features: a relaxation that costs nothing, and for the rest the mean of the lossy settings.

    The guess of the seconds takes a drafted level as a tenth of a pass; that of the quality is the
    mean rank among the settings in what the relaxation costs.

    Args:
        configs: the settings.
        values: [N] by name: the mean accepted length, and what the relaxation costs per token
            (`MEASURES` of replay).
        cols: tokens of an image row; None: not known.
    """
    passes = 1 / np.array(values[LENGTH], dtype=np.float64)
    bounds = [config.policy.bounds for config in configs]
    levels = np.array([bound.depth for bound in bounds])
    nodes = np.array([bound.nodes for bound in bounds])
    is_lossless = np.array([config.is_lossless(config.sampling, cols) for config in configs])
    measures = [
        np.where(is_lossless, 0.0, np.array(entries, dtype=np.float64))
        for name, entries in values.items()
        if name != LENGTH
    ]
    parts = [
        [config.drafter.kind for config in configs],
        [config.policy.kind for config in configs],
        [config.acceptance.neighbourhood.kind for config in configs],
    ]
    work = [np.log(passes), np.log(passes * (1 + levels)), np.log(passes * (1 + nodes))]
    work += [column for kinds in parts for column in _is_kind(kinds)]
    relaxation = [np.sign(measure) * np.sqrt(np.abs(measure)) for measure in measures]
    relaxation += _sampling_columns(configs)
    anywhere = np.stack(work)
    if not is_lossless.all():
        usual = anywhere[:, ~is_lossless].mean(axis=1, keepdims=True)
        anywhere = np.where(is_lossless, usual, anywhere)
    ranks = [np.searchsorted(np.sort(measure), measure) for measure in measures]
    guesses = np.stack([passes * (1 + _LEVEL_COST * levels), np.mean(ranks, axis=0)], axis=1)
    return np.stack([*work, *relaxation, *anywhere, *relaxation], axis=1), guesses


def _is_kind(kinds: Sequence[str]) -> list[Floats]:
    """A column for each kind, if there are several: 1 for settings of it, 0 for others."""
    names = sorted(set(kinds))
    if len(names) == 1:
        return []
    return [np.array([float(kind == name) for kind in kinds]) for name in names]


def _sampling_columns(configs: Sequence[DecodingConfig]) -> list[Floats]:
    """Columns of what differs in the settings' sampling. Of top-k it is the inverse, which is 0 for
    0, which keeps all.
    """
    entries = [
        {} if config.sampling is None else config.sampling.to_mapping() for config in configs
    ]
    columns = []
    for name in sorted({name for entry in entries for name in entry}):
        values = [entry.get(name, 0.0) for entry in entries]
        if any(isinstance(value, str) for value in values):
            columns += _is_kind([str(value) for value in values])
            continue
        if name == "top_k":
            values = [1 / value if value else 0.0 for value in values]
        if len(set(values)) > 1:
            columns.append(np.array(values, dtype=np.float64))
    return columns


@dataclass(frozen=True)
class PredictedSpace:
    """The settings of a space with their predictions, which include the speed-up."""

    sweep: SweepConfig
    settings: Sequence[PredictedSetting]
    left_out: Mapping[str, int]  # number of settings that could not be predicted, by reason
    corrected_by: int = 0  # number of trials that the predictions were corrected by

    @cached_property
    def front(self) -> list[PredictedSetting]:
        """The settings that no other beats in predicted speed-up and excess, by rising speed-up."""
        values = [
            [setting.prediction.values[name].value for name, _ in _OBJECTIVES]
            for setting in self.settings
        ]
        front = nondominated(values, [direction for _, direction in _OBJECTIVES])
        members = [setting for setting, member in zip(self.settings, front, strict=True) if member]
        return sorted(members, key=lambda setting: setting.prediction.values[SPEEDUP].value)

    @cached_property
    def labels(self) -> dict[DecodingConfig, str]:
        """The labels of enqueued settings."""
        return {entry.config: entry.label for entry in self.sweep.enqueue}

    @cached_property
    def names(self) -> SettingNames:
        """The names of the settings."""
        return SettingNames(self.sweep.sampling)

    def table(self) -> pyarrow.Table:
        """A row per setting: name, label, front, config digest, every key of the config, every
        value with its error.
        """
        rows = []
        front = {setting.config for setting in self.front}
        for setting in self.settings:
            config = setting.config
            prediction = setting.prediction
            row = {
                "setting": self.names.name(config),
                "label": self.labels.get(config, ""),
                "family": family(config),
                "on_front": config in front,
                "approximate": prediction.approximate,
                "digest": config.digest(),
                **config.flat(),
            }
            for name, estimate in prediction.values.items():
                row |= {name: estimate.value, f"{name}_error": estimate.error}
            rows.append(row)
        return typed_table(rows, _FACTS)


def predict_space(
    sweep: SweepConfig,
    models: Models,
    captions: Sequence[Caption],
    *,
    count: int,
    log: Callable[[str], None],
    trials: Sweep | None = None,
) -> PredictedSpace:
    """Predict `count` settings of the space of a resolved sweep, and all enqueued ones.

    captions: those that are recorded. trials: a sweep whose trials correct the predictions.

    Raises:
        ConfigError, ValueError: replay can describe none of the space; the trials are of other
            weights.
        DecodingError: logits are not finite.
    """
    capabilities = Capabilities.of(models)
    sampled, left_out = _split_predictable(dict(sample_settings(sweep, capabilities, count)))
    measured = [] if trials is None else measured_trials(trials, models, capabilities)
    task = replace(
        _task(
            sweep,
            sampled | {config: None for config, _ in measured if config not in sampled},
            len(captions),
        ),
        timed=tuple(configs_to_time(sampled)),
        timing_batch=sweep.timing.batches[0],
    )
    predicted = read_predictions(
        predict_settings(models, captions, task, seed=sweep.seed, log=log), len(captions)
    )
    by_config = {setting.config: setting.prediction for setting in predicted}
    observations = [Observation(config, by_config[config], length) for config, length in measured]
    settings = predicted[: len(sampled)]
    if observations:
        correction = Correction.fit(observations)
        settings = [s._replace(prediction=correction(s.config, s.prediction)) for s in settings]
    return PredictedSpace(
        sweep, _with_speedups(settings, capabilities), left_out, len(observations)
    )


def measured_trials(
    trials: Sweep, models: Models, capabilities: Capabilities
) -> list[tuple[DecodingConfig, Estimate]]:
    """The settings of a sweep that these models can run and replay can describe, with their mean
    accepted lengths.

    Raises:
        ValueError: the sweep's weights are not these models'.
    """
    changed = [
        name
        for name, known in trials.identity.models.items()
        if models.hashes.get(name, known) != known
    ]
    if changed:
        problem = f"other weights of {', '.join(changed)}; name a sweep of the same models"
        raise ValueError(f"{trials.storage.display_name}: its trials ran with {problem}")
    found = []
    for record in trials.records:
        length = record.metrics.get(LENGTH)
        config = record.config
        if length is None or length.known_error is None or config is None or config.is_vanilla:
            continue
        if _can_run(capabilities, config) and why_unpredictable(config) is None:
            found.append((config, length))
    return found


def _with_speedups(
    settings: Sequence[PredictedSetting], capabilities: Capabilities
) -> list[PredictedSetting]:
    """The settings with predicted speed-ups, by the costs of those that were timed."""
    timed = {setting.config: setting.cost for setting in settings if setting.cost is not None}
    costs = CostModel(timed)
    tokens = capabilities.grid.tokens
    vanilla = next(cost for config, cost in timed.items() if config.is_vanilla)
    found = []
    for setting in settings:
        length = setting.prediction.mean_accepted_length
        faster = speedup(length, costs.cost(setting.config), vanilla, tokens)
        values = {LENGTH: length, SPEEDUP: faster, **setting.prediction.values}
        found.append(setting._replace(prediction=replace(setting.prediction, values=values)))
    return found
