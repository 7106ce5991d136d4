"""The pool of a sweep: settings drawn from its space, predicted by replay once, and kept in the store.

The file is written once, before the sampler is asked, so a resumed sweep chooses from the same pool.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from optuna.samplers import RandomSampler

from orchestrator.run.rounding import RoundingSampler
from orchestrator.run.settings_pool import Floats, SettingsPool
from orchestrator.run.study_storage import StudyError
from orchestrator.run.tasks import Task
from search_spaces.params import ConfigError
from search_spaces.samplers import SAMPLERS, PoolOptions
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, NoDrafter
from workers.data.records import read_shard
from workers.data.shards import PREDICTIONS, PredictTask
from workers.data.storage import Storage
from workers.loading.models import Capabilities
from workers.replay.pool import LENGTH, QUANTITIES, check_predictable, why_unpredictable
from workers.replay.replayer import recording_key

_MAX_REPEATS = 50  # draws in a row without a new setting, after which a space counts as exhausted
_LEVEL_COST = 0.1  # of a pass of the target


@dataclass(frozen=True, slots=True)
class DrawnSetting:
    """A setting of a pool. label: of an enqueued one, else "". params: None if the space does not contain it."""

    label: str
    config: DecodingConfig
    params: Mapping[str, Any] | None


def draw_settings(sweep: SweepConfig, capabilities: Capabilities, count: int) -> Iterator[DrawnSetting]:
    """The enqueued settings, then `count` random ones of the space that the model supports, each once.

    sweep: resolved. They depend on the space and the search's seed alone.
    """
    known = set()
    for entry in sweep.enqueue:
        known.add(entry.config)
        yield DrawnSetting(entry.label, entry.config, sweep.space.params_of(entry.config, sweep.sampling))
    drawn = repeats = 0
    settings = random_settings(sweep)
    while drawn < count and repeats < _MAX_REPEATS:
        setting = next(settings)
        if setting is None or setting[1] in known or not can_run(capabilities, setting[1]):
            repeats += 1
            continue
        params, config = setting
        known.add(config)
        drawn, repeats = drawn + 1, 0
        yield DrawnSetting("", config, params)


def random_settings(sweep: SweepConfig) -> Iterator[tuple[Mapping[str, Any], DecodingConfig] | None]:
    """Independent random settings of a space, without end: the parameters of a study and the config. None for parts
    that cannot be combined.

    They depend on the space and the search's seed alone.
    """
    study = optuna.create_study(sampler=RoundingSampler(RandomSampler(seed=sweep.search.seed)))
    while True:
        trial = study.ask()
        try:
            config = sweep.space.suggest(trial, sweep.sampling)
        except ConfigError:
            yield None
        else:
            yield dict(trial.params), config


def can_run(capabilities: Capabilities, config: DecodingConfig) -> bool:
    """Whether the model supports a setting."""
    try:
        capabilities.check(config)
    except ConfigError:
        return False
    return True


def split_predictable(drawn: Iterator[DrawnSetting]) -> tuple[list[DrawnSetting], dict[str, int]]:
    """The settings that replay can describe, and how many it cannot, by reason.

    Raises:
        ValueError: it can describe none of them.
    """
    settings, left_out = [], dict[str, int]()
    everything = list(drawn)
    check_predictable(setting.config for setting in everything)
    for setting in everything:
        why = why_unpredictable(setting.config)
        if why is None:
            settings.append(setting)
        else:
            left_out[why] = left_out.get(why, 0) + 1
    return settings, left_out


def check_pool(sweep: SweepConfig, capabilities: Capabilities) -> None:
    """Raise ValueError if the sampler of a resolved sweep needs predictions, and replay can describe no setting."""
    if SAMPLERS.lookup(sweep.search.sampler).from_pool:
        options = PoolOptions.split(sweep.search.options)[0]
        check_predictable(setting.config for setting in draw_settings(sweep, capabilities, options.pool))


def prediction_task(
    sweep: SweepConfig, storage: Storage, capabilities: Capabilities, log: Callable[[str], None]
) -> Task | None:
    """The task that predicts the pool of a resolved sweep; None if its sampler needs none, or the store has it.

    Raises:
        ValueError: replay can describe no setting of the space.
    """
    if not SAMPLERS.lookup(sweep.search.sampler).from_pool or storage.exists(PREDICTIONS):
        return None
    options = PoolOptions.split(sweep.search.options)[0]
    settings, left_out = split_predictable(draw_settings(sweep, capabilities, options.pool))
    settings = _without_own_recordings(settings)
    task = PredictTask(
        configs=tuple(setting.config for setting in settings),
        params=tuple(json.dumps(setting.params) for setting in settings),
        captions=options.captions,
        batch=sweep.quality.batch,
    )
    for why, count in left_out.items():
        log(f"the pool lacks {count} settings: {why}")
    return Task(-1, PREDICTIONS, {"kind": task.kind, **task.to_mapping()})


def _without_own_recordings(settings: Sequence[DrawnSetting]) -> list[DrawnSetting]:
    """Without enqueued settings that would need a recording which no setting of the space shares."""
    drafting = [setting for setting in settings if not isinstance(setting.config.drafter, NoDrafter)]
    recorded = {recording_key(setting.config) for setting in drafting if setting.params is not None}
    return [s for s in settings if s not in drafting or recording_key(s.config) in recorded]


def read_pool(sweep: SweepConfig, storage: Storage, experiment: str) -> SettingsPool:
    """The pool in the store. experiment: digest of what the sweep's results depend on.

    Raises:
        StudyError: it is of other weights, captions or seeds, or of another version of the program.
    """
    enqueued = {entry.config.digest() for entry in sweep.enqueue}
    columns = ["digest", "config", "params", *QUANTITIES]
    try:
        table, metadata = read_shard(storage, PREDICTIONS, columns, kind=PredictTask.kind)
    except ValueError as error:
        raise StudyError(str(error)) from error
    if metadata["experiment"] != experiment:
        raise StudyError(
            f"{storage.locate(PREDICTIONS)}: predicted with other weights, captions or seed than this sweep's; "
            "launch under another --name, or restore the file"
        )
    rows = table.to_pydict()
    configs = [DecodingConfig.from_mapping(json.loads(text)) for text in rows["config"]]
    features, guesses = describe_settings(configs, {name: rows[name] for name in QUANTITIES})
    params = [json.loads(text) for text in rows["params"]]
    inside = [row for row, entry in enumerate(params) if entry is not None]
    return SettingsPool(
        [params[row] for row in inside],
        features[inside],
        guesses[inside],
        outside={rows["digest"][row]: features[row] for row in range(len(params)) if params[row] is None},
        enqueued=sum(rows["digest"][row] in enqueued for row in inside),
    )


def describe_settings(
    configs: Sequence[DecodingConfig], values: Mapping[str, Sequence[float]]
) -> tuple[Floats, Floats]:
    """Features [N, d] of settings from their predictions, and guesses [N, 2] of their seconds and their quality.

    values: [N] by name: the mean accepted length, and what the relaxation costs per token (`MEASURES` of replay).

    The features are the logs of the passes per token, and of the levels and nodes drafted per token; the square roots
    of what the relaxation costs, since most rules are close to the exact one; and which drafter, tree and neighbourhood
    the setting has: 1 for its own, 0 for others. The guess of the seconds takes a drafted level as a tenth of a pass;
    that of the quality is the mean rank among the settings in what the relaxation costs.
    """
    passes = 1 / np.array(values[LENGTH], dtype=np.float64)
    levels, nodes = (np.array([getattr(c.policy.bounds, of) for c in configs]) for of in ("depth", "nodes"))
    measures = [np.array(entries, dtype=np.float64) for name, entries in values.items() if name != LENGTH]
    columns = [np.log(passes), np.log(passes * (1 + levels)), np.log(passes * (1 + nodes))]
    columns += [np.sign(measure) * np.sqrt(np.abs(measure)) for measure in measures]
    kinds = [(c.drafter.kind, c.policy.kind, c.acceptance.neighbourhood.kind) for c in configs]
    for labels in zip(*kinds, strict=True):
        names = sorted(set(labels))
        columns += [np.array([float(label == name) for label in labels]) for name in names if len(names) > 1]
    ranks = [np.searchsorted(np.sort(measure), measure) for measure in measures]
    guesses = np.stack([passes * (1 + _LEVEL_COST * levels), np.mean(ranks, axis=0)], axis=1)
    return np.stack(columns, axis=1), guesses
