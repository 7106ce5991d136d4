"""Lossless settings have one quality: the tokens of each are samples of the target's own
distribution, so that their images have one distribution, and a metric of it is one number.

Settings with the same sampling that are lossless for it are a group, vanilla among them. Each draws
images of its own and measures its own estimate of the same number; which of these is better is
luck. So a front compares them by one estimate. Metrics that compare images with vanilla's images
one by one, such as drift, are left as they are: a lossless setting draws other samples there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from orchestrator.store.identity import Identity
from orchestrator.store.records import FAILED, History, TrialRecord
from search_spaces.trial import DecodingConfig, Sampling
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate, Noise, jackknife_error

Values = Mapping[str, Estimate]


@lru_cache(maxsize=1 << 14)
def _lossless_sampling(config: DecodingConfig, cols: int) -> Sampling | None:
    """The sampling of a config that is lossless for it; None for a lossy one."""
    return config.sampling if config.is_lossless(config.sampling, cols) else None


@dataclass(frozen=True, slots=True)
class QualityGroups:
    """The groups of lossless settings in sweeps of one target."""

    metrics: Mapping[str, Metric]
    baseline: Sampling  # vanilla's
    cols: int  # tokens of an image row

    @classmethod
    def of(cls, identity: Identity) -> QualityGroups:
        """The groups of a stored sweep."""
        return cls(identity.metrics, identity.sampling, identity.grid[1])

    def group(self, record: TrialRecord) -> Sampling | None:
        """The sampling that a trial's group has; None if the trial is in none."""
        if record.config is None or record.state == FAILED:
            return None
        return _lossless_sampling(record.config, self.cols)

    def as_told(self, record: TrialRecord, earlier: Iterable[TrialRecord]) -> TrialRecord:
        """A trial's record as a running sweep knows it: in a group, with the values of the group's
        first member, at each number of images. So what the search was told never changes.

        Args:
            record: as measured.
            earlier: the trials that were told before, in their order.
        """
        group = self.group(record)
        if group is None:
            return record
        first: dict[int, Values] = {}
        for other in earlier:
            if self.group(other) == group:
                for images, values in measured_history(other):
                    first.setdefault(images, _mean_values([values], (group, images)))
        return self._with(record, first, {})

    def all_as_told(self, records: Iterable[TrialRecord]) -> list[TrialRecord]:
        """The records of a running sweep from trial 0 on (see `as_told`)."""
        found: list[TrialRecord] = []
        for record in records:
            found.append(self.as_told(record, found))
        return found

    def pooled(self, records: Sequence[TrialRecord]) -> tuple[TrialRecord, ...]:
        """All records of a sweep. Those of a group have the mean of what its members measured on
        as many images; gains over vanilla are over its group's mean.
        """
        (found,) = pool([(self, "", records)])
        return found

    def _with(
        self,
        record: TrialRecord,
        shared: Mapping[int, Values],
        vanilla: Mapping[int, Values],
    ) -> TrialRecord:
        """A record with values that it shares with its group, and gains over those of vanilla's
        group; both by number of images.
        """
        history: list[tuple[int, Values]] = []
        own: list[tuple[int, Values]] = []
        for images, values in measured_history(record):
            known = dict[str, Estimate]()
            for name, entry in values.items():
                metric = self.metrics.get(name)
                if metric is None or not metric.is_of_distribution:
                    continue
                value = shared.get(images, {}).get(name, entry)
                base = vanilla.get(images, {}).get(name) if metric.is_gain else None
                value = value if base is None else _minus(value, base)
                if value is not entry:
                    known[name] = value
            history.append((images, {**values, **known}))
            own.append((images, {name: values[name] for name in known}))
        if not any(values for _, values in own):
            return record
        metrics = dict(history)[record.images]
        rungs = dict(record.history)
        kept = tuple(entry for entry in history if entry[0] in rungs)
        return replace(record, metrics=metrics, history=kept, own=tuple(own))


def measured_history(record: TrialRecord) -> History:
    """A trial's metrics on its own images, at each number of images, rising."""
    measured = record.measured
    found = {**dict(measured.history), measured.images: measured.metrics}
    return tuple(sorted(found.items()))


def pool(
    sweeps: Sequence[tuple[QualityGroups, Hashable, Sequence[TrialRecord]]],
) -> list[tuple[TrialRecord, ...]]:
    """The records of several sweeps, as `QualityGroups.pooled`. Each comes with what the images of
    a lossless setting depend on besides its sampling: groups of equal ones are one.
    """
    members: defaultdict[Hashable, defaultdict[int, list[Values]]]
    members = defaultdict(lambda: defaultdict(list))
    for groups, target, records in sweeps:
        for record in records:
            group = groups.group(record)
            if group is not None and record.duplicate_of is None:
                for images, values in measured_history(record):
                    members[target, group][images].append(values)
    shared = {
        key: {images: _mean_values(values, (key, images)) for images, values in found.items()}
        for key, found in members.items()
    }
    return [
        tuple(
            groups._with(
                record,
                shared.get((target, groups.group(record)), {}),
                shared.get((target, groups.baseline), {}),
            )
            for record in records
        )
        for groups, target, records in sweeps
    ]


def _mean_values(members: Sequence[Values], source: Hashable) -> Values:
    """The mean of each metric over the members that have it."""
    names = dict.fromkeys(name for values in members for name in values)
    return {
        name: mean_estimate([values[name] for values in members if name in values], (source, name))
        for name in names
    }


def mean_estimate(entries: Sequence[Estimate], source: Hashable) -> Estimate:
    """The mean of estimates of one number, each on as many images.

    With replicates, its error is the jackknife's of the mean: what the estimates share by captions
    and random numbers is counted. Without, they may share all that moves them, so its error is
    their mean error. source: of that error, which all who have the value share.
    """
    first, *others = entries
    counts = {len(entry.replicates) for entry in entries}
    if counts != {0} and not others:
        return first
    value = float(np.mean([entry.value for entry in entries]))
    if counts != {0} and len(counts) == 1:
        replicates = np.mean([entry.replicates for entry in entries], axis=0)
        error = float(jackknife_error(replicates))
        return Estimate(value, error, first.n, tuple(replicates.tolist()))
    error = float(np.mean([entry.error for entry in entries]))
    dof = min(entry.error_dof for entry in entries)
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
