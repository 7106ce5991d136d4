"""What the page holds of each trial: its facts, its config by flat key, its metrics with the parts of their errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orchestrator.results.joint import JointErrors, block_effects
from orchestrator.results.names import VANILLA, family
from orchestrator.results.plots import looks
from orchestrator.results.sweep import Sweep
from orchestrator.results.trials import TrialRecord
from search_spaces.trial import DecodingConfig
from workers.metrics.definition import Metric

_SHARED = ("number", "label", "state", "cause", "feasible", "digest", "images", "seconds", "shape")
COLOURINGS = ("acceptance", "tree", "drafter")


def trial_id(name: str, record: TrialRecord, sweeps: int) -> str:
    """A trial's name in the page: its number, after the sweep's name if there are several."""
    return f"{name}#{record.number}" if sweeps > 1 else str(record.number)


def image_key(index: int, record: TrialRecord) -> str:
    """Names a trial's images in the page; index: of its sweep. Trials with the same config share them."""
    return f"{index}/{record.digest}" if index else record.digest


def metric_title(name: str) -> str:
    """A metric's name in words."""
    return name.replace("_", " ")


def config_keys(sweeps: Mapping[str, Sweep]) -> list[str]:
    """The flat keys of all configs, in the order of their first occurrence."""
    records = [record for sweep in sweeps.values() for record in sweep.records]
    return list(dict.fromkeys(key for record in records if record.config for key in record.config.flat()))


def trial_entries(
    sweeps: Mapping[str, Sweep], names: Sequence[str], confidence: Mapping[str, float]
) -> list[dict[str, Any]]:
    """One entry per trial; `flat` has its values in the order of `config_keys`.

    names: the metrics. confidence: by the trial's id, of those that may be on the front.
    """
    keys, several, entries = config_keys(sweeps), len(sweeps) > 1, []
    for index, (name, sweep) in enumerate(sweeps.items()):
        axes = list(map(sweep.metric, names))
        for record in sweep.records:
            flat = record.config.flat() if record.config else {}
            found, twin = trial_id(name, record, len(sweeps)), record.duplicate_of
            entry = {shared: getattr(record, shared) for shared in _SHARED} | {
                "id": found,
                "sweep": index,
                "title": (f"{name}: " if several else "") + (record.label or f"trial {record.number}"),
                "groups": ({"sweep": name} if several else {}) | groups(record.config),
                "images_of": image_key(index, record),
                "duplicate_of": None if twin is None else f"{name}#{twin}" if several else str(twin),
                "confidence": confidence.get(found),
                "flat": [flat.get(key) for key in keys],
                "description": sweep.names.name(record.config),
                "lossless": record.is_lossless(sweep.identity.sampling),
                "violated": [text for text, excess in record.constraints.items() if excess > 0],
                "metrics": {axis.name: _measured(axis, record) for axis in axes if axis.name in record.metrics},
            }
            entries.append(entry)
    return entries


def group_looks(entries: Sequence[Mapping[str, Any]], colourings: Sequence[str]) -> dict[str, Any]:
    """The look of each group in the chart, by way of colouring; vanilla comes first."""
    names = {colouring: [entry["groups"][colouring] for entry in entries] for colouring in colourings}
    return {
        colouring: {name: look._asdict() for name, look in looks(found).items()} for colouring, found in names.items()
    }


def groups(setting: DecodingConfig | None) -> dict[str, str]:
    """The trial's group under each way of colouring the chart."""
    if setting is None:
        return dict.fromkeys(COLOURINGS, "none")
    if setting.is_vanilla:
        return dict.fromkeys(COLOURINGS, VANILLA)
    return {"acceptance": family(setting), "tree": setting.policy.kind, "drafter": setting.drafter.kind}


def _measured(axis: Metric, record: TrialRecord) -> list[Any]:
    """Value and standard error; then the error's parts: effects of the blocks of captions, the noise that trials of one
    shape share, and what is shared with no other trial (see `JointErrors`); degrees of freedom of both, 0 for many.
    """
    entry, joint = record.metrics[axis.name], JointErrors.of([record], [axis])
    own, own_dof = float(np.nan_to_num(joint.own[0, 0])), float(joint.own_dof[0, 0])
    effects = [float(f"{effect:.3g}") for effect in block_effects(entry)]
    noise, noise_dof = (entry.noise, entry.noise_dof) if record.shape else (0.0, 0)
    return [entry.value, entry.known_error, effects, noise, own, noise_dof, own_dof if np.isfinite(own_dof) else 0]
