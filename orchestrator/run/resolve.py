"""A sweep with nothing left open, and whether a sweep in the store is the one that is to go on."""

from __future__ import annotations

from dataclasses import replace

from search_spaces.enqueued import Enqueued
from search_spaces.params import ConfigError
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, Sampling

VANILLA = "vanilla"
FREE = ("budget", "about", "name")  # may differ when a sweep goes on


def filled(sweep: SweepConfig, sampling: Sampling) -> SweepConfig:
    """The sweep with a sampling for all its settings (its own, else this one), and with vanilla in front.

    Raises:
        ConfigError: another setting is called vanilla.
    """
    sampling = sweep.sampling or sampling
    baseline = DecodingConfig(sampling=sampling)
    found = {baseline: VANILLA}
    for entry in sweep.enqueue:
        config = entry.config if entry.config.sampling else entry.config.with_sampling(sampling)
        if entry.label == VANILLA and config != baseline:
            raise ConfigError(("enqueue", VANILLA), "is what the baseline is called; give this setting another label")
        found.setdefault(config, entry.label)
    return replace(sweep, sampling=sampling, enqueue=tuple(Enqueued(label, config) for config, label in found.items()))


def differences(before: SweepConfig, now: SweepConfig) -> list[str]:
    """Sections in which a sweep differs from how it was begun. Its budget may grow; its words may change.

    `before` is as the store has it: filled.

    Raises:
        ConfigError: see `filled`.
    """
    sampling = before.sampling or Sampling()  # none if someone has written in it: then that differs
    one, two = before.to_mapping(), filled(now, sampling).to_mapping()
    for mapping in (one, two):
        mapping["models"].pop("file", None)  # where it lies may change; the workers hold its hashes against the sweep's
    return [key for key in {**one, **two} if key not in FREE and one.get(key) != two.get(key)]
