"""The front of one or more sweeps in two or three metrics, and its trials, as commands and notebooks show them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from orchestrator.results.bounds import Bounds, describe_choice
from orchestrator.results.compare import hypervolume, reference_point, require_comparable, sampled_hypervolumes
from orchestrator.results.config_file import MeasuredSpeed, Setting, config_header
from orchestrator.results.joint import JointErrors, directions, standard_error, values_of
from orchestrator.results.names import SettingNames
from orchestrator.results.pareto import Floats, front_confidence, knee, knee_confidence, nondominated
from orchestrator.results.query import (
    NoChoiceError,
    QueryError,
    limit_confidence,
    limit_notes,
    limit_samples,
    passing,
    require_list,
)
from orchestrator.results.sweep import Sweep
from orchestrator.results.text import clean, html_table, percent, signed_percent
from orchestrator.results.trials import COMPLETE, FAILED, STOPPED, TrialRecord
from search_spaces.constraints import Constraint
from search_spaces.documents import write_document
from search_spaces.params import unknown_key
from search_spaces.trial import DecodingConfig
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate

if TYPE_CHECKING:
    import pyarrow

KNEE = "knee"  # a choice


@dataclass(frozen=True, eq=False)
class Trial:
    """A finished trial of a sweep, and what a front says of it.

    front: the front that shows it. origin: its sweep's name there. record: as the sweep stores it. row: its index in
    the front's table of all trials. confidence: the share of draws from the errors of all trials together in which it
    is on the front. distinct_from_next: the metrics in which it differs beyond error from the next trial on the front
    (None for the last trial, and off the front). within_error_of: names of the other trials on the front that are
    within error of it in every metric (None off the front).

    choice: what it was chosen for, "" if it was not. limits: within which it was the best. alternatives: the other
    trials within them that are within error of it in the first metric, by falling bound; None if it was not chosen by
    its bound. preferred_to: the lossy one of these that has the best bound, if this one was preferred as lossless.
    """

    front: Front
    origin: str
    record: TrialRecord
    row: int
    on_front: bool = False
    confidence: float = 0.0
    distinct_from_next: list[str] | None = None
    within_error_of: list[str] | None = None
    choice: str = ""
    limits: tuple[str, ...] = ()
    alternatives: tuple[Trial, ...] | None = None
    preferred_to: Trial | None = None

    @property
    def number(self) -> int:
        return self.record.number

    @property
    def config(self) -> DecodingConfig:
        return cast(DecodingConfig, self.record.config)  # measured, so it has one

    @property
    def metrics(self) -> Mapping[str, Estimate]:
        """All values that were measured, with standard errors."""
        return self.record.metrics

    @property
    def sweep(self) -> Sweep:
        return self.front.sweeps[self.origin]

    @property
    def models(self) -> str:
        """The sweep's models, as --models takes them."""
        return self.sweep.models

    @property
    def batch(self) -> int:
        """The batch at which speed was measured."""
        return self.sweep.identity.timing_batch

    @property
    def name(self) -> str:
        """Its number, after the sweep's name if the front has several sweeps."""
        return f"{self.origin}#{self.number}" if len(self.front.sweeps) > 1 else str(self.number)

    @property
    def setting(self) -> str:
        """The name of its setting."""
        return self.front.names.name(self.config)

    @property
    def description(self) -> str:
        """The name of its setting in full."""
        return self.front.names.describe(self.config)

    @property
    def title(self) -> str:
        """The name of its setting, after the trial's label if it has one."""
        return self.record.title(self.setting)

    @property
    def bound(self) -> float | None:
        """The value of the front's first metric that 90 % of draws exceed, or stay below if it is minimised; None if
        its error is unknown, or the trial is no candidate."""
        return self.front.bound(self)

    @property
    def basis(self) -> list[str]:
        """How `Front.best` chose it, and what is within error of it; empty if it was chosen otherwise."""
        if self.alternatives is None:
            return []
        names = [f"{trial.name} ({trial.record.label or trial.setting})" for trial in self.alternatives]
        other = self.preferred_to
        return describe_choice(self.front.metrics[0], self.bound, names, None if other is None else other.bound)

    @property
    def objectives(self) -> tuple[str, ...]:
        """The names of the front's metrics that it has."""
        return tuple(metric.name for metric in self.front.metrics if metric.name in self.metrics)

    @property
    def is_vanilla(self) -> bool:
        """Whether it is the vanilla of its own sweep."""
        return self.record is self.sweep.baseline

    @property
    def is_lossless(self) -> bool:
        """Whether its setting leaves the distribution of images as it is."""
        return self.record.is_lossless(self.sweep.identity.sampling)

    @property
    def by_chance(self) -> frozenset[str]:
        """The front's metrics in which it differs from vanilla by chance alone, as its setting is lossless."""
        return frozenset(metric.name for metric in self.front.metrics if self.is_lossless and not metric.is_of_counts)

    @cached_property
    def probability(self) -> float | None:
        """The share of draws in which it is within its limits, or is the knee if it was chosen as such; None where that
        is certain, or an error unknown. A limit that is relative to vanilla is certain for vanilla.
        """
        if self.choice == KNEE:
            return self.front.knee_confidence(self)
        relative = all(Constraint.parse(text).relative_to_vanilla for text in self.limits)
        return None if relative and (self.is_vanilla or not self.limits) else self.limit_probability(self.limits)

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know about the choice."""
        return tuple(limit_notes(self.front.metrics, self.limits))

    @cached_property
    def gain_probability(self) -> float | None:
        """The share of draws in which its first metric is better than vanilla's in its sweep; None for vanilla itself,
        and where an error is unknown or vanilla lacks the metric."""
        metric, vanilla = self.front.metrics[0], self._vanilla_with(self.front.metrics[0])
        if vanilla is None or any(r.metrics[metric.name].known_error is None for r in (self.record, vanilla)):
            return None
        own, base = limit_samples(self.record, vanilla, [metric])
        ahead = own - base if metric.direction == "maximize" else base - own
        return float((ahead > 0).mean())

    @cached_property
    def changes(self) -> Mapping[str, tuple[float, float]]:
        """How far its values in the front's metrics are from vanilla's in its sweep, by name: per cent of vanilla's
        value, and their standard error (NaN: unknown). Empty for vanilla itself; lacks metrics without a value of
        vanilla that is far enough from 0.
        """
        found: dict[str, tuple[float, float]] = {}
        for metric in self.front.metrics:
            vanilla = self._vanilla_with(metric)
            if vanilla is not None and (base := vanilla.metrics[metric.name].value):
                difference, error, _ = JointErrors.of([self.record, vanilla], [metric]).difference(0, 1)
                value, spread = (100 * float(part[0]) / abs(base) for part in (difference, error))
                found |= {metric.name: (value, spread)} if math.isfinite(value) else {}
        return found

    def _vanilla_with(self, metric: Metric) -> TrialRecord | None:
        """The vanilla of its sweep, if that is another trial and both have the metric."""
        vanilla = self.sweep.baseline
        if vanilla is None or self.is_vanilla:
            return None
        return vanilla if metric.name in self.metrics and metric.name in vanilla.metrics else None

    def change(self, metric: str) -> str:
        """A metric's change against vanilla as text: `+2.3 ± 5.9 %`, or `+7.5 ± 5.9 % by chance`; empty for one
        without."""
        if metric not in self.changes:
            return ""
        return signed_percent(*self.changes[metric]) + (" by chance" if metric in self.by_chance else "")

    def limit_probability(self, limits: Sequence[str]) -> float | None:
        """The share of draws in which it meets all limits (see `query.limit_confidence`)."""
        return limit_confidence(self.record, self.sweep.baseline, limits, self.sweep.identity.metrics)

    @property
    def header(self) -> str:
        """The comments at the head of the file that `save` writes (see `config_header`)."""
        names = [metric.name for metric in self.front.metrics]
        return config_header(self.sweep.identity, self.record, self.choice, names, self.changes)

    @property
    def config_text(self) -> str:
        """The config as YAML, below comments that say what the sweep measured, at which batch."""
        return self.header + write_document(self.config.to_mapping())

    def to_setting(self) -> Setting:
        """Its config to generate with."""
        identity = self.sweep.identity
        return Setting(
            mapping=self.config.to_mapping(),
            origin=f"{self.choice}: trial {self.number} of {self.sweep.name}",
            models=self.models,
            batch=self.batch,
            speed=MeasuredSpeed.of(identity, self.record),
            comments=self.header,
            weights=identity.models,
            baseline=identity.baseline,
        )

    def save(self, path: str | Path) -> Path:
        """Write `config_text` to a file, which `specfrontier generate --config` and `load_engine` read.

        Raises:
            ValueError: the path does not end in .yaml or .yml.
        """
        if (path := Path(path)).suffix.lower() not in {".yaml", ".yml"}:
            raise ValueError(f"{path}: give a file name that ends in .yaml or .yml")
        path.write_text(self.config_text, "utf-8")
        return path

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "sweep": self.origin,
            "number": self.number,
            "label": self.record.label,
            "digest": self.record.digest,
            "on_front": self.on_front,
            "setting": self.setting,
            "description": self.description,
            "config": self.config.to_mapping(),
            "metrics": {name: {"value": e.value, "error": e.known_error} for name, e in self.metrics.items()},
            "confidence": self.confidence,
            "distinct_from_next": self.distinct_from_next,
            "within_error_of": self.within_error_of,
        }

    def __getitem__(self, metric: str) -> float:
        """A metric's value. Raises KeyError, with the nearest name, for one that was not measured."""
        if metric not in self.metrics:
            raise KeyError(f"trial {self.number}, {metric!r}: {unknown_key(metric, self.metrics, 'metric')}")
        return self.metrics[metric].value

    def __repr__(self) -> str:
        values = []
        for place, name in enumerate(self.objectives):
            against = f", against vanilla {self.change(name)}" if place and name in self.changes else ""
            values.append(f"{name} {self.metrics[name]}{against}")
        notes = "".join(f"; {text}" for text in (*self.basis, *(f"note: {note}" for note in self.notes)))
        return clean(f"Trial {self.number}, {self.title}" + (f" ({'; '.join(values)})" if values else "") + notes)

    def _repr_html_(self) -> str:
        rows = [(name, str(self.metrics[name])) for name in self.objectives]
        rows += [(f"{name} against vanilla", self.change(name)) for name in self.objectives[1:] if name in self.changes]
        chances = {"holds": self.probability, "better than vanilla": self.gain_probability}
        rows += [(name, f"in {percent(chance)} of draws") for name, chance in chances.items() if chance is not None]
        if self.gain_probability is not None and self.objectives[0] in self.by_chance:
            rows[-1] = rows[-1][0], f"{rows[-1][1]} by chance"
        rows += [("choice", text) for text in self.basis] + [("note", note) for note in self.notes]
        heading = f"{escape(self.choice)}: " if self.choice else ""
        return f"{heading}<b>Trial {self.number}</b>, {escape(self.title)}{html_table([], rows)}"


@dataclass(frozen=True, eq=False)
class Front:
    """The front of one or more sweeps.

    sweeps: by name. metrics: two or three, the first of which is to be the best within limits on the others. trials:
    all trials as a table, with a column `sweep`. rows: those in it that may be on the front. left_out: number of the
    others by reason.
    """

    sweeps: Mapping[str, Sweep]
    metrics: tuple[Metric, ...]
    trials: pyarrow.Table
    rows: Sequence[int]
    left_out: Mapping[str, int]

    @cached_property
    def names(self) -> SettingNames:
        """The names of the settings."""
        return SettingNames.across(sweep.identity.sampling for sweep in self.sweeps.values())

    @cached_property
    def candidates(self) -> list[Trial]:
        """The trials that may be on the front, by rising first metric, with the front's marks."""
        owned = [(name, record) for name, sweep in self.sweeps.items() for record in sweep.records]
        found = [Trial(self, *owned[row], row) for row in self.rows]
        joint, toward = self._joint(found), directions(self.metrics)
        on_front, confidence = nondominated(joint.values, toward), front_confidence(joint.samples(), toward)
        order = [int(index) for index in np.lexsort(joint.values.T[::-1])]
        members = [index for index in order if on_front[index]]
        within, distinct = dict[int, list[str]](), dict[int, list[str]]()
        for place, index in enumerate(members):
            differs = {other: joint.differ(index, other) for other in members}
            within[index] = [found[other].name for other in members if other != index and not differs[other].any()]
            for following in members[place + 1 : place + 2]:
                pairs = zip(self.metrics, differs[following], strict=True)
                distinct[index] = [metric.name for metric, differ in pairs if differ]
        return [
            replace(
                found[index],
                on_front=bool(on_front[index]),
                confidence=float(confidence[index]),
                distinct_from_next=distinct.get(index),
                within_error_of=within.get(index),
            )
            for index in order
        ]

    @cached_property
    def members(self) -> list[Trial]:
        """The trials on the front."""
        return [trial for trial in self.candidates if trial.on_front]

    def _joint(self, trials: Sequence[Trial]) -> JointErrors:
        return JointErrors.of([t.record for t in trials], self.metrics, [t.sweep.identity for t in trials])

    @cached_property
    def joint_errors(self) -> JointErrors:
        """The candidates' values in the metrics, with the errors that they share."""
        return self._joint(self.candidates)

    @cached_property
    def _samples(self) -> Floats:
        return self.joint_errors.samples()

    @cached_property
    def _bounds(self) -> Bounds:
        """The candidates' bounds in the first metric."""
        return Bounds.of(self.joint_errors, self._samples, self.metrics[0].direction)

    def bound(self, trial: Trial) -> float | None:
        """See `Trial.bound`."""
        rows = [candidate.row for candidate in self.candidates]
        bound = self._bounds.values[rows.index(trial.row)] if trial.row in rows else np.nan
        return float(bound) if np.isfinite(bound) else None

    def table(self, trials: Sequence[Trial]) -> pyarrow.Table:
        """Trials as rows. Columns: `sweep`, those of `trial_table`, and the front's marks."""
        import pyarrow as pa

        table, texts = self.trials.take(pa.array([trial.row for trial in trials], pa.int64())), pa.list_(pa.string())
        kinds = {"on_front": pa.bool_(), "confidence": pa.float64(), "distinct_from_next": texts}
        for name, kind in (kinds | {"within_error_of": texts}).items():
            table = table.append_column(name, pa.array([getattr(trial, name) for trial in trials], kind))
        return table

    def trial(self, number: int) -> Trial:
        """A finished trial of a front of one sweep, whether or not it may be on the front.

        Raises:
            QueryError: there are several sweeps.
            NoChoiceError: no such trial, or its config is invalid.
        """
        if len(self.sweeps) > 1:
            raise QueryError(f"trial {number}: each of {' and '.join(self.sweeps)} has its own; give one sweep")
        if (found := next((trial for trial in self.candidates if trial.number == number), None)) is not None:
            return found
        ((name, sweep),) = self.sweeps.items()
        for row, record in enumerate(sweep.records):
            if record.number == number and record.config is None:
                raise NoChoiceError(f"sweep {sweep.name}: trial {number} has no config ({record.cause})")
            if record.number == number:
                return Trial(self, name, record, row)
        raise NoChoiceError(f"sweep {sweep.name}: no finished trial {number}")

    def best(self, limits: Sequence[str] = (), *, lossless: bool = False) -> Trial | None:
        """The candidate with the best bound in the first metric among those that meet all limits, or a lossless one
        within error of it (see `Bounds.best`); `lossless`: among those that are (see `DecodingConfig.is_lossless`).

        Raises:
            QueryError: a limit cannot be parsed, or needs a value that a sweep does not have.
        """
        trials, metric = self.candidates, self.metrics[0]
        origins = {trial.origin for trial in trials} or self.sweeps  # one without candidates may lack vanilla
        tests = {name: [self.sweeps[name].limit(text) for text in limits] for name in origins}
        within = [i for i, trial in enumerate(trials) if all(test(trial.record) for test in tests[trial.origin])]
        within = [i for i in within if not lossless or trials[i].is_lossless]
        if (found := self._bounds.best(within, lambda index: trials[index].is_lossless)) is None:
            return None
        heading = metric.best_lossless if lossless else metric.best
        heading += f" within {' and '.join(limits)}" if limits else ""
        return replace(
            trials[found.best],
            choice=heading,
            limits=tuple(limits),
            alternatives=tuple(trials[index] for index in found.alternatives),
            preferred_to=None if found.preferred_to is None else trials[found.preferred_to],
        )

    def best_lossless(self) -> Trial | None:
        """The best lossless candidate; None if it is vanilla, or if the first metric is of quality, in which lossless
        settings differ by chance alone."""
        best = self.best(lossless=True) if self.metrics[0].is_of_counts else None
        return None if best is None or best.is_vanilla else best

    def knee(self) -> Trial | None:
        """The front's knee (see `pareto.knee`)."""
        found = knee(values_of([member.record for member in self.members], self.metrics), directions(self.metrics))
        return None if found is None else replace(self.members[found], choice=KNEE)

    def knee_confidence(self, trial: Trial) -> float:
        """The share of draws from the candidates' errors in which this one is the knee."""
        place = [candidate.record for candidate in self.candidates].index(trial.record)
        return knee_confidence(self._samples, directions(self.metrics), place)

    def reference_point(self) -> list[float]:
        """The default reference point, in the metrics' units; computed from all complete trials, without filters."""
        complete = [record for sweep in self.sweeps.values() for record in sweep.records if record.state == COMPLETE]
        return [float(value) for value in reference_point(values_of(complete, self.metrics), directions(self.metrics))]

    def hypervolume(self, reference: Sequence[float]) -> tuple[float, float]:
        """The front's hypervolume up to a reference point, and its standard error: the spread over draws from the
        candidates' errors."""
        toward, values = directions(self.metrics), values_of([trial.record for trial in self.members], self.metrics)
        samples = sampled_hypervolumes(self._samples, reference, toward)
        return hypervolume(values, reference, toward), standard_error(samples)


def front_of(
    sweeps: Sequence[Sweep],
    x: str | None = None,
    y: str | None = None,
    z: str | None = None,
    where: Iterable[str] = (),
    subject_to: Iterable[str] = (),
    *,
    feasible: bool = True,
) -> Front:
    """The front of two or three metrics over all sweeps together.

    x, y, z: metrics; by default the first sweep's own objectives. where, subject_to: filters and constraints on the
    candidates (see `query`). feasible: only trials within the constraints that the sweep was launched with.

    Raises:
        QueryError: a metric, column or constraint that a sweep does not have; a metric whose values cannot be compared
            across the sweeps; a sweep given twice.
    """
    import pyarrow as pa

    require_list(subject_to, "subject_to")
    counts = Counter(sweep.name for sweep in sweeps)
    named = {sweep.name if counts[sweep.name] == 1 else sweep.storage.display_name: sweep for sweep in sweeps}
    if len(named) < len(sweeps):
        raise QueryError("a sweep is given twice; name each once")
    metrics = sweeps[0].objectives(x, y, z)
    for metric in metrics:
        for sweep in sweeps:
            sweep.metric(metric.name)
        require_comparable([sweep.identity for sweep in sweeps], metric.name)
    owned = [(name, record) for name, sweep in named.items() for record in sweep.records]
    limits = {name: [sweep.limit(text) for text in subject_to] for name, sweep in named.items()}
    trials = pa.concat_tables([sweep.table for sweep in named.values()], promote_options="default")
    trials = trials.add_column(0, "sweep", pa.array([name for name, _ in owned], pa.string()))
    tests = {
        "by --where": passing(trials, where),
        "failed": [record.state != FAILED for _, record in owned],
        "stopped early": [record.state != STOPPED for _, record in owned],
        "repeated": [record.duplicate_of is None for _, record in owned],
        "outside the constraints": [record.feasible or not feasible for _, record in owned],
        "outside --subject-to": [all(limit(record) for limit in limits[name]) for name, record in owned],
        "not measured": [all(metric.name in record.metrics for metric in metrics) for _, record in owned],
    }
    passed = np.logical_and.accumulate(np.array(list(tests.values()), dtype=np.bool_))
    failed_first = -np.diff(passed.sum(axis=1), prepend=len(owned))
    left_out = {reason: int(count) for reason, count in zip(tests, failed_first, strict=True) if count}
    return Front(named, metrics, trials, [int(row) for row in np.flatnonzero(passed[-1])], left_out)
