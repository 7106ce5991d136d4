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
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
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
    # trials of earlier sweeps that the search was told before its own, whose values come first
    earlier: Sequence[TrialRecord] = ()

    @classmethod
    def of(cls, identity: Identity, earlier: Sequence[TrialRecord] = ()) -> QualityGroups:
        """The groups of a stored sweep. earlier: see `QualityGroups`."""
        return cls(identity.metrics, identity.sampling, identity.grid[1], earlier)

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
        if group is not None:
            first |= self._values_of_earlier(group)
            for other in earlier:
                if self.group(other) == group:
                    self._keep_first(first, other)
        return self._told(record, first)

    def all_as_told(self, records: Iterable[TrialRecord]) -> list[TrialRecord]:
        """The records of a running sweep from trial 0 on (see `as_told`). What racing stopped and
        revived in the end was told as it had stopped.
        """
        firsts = defaultdict[Sampling | None, dict[Place, Estimate]](dict)
        for group in {self.group(record) for record in self.earlier} - {None}:
            firsts[group] |= self._values_of_earlier(group)
        told = []
        for record in records:
            group = self.group(record)
            told.append(self._told(record, firsts[group] if group is not None else {}))
            if group is not None:
                self._keep_first(firsts[group], record)
        return told

    def values_in_full(
        self, record: TrialRecord, told: Iterable[TrialRecord]
    ) -> dict[str, Estimate]:
        """The values on all images of a trial's group, by metric; none for a trial without one, or
        whose group has no complete member. told: the trials that the search was told.
        """
        found: dict[str, Estimate] = {}
        group = self.group(record)
        if group is None:
            return found
        for other in chain(self._complete_earlier, told):
            if other.is_complete and self.group(other) == group:
                for name, entry in other.metrics.items():
                    metric = self.metrics.get(name)
                    if metric is not None and metric.is_of_distribution:
                        found.setdefault(name, entry)
        return found

    def _values_of_earlier(self, group: Sampling | None) -> dict[Place, Estimate]:
        """The first values that earlier sweeps told of a group."""
        found: dict[Place, Estimate] = {}
        for record in self._complete_earlier:
            if self.group(record) == group:
                for name, entry in record.metrics.items():
                    found.setdefault(Place(entry.n, name), entry)
        return found

    @property
    def _complete_earlier(self) -> list[TrialRecord]:
        """The earlier sweeps' trials whose values were measured on all images; those of the others
        are expected there.
        """
        return [record for record in self.earlier if record.is_complete]

    @staticmethod
    def _keep_first(first: dict[Place, Estimate], record: TrialRecord) -> None:
        """Add a member's values where the group has none. Those after its revival came last."""
        stop = record.stop
        for place, entry in _measured_entries(record):
            if stop is None or place.images <= stop.images:
                first.setdefault(place, entry)

    def _told(self, record: TrialRecord, first: Mapping[Place, Estimate]) -> TrialRecord:
        """A record with the first values of its group."""
        group = self.group(record)
        shared = {
            place: _mean([entry], _Key(None, 0, group, place)) for place, entry in first.items()
        }
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
        return _with_known(record.measured, entries, known)


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


class _Key(NamedTuple):
    """What a group's value is of."""

    basis: Hashable  # see `Source.basis`; None: the sweep's alone
    sweep: int  # its number among the sources; -1 with a basis
    group: Sampling | None
    place: Place


class OwnedSource(NamedTuple):
    """A source of noise that says whose it is. Any other is of the sweep of the value that has
    it.
    """

    sweep: Hashable  # None: values of several sweeps have it
    key: Hashable


@dataclass(frozen=True, slots=True)
class Source:
    """The records of one of several sweeps."""

    groups: QualityGroups
    records: Sequence[TrialRecord]
    # By metric, what its value depends on besides a setting's sampling. In sweeps with the same,
    # groups of one sampling are one; a metric without is the sweep's alone.
    basis: Mapping[str, Hashable] = field(default_factory=dict)
    # What a config's images depend on. Sweeps with the same have the same images, which count
    # once. None: they have images of their own.
    images: Callable[[DecodingConfig], Hashable] | None = None

    def key(self, number: int, group: Sampling | None, place: Place) -> _Key:
        """The key of a value of this source, the number of which is given."""
        basis = self.basis.get(place.metric)
        return _Key(basis, number if basis is None else -1, group, place)


def pool(sources: Sequence[Source]) -> list[tuple[TrialRecord, ...]]:
    """The records of several sweeps, as `QualityGroups.pooled` has those of one. Images that
    several sweeps have, copied or generated again, count once.
    """
    entries = defaultdict[_Key, dict[Hashable, Estimate]](dict)
    for number, source in enumerate(sources):
        for record in source.records:
            group = source.groups.group(record)
            if group is None or record.config is None or record.duplicate_of is not None:
                continue
            images: Hashable = (number, record.number)
            if source.images is not None:
                images = source.images(record.config)
            for place, entry in _measured_entries(record):
                entries[source.key(number, group, place)].setdefault(images, entry)
    means = {key: _mean([*found.values()], key) for key, found in entries.items()}
    return [_pool_source(source, number, means) for number, source in enumerate(sources)]


def _pool_source(
    source: Source, number: int, means: Mapping[_Key, Estimate]
) -> tuple[TrialRecord, ...]:
    """The records of one of several sweeps with the means of their groups."""
    groups = source.groups
    shared = defaultdict[Sampling | None, dict[Place, Estimate]](dict)
    for key, mean in means.items():
        if key == source.key(number, key.group, key.place):
            shared[key.group][key.place] = mean
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


def _mean(entries: Sequence[Estimate], key: _Key) -> Estimate:
    """The mean of estimates of one number, each on as many images.

    With replicates, its error is the jackknife's of the mean: what the estimates share by captions
    and random numbers is counted. Without, they may share all that moves them, so its error is
    their mean error, which all who have the value share.
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
    source: Hashable = key if key.basis is None else OwnedSource(None, key)
    noise = Noise(source, source, error, dof)
    noises = (noise,) if np.isfinite(error) else ()
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
