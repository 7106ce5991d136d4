"""Trials of one setting in several sweeps: the same images, and speeds that were measured more than
once. They are one, with one value of each metric.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from orchestrator.front.compare import obstacles
from orchestrator.front.joint import JointErrors, noises_of
from orchestrator.store.identity import Identity
from orchestrator.store.lossless import OwnedSource
from orchestrator.store.prices import with_violations
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from search_spaces.constraints import split_batch
from workers.metrics.costs import SittingSource
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate, Noise, jackknife_error
from workers.metrics.timings import joint_sittings


def with_one_value(named: Mapping[str, Sweep]) -> dict[str, Sweep]:
    """Sweeps, by name, in which trials of one setting have one value of each metric that can be
    compared: the mean, and its error, which all of them share.

    One setting has the same models, seed and captions, and speeds of the same device at the same
    batch size.
    """
    joint = joint_sittings([sweep.prices for sweep in named.values()])
    sources = [
        _owned(sweep, sittings) for sweep, sittings in zip(named.values(), joint, strict=True)
    ]
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


def _owned(sweep: Sweep, sittings: Mapping[str, str]) -> Sweep:
    """A sweep whose sources of noise say whose they are, wherever their values go: its own, but for
    sittings, which sweeps share. sittings: the name of each in all sweeps, by that in this one.
    """
    records = []
    for record in sweep.records:
        metrics = {}
        for name, entry in record.metrics.items():
            metric = sweep.identity.metrics.get(name, Metric(name, "minimize"))
            owned = [
                _owned_noise(noise, sweep, name, sittings) for noise in noises_of(record, metric)
            ]
            noises = _add_effects(owned)
            if len(noises) < len(owned):  # two of its sittings are one
                noise = _norm(noises)
                rest = max(0.0, entry.error**2 - entry.noise**2)
                entry = replace(entry, noise=noise, error=math.sqrt(rest + noise**2))
            metrics[name] = replace(entry, noises=tuple(noises))
        records.append(replace(record, metrics=metrics))
    return replace(sweep, records=tuple(records))


def _owned_noise(noise: Noise, sweep: Sweep, metric: str, sittings: Mapping[str, str]) -> Noise:
    """The noise of a value of a sweep, with a source that says whose it is. Sittings are those of
    models on a device at a batch size.
    """
    identity = sweep.identity
    source = noise.source
    if isinstance(source, OwnedSource):
        return noise
    if not isinstance(source, SittingSource) or sweep.machine is None:
        return noise._replace(source=OwnedSource((identity.name, identity.id), source))
    batch = split_batch(metric)[1] or sweep.machine.batch
    models = (identity.precision, *sorted(identity.models.items()))
    group = ("sittings", source.quantity, str(sweep.machine.device), batch, models)
    joint = source._replace(sitting=sittings.get(source.sitting, source.sitting))
    return noise._replace(group=group, source=OwnedSource(None, joint))


def _add_effects(noises: Iterable[Noise]) -> list[Noise]:
    """The noises of a value with one for each source."""
    found: dict[tuple[Hashable, Hashable], Noise] = {}
    for noise in noises:
        place = (noise.group, noise.source)
        other = found.get(place, noise._replace(effect=0.0))
        # 0: many
        dof = min(noise.dof or other.dof, other.dof or noise.dof)
        found[place] = Noise(*place, other.effect + noise.effect, dof)
    return list(found.values())


def _norm(noises: Iterable[Noise]) -> float:
    """The standard error from independent sources."""
    return math.hypot(*(noise.effect for noise in noises))


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
    shares = [
        noise._replace(effect=noise.effect / len(entries))
        for entry in entries
        for noise in entry.noises
    ]
    noises = _add_effects(shares)
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
    noise_error = _norm(noises)
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
