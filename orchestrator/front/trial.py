"""A trial as a front and notebooks show it: its values, its choice, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, cast

from orchestrator.front.joint import JointErrors
from orchestrator.front.query import limit_confidence, limit_samples
from orchestrator.store import config_file, files
from orchestrator.store.explain import explain_setting
from orchestrator.store.names import SettingNames, title, trial_title
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from orchestrator.text import clean, html_table, percent, signed_percent
from search_spaces.documents import write_document
from search_spaces.params import unknown_key
from search_spaces.paths import local_path
from search_spaces.trial import DecodingConfig
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate

# What a metric of a lossless setting is, where it does not differ from vanilla's: a value of the
# distribution of images, and one that compares its images with vanilla's.
VANILLAS = "vanilla's (lossless)"
OTHER_SAMPLE = "another sample of vanilla's distribution"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Trial:
    """A finished trial of a sweep, with its names in a front."""

    sweep: Sweep
    record: TrialRecord  # as the sweep stores it
    front_metrics: tuple[Metric, ...]  # those of the front, the first of which is optimised
    names: SettingNames  # names of settings, as the front has them
    origin: str  # the name of its sweep among those of the front
    name: str  # its number, after the sweep's name if the front has several sweeps
    row: int  # its index in the front's table of all trials

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
    def models(self) -> str:
        """The sweep's models, as --models takes them."""
        return self.sweep.models

    @property
    def batch(self) -> int:
        """The batch at which speed was measured."""
        return self.sweep.identity.timing_batch

    @property
    def setting(self) -> str:
        """The name of its setting."""
        return self.names.name(self.config)

    @property
    def description(self) -> str:
        """The name of its setting in full."""
        return self.names.describe(self.config)

    @property
    def title(self) -> str:
        """The name of its setting, after the trial's label if it has one."""
        return title(self.record.label, self.setting)

    @property
    def explanation(self) -> str:
        """What its setting does, in plain sentences."""
        kept = "Lossless: images have" if self.is_lossless else "Lossy: images do not have"
        return f"{explain_setting(self.config)} {kept} vanilla's distribution."

    @property
    def heading(self) -> str:
        """Its name and its title, as sentences name it (see `trial_title`)."""
        return trial_title(self.name, self.record.label, self.setting)

    @property
    def objectives(self) -> tuple[str, ...]:
        """The names of the front's metrics that it has."""
        return tuple(metric.name for metric in self.front_metrics if metric.name in self.metrics)

    @property
    def is_vanilla(self) -> bool:
        """Whether it is the vanilla of its own sweep."""
        return self.record is self.sweep.baseline

    @property
    def is_lossless(self) -> bool:
        """Whether its setting leaves the distribution of images as it is."""
        return self.record.is_lossless(self.sweep.identity)

    def has_vanillas(self, metric: Metric) -> bool:
        """Whether its value is vanilla's by theorem: it is lossless, and the metric depends on the
        distribution of images alone.
        """
        return self.is_lossless and metric.is_of_distribution

    @cached_property
    def gain_probability(self) -> float | None:
        """The share of draws in which its first metric is better than vanilla's in its sweep; None
        for vanilla itself, where the value is vanilla's, and where an error is unknown or vanilla
        lacks the metric.
        """
        metric = self.front_metrics[0]
        vanilla = self._vanilla_with(metric)
        if vanilla is None:
            return None
        records = (self.record, vanilla)
        if any(record.metrics[metric.name].known_error is None for record in records):
            return None
        own, base = limit_samples(self.record, vanilla, [metric])
        is_better = own > base if metric.direction == "maximize" else own < base
        return float(is_better.mean())

    @cached_property
    def changes(self) -> Mapping[str, tuple[float, float]]:
        """How far its values in the front's metrics are from vanilla's in its sweep, by name: per
        cent of vanilla's value, and their standard error (NaN: unknown). Empty for vanilla itself;
        lacks metrics whose value is vanilla's (see `has_vanillas`), and those without a value of
        vanilla that is far enough from 0.
        """
        found: dict[str, tuple[float, float]] = {}
        for metric in self.front_metrics:
            vanilla = self._vanilla_with(metric)
            if vanilla is not None and (base := vanilla.metrics[metric.name].value):
                joint = JointErrors.of([self.record, vanilla], [metric])
                difference, error, _ = joint.difference(0, 1)
                value, spread = (100 * float(part[0]) / abs(base) for part in (difference, error))
                if math.isfinite(value):
                    found[metric.name] = (value, spread)
        return found

    def _vanilla_with(self, metric: Metric) -> TrialRecord | None:
        """The vanilla of its sweep, if that is another trial, and both have a value of their own of
        the metric.
        """
        vanilla = self.sweep.baseline
        if vanilla is None or self.is_vanilla or self.has_vanillas(metric):
            return None
        if metric.name not in self.metrics or metric.name not in vanilla.metrics:
            return None
        return vanilla

    @property
    def image_grid(self) -> str | None:
        """Where the picture of its first images is; None if there is none."""
        name = f"{files.IMAGE_GRIDS}/{self.record.digest}.png"
        storage = self.sweep.storage
        return storage.locate(name) if storage.exists(name) else None

    def change(self, metric: str) -> str:
        """A metric against vanilla as text: `+2.3 ± 5.9 %`, or what a lossless setting has instead;
        empty for vanilla itself, and for a metric without one.
        """
        if metric in self.changes:
            return signed_percent(*self.changes[metric])
        found = [asked for asked in self.front_metrics if asked.name == metric]
        if not found or not self.is_lossless or self.is_vanilla:
            return ""
        if found[0].is_of_distribution:
            return VANILLAS
        return "" if found[0].is_of_counts else OTHER_SAMPLE

    def against_vanilla(self, metric: str) -> str:
        """The same for a sentence: `+2.3 ± 5.9 % against vanilla`."""
        change = self.change(metric)
        return f"{change} against vanilla" if metric in self.changes else change

    def limit_probability(self, limits: Sequence[str]) -> float | None:
        """The share of draws in which it meets all limits (see `query.limit_confidence`)."""
        return limit_confidence(
            self.record, self.sweep.baseline, limits, self.sweep.identity.metrics
        )

    @property
    def header(self) -> str:
        """The comments at the head of the file that `save` writes (see `config_header`)."""
        remarks = {metric.name: self.against_vanilla(metric.name) for metric in self.front_metrics}
        return config_file.config_header(self.sweep.identity, self.record, self._purpose, remarks)

    @property
    def _purpose(self) -> str:
        """What it was chosen for; empty for a trial that was not."""
        return ""

    @property
    def config_text(self) -> str:
        """The config as YAML, below comments that say what the sweep measured, at which batch."""
        return self.header + write_document(self.config.to_mapping())

    def to_setting(self) -> config_file.Setting:
        """Its config to generate with."""
        identity = self.sweep.identity
        return config_file.Setting(
            mapping=self.config.to_mapping(),
            origin=f"{self._purpose}: trial {self.number} of {self.sweep.name}",
            models=self.models,
            batch=self.batch,
            speed=config_file.MeasuredSpeed.of(identity, self.record),
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
            value = f"{name} {self.metrics[name]}"
            if place and self.change(name):
                value += f", {self.against_vanilla(name)}"
            values.append(value)
        text = f"Trial {self.number}, {self.title}"
        if values:
            text += f" ({'; '.join(values)})"
        for kind, remark in self._remarks():
            text += f"; note: {remark}" if kind == "note" else f"; {remark}"
        return clean(text)

    def _repr_html_(self) -> str:
        rows = [(name, str(self.metrics[name])) for name in self.objectives]
        changed = [name for name in self.objectives[1:] if self.change(name)]
        rows += [(f"{name} against vanilla", self.change(name)) for name in changed]
        rows += self._chances()
        rows += self._remarks()
        heading = f"{escape(self._purpose)}: " if self._purpose else ""
        return f"{heading}<b>Trial {self.number}</b>, {escape(self.title)}{html_table([], rows)}"

    def _chances(self) -> list[tuple[str, str]]:
        """Rows of a notebook's table: in how many draws what is said of it holds."""
        if self.gain_probability is None:
            return []
        return [("better than vanilla", f"in {percent(self.gain_probability)} of draws")]

    def _remarks(self) -> list[tuple[str, str]]:
        """Further rows of the table: by kind, a sentence each."""
        return []


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Candidate(Trial):
    """A trial that may be on a front, with the front's marks."""

    on_front: bool = False
    # the share of draws from the errors of all trials together in which it is on the front
    confidence: float = 0.0
    # the metrics in which it differs beyond error from the next trial on the front; None for the
    # last one, and for one that is not on the front
    distinct_from_next: list[str] | None = None
    # names of the other trials on the front that are within error of it in every metric; None if it
    # is not on the front
    within_error_of: list[str] | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        check = self.record.check
        return {
            "sweep": self.origin,
            "number": self.number,
            "label": self.record.label,
            "digest": self.record.digest,
            "on_front": self.on_front,
            "setting": self.setting,
            "description": self.description,
            "lossless": self.is_lossless,
            "token_check": check and asdict(check) | {"passed": check.passed},
            "config": self.config.to_mapping(),
            "metrics": {
                name: {"value": entry.value, "error": entry.known_error}
                for name, entry in self.metrics.items()
            },
            "confidence": self.confidence,
            "distinct_from_next": self.distinct_from_next,
            "within_error_of": self.within_error_of,
        }
