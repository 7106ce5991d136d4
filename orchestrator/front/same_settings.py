"""Trials of one setting in several sweeps: the same images, and speeds that were measured more than
once. They are one, with one value of each metric.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from orchestrator.front.compare import obstacles
from orchestrator.front.joint import JointErrors, noises_of
from orchestrator.store.identity import Identity
from orchestrator.store.lossless import OwnedSource
from orchestrator.store.prices import with_violations
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate, Noise, jackknife_error


def with_one_value(named: Mapping[str, Sweep]) -> dict[str, Sweep]:
    """Sweeps, by name, in which trials of one setting have one value of each metric that can be
    compared: the mean, and its error, which all of them share.

    One setting has the same models, seed and captions, and speeds of the same device at the same
    batch size.
    """
    sources = [_owned(sweep) for sweep in named.values()]
    places: dict[Hashable, list[_Member]] = {}
    for sweep in sources:
        for record in sweep.records:
            if record.is_complete and record.duplicate_of is None:
                places.setdefault(_key(sweep, record), []).append(_Member(sweep, record))
    values = {key: _values(found) for key, found in places.items() if len(found) > 1}
    merged = {}
    for name, sweep in zip(named, sources, strict=True):
        records = []
        for record in sweep.records:
            known = values.get(_key(sweep, record), {}) if record.is_complete else {}
            records.append(replace(record, metrics={**record.metrics, **known}))
        merged[name] = replace(sweep, records=with_violations(tuple(records), sweep.identity))
    return merged


@dataclass(frozen=True, slots=True)
class _Member:
    """A trial of a setting that several sweeps have."""

    sweep: Sweep
    record: TrialRecord


def _key(sweep: Sweep, record: TrialRecord) -> Hashable:
    """What trials of one setting share."""
    identity = sweep.identity
    machine = str(sweep.machine or identity.timing_device)
    # the experiment is a digest of models, dtype, captions and seed
    images = (identity.experiment, identity.caption_set, identity.samples)
    return record.config, images, numbers_of(identity), machine


def numbers_of(identity: Identity) -> Hashable:
    """In which numbers the target's probs are computed. In float32 they are the same to rounding
    on any device; other dtypes have those of their device and its kernels.
    """
    precision = identity.precision
    if precision == "float32":
        return precision
    return precision, identity.device, identity.numerics.get("digest")


def _owned(sweep: Sweep) -> Sweep:
    """A sweep whose sources of noise say that they are its own, wherever their values go."""
    identity = sweep.identity
    owner = (identity.name, identity.id)
    records = []
    for record in sweep.records:
        metrics = {}
        for name, entry in record.metrics.items():
            noises = [
                noise
                if isinstance(noise.source, OwnedSource)
                else noise._replace(source=OwnedSource(owner, noise.source))
                for noise in noises_of(record, identity.metrics.get(name, Metric(name, "minimize")))
            ]
            metrics[name] = replace(entry, noises=tuple(noises))
        records.append(replace(record, metrics=metrics))
    return replace(sweep, records=tuple(records))


def _values(members: Sequence[_Member]) -> dict[str, Estimate]:
    """The values that all trials of a setting have, by metric."""
    identities = [member.sweep.identity for member in members]
    first = members[0]
    found = {}
    for name, metric in identities[0].metrics.items():
        is_everywhere = all(name in member.record.metrics for member in members)
        if is_everywhere and not obstacles(identities, name):
            key = OwnedSource(None, (_key(first.sweep, first.record), name))
            found[name] = _mean([member.record for member in members], metric, key)
    return found


def _mean(records: Sequence[TrialRecord], metric: Metric, key: OwnedSource) -> Estimate:
    """The mean of several trials' values. What is not known to be shared is independent, unless
    all have one value: it is of the same images then, and its error is one trial's. key: the source
    of that part, which the mean has wherever it is.
    """
    entries = [record.metrics[metric.name] for record in records]
    joint = JointErrors.of(records, [metric])
    own = joint.own[:, 0]
    is_one = len({entry.value for entry in entries}) == 1
    spread = float(own.max() if is_one else np.sqrt(np.square(own).sum()) / len(own))
    effects: dict[tuple[Hashable, Hashable, int], float] = {}
    for entry in entries:
        for noise in entry.noises:
            place = (noise.group, noise.source, noise.dof)
            effects[place] = effects.get(place, 0.0) + noise.effect / len(entries)
    noises = [Noise(group, source, effect, dof) for (group, source, dof), effect in effects.items()]
    own_dof = float(joint.own_dof[:, 0].min())
    dof = round(own_dof) if math.isfinite(own_dof) else 0  # 0: many
    if spread > 0:
        noises.append(Noise(key, key, spread, dof))
    replicates: tuple[float, ...] = ()
    sampling_error = 0.0
    if len({len(entry.replicates) for entry in entries}) == 1 and entries[0].replicates:
        left_out = np.mean([entry.replicates for entry in entries], axis=0)
        replicates = tuple(left_out.tolist())
        sampling_error = float(jackknife_error(left_out))
    noise_error = math.hypot(*(noise.effect for noise in noises))
    return Estimate(
        float(np.mean([entry.value for entry in entries])),
        math.inf if math.isnan(spread) else math.hypot(sampling_error, noise_error),
        entries[0].n,
        replicates,
        noise_error if any(entry.noise for entry in entries) else 0.0,
        min((entry.noise_dof for entry in entries if entry.noise_dof), default=0),
        dof if spread > 0 and not replicates else 0,
        tuple(noises),
    )
