"""Lossless settings have one quality: the tokens of each are samples of the target's own
distribution, so that their images have one distribution, and a metric of it is one number.

Settings with the same sampling that are lossless for it are a group, vanilla among them. Each that
draws images of its own measures its own estimate of the same number; which of these is better is
luck. So a front compares them by one estimate. A setting whose tokens pass their check (see
`workers.decoding.token_checker`) need not draw all images: it has vanilla's quality. One that fails
it is in no group. Metrics that compare images with vanilla's images one by one, such as drift, are
left as they are: a lossless setting draws other samples there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from orchestrator.store.identity import Identity
from orchestrator.store.records import TrialRecord
from search_spaces.trial import DecodingConfig, Sampling
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate, Noise, jackknife_error


class Place(NamedTuple):
    """Where a trial has a value."""

    images: int  # the number on which it was measured
    metric: str


@dataclass(frozen=True, slots=True)
class QualityGroups:
    """The groups of lossless settings in a sweep."""

    metrics: Mapping[str, Metric]
    baseline: Sampling  # vanilla's
    cols: int  # tokens of an image row

    @classmethod
    def of(cls, identity: Identity) -> QualityGroups:
        """The groups of a stored sweep."""
        return cls(identity.metrics, identity.sampling, identity.grid[1])

    def group(self, record: TrialRecord) -> Sampling | None:
        """The sampling that a trial's group has; None if the trial is in none."""
        if record.config is None or record.has_failed or record.fails_check:
            return None
        return self.claimed_group(record.config)

    def claimed_group(self, config: DecodingConfig) -> Sampling | None:
        """The sampling of the group in which a config is if it is lossless as it states."""
        return _lossless_sampling(config, self.cols)

    def as_told(self, record: TrialRecord, earlier: Iterable[TrialRecord]) -> TrialRecord:
        """A trial's record as a running sweep knows it: in a group, with the values of the group's
        first member, at each number of images. So what the search was told never changes.

        Args:
            record: as measured.
            earlier: the trials that were told before, in their order.
        """
        first: dict[Place, Estimate] = {}
        group = self.group(record)
        for other in earlier if group is not None else ():
            if self.group(other) == group:
                self._keep_first(first, other)
        return self._told(record, first)

    def all_as_told(self, records: Iterable[TrialRecord]) -> list[TrialRecord]:
        """The records of a running sweep from trial 0 on (see `as_told`)."""
        firsts = defaultdict[Sampling | None, dict[Place, Estimate]](dict)
        told = []
        for record in records:
            group = self.group(record)
            told.append(self._told(record, firsts[group] if group is not None else {}))
            if group is not None:
                self._keep_first(firsts[group], record)
        return told

    @staticmethod
    def _keep_first(first: dict[Place, Estimate], record: TrialRecord) -> None:
        """Add a member's values where the group has none."""
        for place, entry in _measured_entries(record):
            first.setdefault(place, entry)

    def _told(self, record: TrialRecord, first: Mapping[Place, Estimate]) -> TrialRecord:
        """A record with the first values of its group."""
        group = self.group(record)
        shared = {place: _mean([entry], (group, place)) for place, entry in first.items()}
        return self.with_shared(record, shared, {})

    def pooled(self, records: Sequence[TrialRecord]) -> tuple[TrialRecord, ...]:
        """All records of a sweep. Those of a group have the mean of what its members measured on
        as many images; gains over vanilla are over its group's mean.
        """
        (found,) = pool([Source(self, records)])
        return found

    def with_shared(
        self,
        record: TrialRecord,
        shared: Mapping[Place, Estimate],
        vanilla: Mapping[Place, Estimate],
    ) -> TrialRecord:
        """A record with the values that its group shares, and with gains over vanilla's group. A
        complete trial also has those that it did not measure itself.
        """
        entries = dict(_measured_entries(record))
        places = dict.fromkeys(entries)
        if record.is_complete:
            own_names = record.measured.metrics
            places |= {place: None for place in shared if place.metric not in own_names}
        known: dict[Place, Estimate] = {}
        for place in places:
            metric = self.metrics.get(place.metric)
            if metric is None or not metric.is_of_distribution:
                continue
            value = shared.get(place) or entries[place]
            base = vanilla.get(place) if metric.is_gain else None
            if base is not None:
                value = _minus(value, base)
            if value is not entries.get(place):
                known[place] = value
        last = max((place.images for place in known), default=record.images)
        if last > record.images:
            known |= self._on(record.measured, last)
        return _with_known(record.measured, entries, known)

    def _on(self, record: TrialRecord, images: int) -> dict[Place, Estimate]:
        """A trial's values of metrics that compare its images with vanilla's one by one, as
        expected on more images.
        """
        found = {}
        for name, entry in record.metrics.items():
            metric = self.metrics.get(name)
            if metric is not None and not (metric.is_of_counts or metric.is_of_distribution):
                found[Place(images, name)] = entry.on(images)
        return found


def _with_known(
    measured: TrialRecord, entries: Mapping[Place, Estimate], known: Mapping[Place, Estimate]
) -> TrialRecord:
    """A record with values from elsewhere, some of them on more images than it has. entries: its
    own.
    """
    if not known:
        return measured
    names = dict.fromkeys(place.metric for place in known)
    rungs = dict(measured.history)
    last = max(measured.images, *(place.images for place in known))
    numbers = sorted({*rungs, *(place.images for place in known if place.images > measured.images)})
    return replace(
        measured,
        metrics={**measured.metrics, **_at(last, known)},
        history=tuple((n, {**rungs.get(n, measured.metrics), **_at(n, known)}) for n in numbers),
        own=tuple(
            (n, {name: entries.get(Place(n, name)) for name in names})
            for n in dict.fromkeys([*rungs, measured.images])
        ),
    )


@lru_cache(maxsize=1 << 14)
def _lossless_sampling(config: DecodingConfig, cols: int) -> Sampling | None:
    """The sampling of a config that is lossless for it; None for a lossy one."""
    return config.sampling if config.is_lossless(config.sampling, cols) else None


@dataclass(frozen=True, slots=True)
class Source:
    """The records of one of several sweeps."""

    groups: QualityGroups
    records: Sequence[TrialRecord]
    # By metric, what its value depends on besides a setting's sampling. In sweeps with the same,
    # groups of one sampling are one; a metric without is the sweep's alone.
    basis: Mapping[str, Hashable] = field(default_factory=dict)

    def values(
        self, means: Mapping[tuple[Hashable, Place], Estimate], number: int
    ) -> dict[Place, Estimate]:
        """A group's values in this sweep, the one of this number. means: the group's values in all
        sweeps, by basis.
        """
        return {
            place: mean
            for (basis, place), mean in means.items()
            if basis == self.basis.get(place.metric, number)
        }


def pool(sources: Sequence[Source]) -> list[tuple[TrialRecord, ...]]:
    """The records of several sweeps, as `QualityGroups.pooled` has those of one."""
    entries = defaultdict[Sampling, defaultdict[tuple[Hashable, Place], list[Estimate]]](
        lambda: defaultdict(list)
    )
    for number, source in enumerate(sources):
        for record in source.records:
            group = source.groups.group(record)
            if group is None or record.duplicate_of is not None:
                continue
            for place, entry in _measured_entries(record):
                entries[group][source.basis.get(place.metric, number), place].append(entry)
    means = {
        group: {key: _mean(found, (group, *key)) for key, found in parts.items()}
        for group, parts in entries.items()
    }
    return [_pool_source(source, number, means) for number, source in enumerate(sources)]


def _pool_source(
    source: Source, number: int, means: Mapping[Sampling, Mapping[tuple[Hashable, Place], Estimate]]
) -> tuple[TrialRecord, ...]:
    """The records of one of several sweeps with the means of their groups."""
    groups = source.groups
    shared: dict[Sampling | None, dict[Place, Estimate]] = {
        group: source.values(found, number) for group, found in means.items()
    }
    vanilla = shared.get(groups.baseline, {})
    return tuple(
        groups.with_shared(record, shared.get(groups.group(record), {}), vanilla)
        for record in source.records
    )


def _at(images: int, entries: Mapping[Place, Estimate]) -> dict[str, Estimate]:
    """The entries of one number of images, by metric."""
    return {place.metric: entry for place, entry in entries.items() if place.images == images}


def _measured_entries(record: TrialRecord) -> Iterator[tuple[Place, Estimate]]:
    """What a trial's own images say, at each number of them."""
    measured = record.measured
    for images, values in {**dict(measured.history), measured.images: measured.metrics}.items():
        for name, entry in values.items():
            yield Place(images, name), entry


def _mean(entries: Sequence[Estimate], source: Hashable) -> Estimate:
    """The mean of estimates of one number, each on as many images.

    With replicates, its error is the jackknife's of the mean: what the estimates share by captions
    and random numbers is counted. Without, they may share all that moves them, so its error is
    their mean error. source: of that error, which all who have the value share.
    """
    first, *others = entries
    counts = {len(entry.replicates) for entry in entries}
    if not others and first.replicates:
        return first
    value = float(np.mean([entry.value for entry in entries]))
    if len(counts) == 1 and first.replicates:
        replicates = np.mean([entry.replicates for entry in entries], axis=0)
        error = float(jackknife_error(replicates))
        return Estimate(value, error, first.n, tuple(replicates.tolist()))
    known = [entry for entry in entries if np.isfinite(entry.error)] or entries
    error = float(np.mean([entry.error for entry in known]))
    dof = min((entry.error_dof for entry in known if entry.error_dof), default=0)  # 0: many
    noises = (Noise(source, source, error, dof),) if np.isfinite(error) else ()
    return Estimate(value, error, first.n, error_dof=dof, noises=noises)


def _minus(entry: Estimate, base: Estimate) -> Estimate:
    """The difference of two estimates on the same captions."""
    value = entry.value - base.value
    if entry is base:
        return Estimate(value, 0.0, entry.n, tuple(0.0 for _ in entry.replicates))
    if not entry.replicates or len(entry.replicates) != len(base.replicates):
        return replace(entry, value=value)
    replicates = np.subtract(entry.replicates, base.replicates)
    error = float(np.hypot(jackknife_error(replicates), entry.noise))
    return replace(entry, value=value, error=error, replicates=tuple(replicates.tolist()))
