"""Sweeps with all defaults filled in, and their comparison when a sweep is resumed."""

from __future__ import annotations

from dataclasses import replace

from search_spaces.params import ConfigError
from search_spaces.sweep import SweepConfig
from search_spaces.sweep_sections import Enqueued
from search_spaces.trial import DecodingConfig, Sampling

_VANILLA = "vanilla"
_CHANGEABLE = ("budget", "about", "name")  # sections that may change when a sweep is resumed


def resolve_sweep(sweep: SweepConfig, sampling: Sampling) -> SweepConfig:
    """The sweep with a sampling for all configs (its own, else `sampling`), and with vanilla enqueued first.

    Raises:
        ConfigError: another config has the label `vanilla`.
    """
    sampling = sweep.sampling or sampling
    baseline = DecodingConfig(sampling=sampling)
    labels = {baseline: _VANILLA}
    for entry in sweep.enqueue:
        config = entry.config if entry.config.sampling else entry.config.with_sampling(sampling)
        if entry.label == _VANILLA and config != baseline:
            raise ConfigError(("enqueue", _VANILLA), "this label is reserved for the baseline; choose another label")
        labels.setdefault(config, entry.label)
    enqueue = tuple(Enqueued(label, config) for config, label in labels.items())
    return replace(sweep, sampling=sampling, enqueue=enqueue)


def changed_sections(stored: SweepConfig, sweep: SweepConfig) -> list[str]:
    """Sections in which a sweep differs from the stored one that it resumes. `stored` is resolved.

    The budget and the description may change, and so may the path of models.yaml: the workers compare the hashes.

    Raises:
        ConfigError: see `resolve_sweep`.
    """
    sampling = stored.sampling or Sampling()  # missing only if the file was edited, and then it differs
    before, after = stored.to_mapping(), resolve_sweep(sweep, sampling).to_mapping()
    for mapping in (before, after):
        mapping["models"].pop("file", None)
    return [key for key in {**before, **after} if key not in _CHANGEABLE and before.get(key) != after.get(key)]
