"""A trial as a front and notebooks show it: its values, its choice, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Protocol, cast

from orchestrator.front.bounds import describe_choice
from orchestrator.front.joint import JointErrors
from orchestrator.front.query import limit_confidence, limit_notes, limit_samples
from orchestrator.store.config_file import MeasuredSpeed, Setting, config_header
from orchestrator.store.names import SettingNames, title, trial_title
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from orchestrator.text import clean, html_table, percent, signed_percent
from search_spaces.constraints import Constraint
from search_spaces.documents import write_document
from search_spaces.params import unknown_key
from search_spaces.paths import local_path
from search_spaces.trial import DecodingConfig
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate

KNEE = "knee"  # a choice


class ShowingFront(Protocol):
    """What a trial asks of the front that shows it (see `orchestrator.front.front.Front`)."""

    @property
    def sweeps(self) -> Mapping[str, Sweep]: ...

    @property
    def metrics(self) -> tuple[Metric, ...]: ...

    @property
    def names(self) -> SettingNames: ...

    def bound(self, trial: Trial) -> float | None: ...

    def knee_confidence(self, trial: Trial) -> float: ...


@dataclass(frozen=True, eq=False)
class Trial:
    """A finished trial of a sweep, and what a front says of it.

    front: the front that shows it. origin: its sweep's name there. record: as the sweep stores it.
    row: its index in the front's table of all trials. confidence: the share of draws from the
    errors of all trials together in which it is on the front. distinct_from_next: the metrics in
    which it differs beyond error from the next trial on the front (None for the last trial, and off
    the front). within_error_of: names of the other trials on the front that are within error of it
    in every metric (None off the front).

    choice: what it was chosen for, "" if it was not. limits: within which it was the best.
    alternatives: the other trials within them that are within error of it in the first metric, by
    falling bound; None if it was not chosen by its bound. preferred_to: the lossy one of these that
    has the best bound, if this one was preferred as lossless.
    """

    front: ShowingFront
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
        return title(self.record.label, self.setting)

    @property
    def heading(self) -> str:
        """Its name and its title, as sentences name it (see `trial_title`)."""
        return trial_title(self.name, self.record.label, self.setting)

    @property
    def bound(self) -> float | None:
        """The value of the front's first metric that 90 % of draws exceed, or stay below if it is
        minimised; None if its error is unknown, or the trial is no candidate.
        """
        return self.front.bound(self)

    @property
    def basis(self) -> list[str]:
        """How `Front.best` chose it, and what is within error of it; empty if it was chosen
        otherwise.
        """
        if self.alternatives is None:
            return []
        names = [
            f"{trial.name} ({trial.record.label or trial.setting})" for trial in self.alternatives
        ]
        other = self.preferred_to
        return describe_choice(
            self.front.metrics[0], self.bound, names, None if other is None else other.bound
        )

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
        return self.record.is_lossless(self.sweep.identity)

    @property
    def by_chance(self) -> frozenset[str]:
        """The front's metrics in which it differs from vanilla by chance alone, as its setting is
        lossless.
        """
        return frozenset(
            metric.name
            for metric in self.front.metrics
            if self.is_lossless and not metric.is_of_counts
        )

    @cached_property
    def probability(self) -> float | None:
        """The share of draws in which it is within its limits, or is the knee if it was chosen as
        such; None where that is certain, or an error unknown. A limit that is relative to vanilla
        is certain for vanilla.
        """
        if self.choice == KNEE:
            return self.front.knee_confidence(self)
        relative = all(Constraint.parse(text).relative_to_vanilla for text in self.limits)
        return (
            None
            if relative and (self.is_vanilla or not self.limits)
            else self.limit_probability(self.limits)
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know about the choice."""
        return tuple(limit_notes(self.front.metrics, self.limits))

    @cached_property
    def gain_probability(self) -> float | None:
        """The share of draws in which its first metric is better than vanilla's in its sweep; None
        for vanilla itself, and where an error is unknown or vanilla lacks the metric.
        """
        metric, vanilla = self.front.metrics[0], self._vanilla_with(self.front.metrics[0])
        if vanilla is None or any(
            r.metrics[metric.name].known_error is None for r in (self.record, vanilla)
        ):
            return None
        own, base = limit_samples(self.record, vanilla, [metric])
        ahead = own - base if metric.direction == "maximize" else base - own
        return float((ahead > 0).mean())

    @cached_property
    def changes(self) -> Mapping[str, tuple[float, float]]:
        """How far its values in the front's metrics are from vanilla's in its sweep, by name: per
        cent of vanilla's value, and their standard error (NaN: unknown). Empty for vanilla itself;
        lacks metrics without a value of vanilla that is far enough from 0.
        """
        found: dict[str, tuple[float, float]] = {}
        for metric in self.front.metrics:
            vanilla = self._vanilla_with(metric)
            if vanilla is not None and (base := vanilla.metrics[metric.name].value):
                difference, error, _ = JointErrors.of([self.record, vanilla], [metric]).difference(
                    0, 1
                )
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
        """A metric's change against vanilla as text: `+2.3 ± 5.9 %`, or `+7.5 ± 5.9 % by chance`;
        empty for one without.
        """
        if metric not in self.changes:
            return ""
        return signed_percent(*self.changes[metric]) + (
            " by chance" if metric in self.by_chance else ""
        )

    def limit_probability(self, limits: Sequence[str]) -> float | None:
        """The share of draws in which it meets all limits (see `query.limit_confidence`)."""
        return limit_confidence(
            self.record, self.sweep.baseline, limits, self.sweep.identity.metrics
        )

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
        """Write `config_text` to a file, which `specfrontier generate --config` and `load_engine`
        read.

        Raises:
            ValueError: the path does not end in .yaml or .yml.
        """
        if (path := local_path(path)).suffix.lower() not in {".yaml", ".yml"}:
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
            "metrics": {
                name: {"value": e.value, "error": e.known_error} for name, e in self.metrics.items()
            },
            "confidence": self.confidence,
            "distinct_from_next": self.distinct_from_next,
            "within_error_of": self.within_error_of,
        }

    def __getitem__(self, metric: str) -> float:
        """A metric's value. Raises KeyError, with the nearest name, for one that was not
        measured.
        """
        if metric not in self.metrics:
            raise KeyError(
                f"trial {self.number}, {metric!r}: {unknown_key(metric, self.metrics, 'metric')}"
            )
        return self.metrics[metric].value

    def __repr__(self) -> str:
        values = []
        for place, name in enumerate(self.objectives):
            against = (
                f", against vanilla {self.change(name)}" if place and name in self.changes else ""
            )
            values.append(f"{name} {self.metrics[name]}{against}")
        notes = "".join(
            f"; {text}" for text in (*self.basis, *(f"note: {note}" for note in self.notes))
        )
        return clean(
            f"Trial {self.number}, {self.title}"
            + (f" ({'; '.join(values)})" if values else "")
            + notes
        )

    def _repr_html_(self) -> str:
        rows = [(name, str(self.metrics[name])) for name in self.objectives]
        rows += [
            (f"{name} against vanilla", self.change(name))
            for name in self.objectives[1:]
            if name in self.changes
        ]
        chances = {"holds": self.probability, "better than vanilla": self.gain_probability}
        rows += [
            (name, f"in {percent(chance)} of draws")
            for name, chance in chances.items()
            if chance is not None
        ]
        if self.gain_probability is not None and self.objectives[0] in self.by_chance:
            rows[-1] = rows[-1][0], f"{rows[-1][1]} by chance"
        rows += [("choice", text) for text in self.basis] + [("note", note) for note in self.notes]
        heading = f"{escape(self.choice)}: " if self.choice else ""
        return f"{heading}<b>Trial {self.number}</b>, {escape(self.title)}{html_table([], rows)}"
