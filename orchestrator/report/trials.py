"""What the page holds of each trial: its facts, its config by flat key, its metrics with the parts
of their errors.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.front.joint import JointErrors, block_effects
from orchestrator.front.trial import Candidate
from orchestrator.shown.plots import looks
from orchestrator.store.explain import explain_alike, explain_setting
from orchestrator.store.names import VANILLA, SettingNames, family, trial_title
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from search_spaces.params import Params
from search_spaces.trial import DecodingConfig
from workers.metrics.definition import Metric

_SHARED = ("number", "label", "state", "cause", "feasible", "digest", "images", "seconds", "shape")
COLOURINGS = ("acceptance", "tree", "drafter")
OTHERS = 3  # the rank of trials that are neither on the front nor labelled


@dataclass(frozen=True, slots=True)
class PageTrial:
    """A trial of one of the page's sweeps."""

    sweep: Sweep
    record: TrialRecord
    index: int = 0  # of the sweep
    owner: str = ""  # the sweep's name in the page; "" if there is only one
    is_vanilla: bool = False  # whether it is the baseline of its sweep

    @property
    def id(self) -> str:
        """Its number, after the sweep's name if there are several; as `Trial.name` of a front."""
        return self.of(self.record.number)

    def of(self, number: int) -> str:
        """The id of a trial of the same sweep."""
        return f"{self.owner}#{number}" if self.owner else str(number)

    @property
    def key(self) -> str:
        """Names its images in the page; trials of one config share them."""
        return f"{self.index}/{self.record.digest}" if self.index else self.record.digest

    def rank(self, front: Collection[str]) -> int:
        """Its place in the order in which images are embedded: vanilla (0), trials on the front
        (1), then labelled ones (2), then others (`OTHERS`). front: ids.
        """
        if self.is_vanilla:
            return 0
        if self.id in front:
            return 1
        return 2 if self.record.label else OTHERS

    def entry(
        self,
        metrics: Sequence[str],
        keys: Sequence[str],
        candidate: Candidate | None,
        following: str | None,
        names: SettingNames,
    ) -> dict[str, Any]:
        """Plain data.

        Args:
            metrics: names of the page's metrics.
            keys: of `flat`, the values of the trial's config.
            candidate: the trial on the front's own axes; None if it may not be on the front.
            following: the id of the next trial on the front.
            names: of settings.
        """
        record = self.record
        twin = record.duplicate_of
        flat = record.config.flat() if record.config else {}
        colourings = groups(record.config)
        if self.owner:
            colourings = {"sweep": self.owner, **colourings}
        return {shared: getattr(record, shared) for shared in _SHARED} | {
            "id": self.id,
            "sweep": self.index,
            "title": trial_title(self.id, record.label),
            "groups": colourings,
            "images_of": self.key,
            "duplicate_of": None if twin is None else self.of(twin),
            "confidence": None if candidate is None else candidate.confidence,
            "next_on_front": following,
            "distinct_from_next": None if candidate is None else candidate.distinct_from_next,
            "flat": [flat.get(key) for key in keys],
            "description": names.name(record.config),
            "explanation": "" if record.config is None else explain_setting(record.config),
            "lossless": record.is_lossless(self.sweep.identity),
            "check": record.check.summary if record.check is not None else "",
            "violated": [text for text, excess in record.constraints.items() if excess > 0],
            "metrics": {
                name: _measured(self.sweep.metric(name), record)
                for name in metrics
                if name in record.metrics
            },
        }


def page_trials(sweeps: Mapping[str, Sweep]) -> list[PageTrial]:
    """All trials of the page's sweeps, which are given by name."""
    found = []
    for index, (name, sweep) in enumerate(sweeps.items()):
        owner = name if len(sweeps) > 1 else ""
        vanilla = sweep.baseline
        found += [
            PageTrial(sweep, record, index, owner, record is vanilla) for record in sweep.records
        ]
    return found


def metric_title(name: str) -> str:
    """A metric's name in words."""
    return name.replace("_", " ")


def config_keys(sweeps: Mapping[str, Sweep]) -> list[str]:
    """The flat keys of all configs, in the order of their first occurrence."""
    keys: dict[str, None] = {}
    for sweep in sweeps.values():
        for record in sweep.records:
            if record.config is not None:
                keys |= dict.fromkeys(record.config.flat())
    return list(keys)


def group_looks(
    entries: Sequence[Mapping[str, Any]], settings: Iterable[DecodingConfig | None]
) -> dict[str, Any]:
    """The look of each group in the chart, by way of colouring, and what it is in a plain sentence
    (`about`); vanilla comes first. entries, settings: of all trials.
    """
    colourings = entries[0]["groups"] if entries else COLOURINGS
    abouts = _group_abouts(settings)
    found = {}
    for colouring in colourings:
        own = looks([entry["groups"][colouring] for entry in entries])
        found[colouring] = {
            name: look._asdict() | {"about": abouts.get((colouring, name))}
            for name, look in own.items()
        }
    return found


def _group_abouts(settings: Iterable[DecodingConfig | None]) -> dict[tuple[str, str], str]:
    """What the settings of a group do, by way of colouring and group."""
    parts = defaultdict[tuple[str, str], list[list[Params]]](list)
    for setting in settings:
        if setting is None:
            continue
        for group in groups(setting).items():
            parts[group].append(_parts_of_group(setting, group[0]))
    return {group: explain_alike(found) for group, found in parts.items()}


def _parts_of_group(setting: DecodingConfig, colouring: str) -> list[Params]:
    """The parts of a setting that decide on its group."""
    drafter = setting.drafter
    if colouring == "tree" and not setting.is_vanilla:
        return [setting.policy]
    if colouring == "drafter" or setting.is_vanilla:
        return [drafter]
    in_rows = [drafter] if drafter.row_lag is not None else []
    return [*in_rows, *setting.acceptance.relaxed_parts]


def groups(setting: DecodingConfig | None) -> dict[str, str]:
    """The trial's group under each way of colouring the chart."""
    if setting is None:
        return dict.fromkeys(COLOURINGS, "none")
    if setting.is_vanilla:
        return dict.fromkeys(COLOURINGS, VANILLA)
    return {
        "acceptance": family(setting),
        "tree": setting.policy.kind,
        "drafter": setting.drafter.kind,
    }


def _measured(metric: Metric, record: TrialRecord) -> list[Any]:
    """Value and standard error; then the error's parts: effects of the blocks of captions, the
    noise that trials of one shape share, and what is shared with no other trial (see
    `JointErrors`); degrees of freedom of both, 0 for many.
    """
    entry = record.metrics[metric.name]
    joint = JointErrors.of([record], [metric])
    own = float(np.nan_to_num(joint.own[0, 0]))
    own_dof = float(joint.own_dof[0, 0])
    if not entry.noise:  # the page does not know what such a value shares with its group
        own = math.hypot(own, *(noise.effect for noise in entry.noises))
    effects = [float(f"{effect:.3g}") for effect in block_effects(entry)]
    noise = 0.0
    noise_dof = 0.0
    if record.shape:
        noise = entry.noise
        noise_dof = entry.noise_dof
    return [
        entry.value,
        entry.known_error,
        effects,
        noise,
        own,
        noise_dof,
        own_dof if np.isfinite(own_dof) else 0,
    ]
