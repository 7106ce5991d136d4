"""Sweeps and their trials, as a notebook shows them."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from orchestrator.outputs import CONFIGS, ending_of
from orchestrator.results import sweep as results
from orchestrator.results.choices import KNEE, Choice, best_within, choice_of, limit_notes, trial_by_number
from orchestrator.results.config_file import choice_header
from orchestrator.results.plots import marked_choices
from orchestrator.results.query import QueryError
from orchestrator.results.sweep import Front, front_of
from orchestrator.results.text import clean, counted, measured, percent, signed_percent
from search_spaces.documents import write_document
from search_spaces.params import unknown_key
from search_spaces.sweep_sections import BUILTIN
from search_spaces.trial import DecodingConfig
from workers.metrics.definition import Metric
from workers.metrics.estimate import Estimate

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

    from workers.data.storage import Storage


_LEFT = 'style="text-align: left"'  # notebooks align cells to the right


@dataclass(frozen=True, slots=True)
class Trial:
    """A measured trial.

    setting: its label and config in short. metrics: values with standard errors by name. objectives: the names of the
    metrics by which it was chosen. choice: what it was chosen for. probability: that this holds; None where it is
    certain. gain_probability: that it is better than vanilla in the first objective; None for vanilla. changes: of the
    other objectives against vanilla, in per cent with standard errors, by name. by_chance: those of them that are
    chance alone, as the setting is lossless. notes: what to know about the choice. header: the comments at the head of
    the file that `save` writes. models: of the sweep, as --models takes them. batch: at which speed was measured.
    """

    number: int
    setting: str
    config: DecodingConfig
    metrics: Mapping[str, Estimate]
    objectives: tuple[str, ...] = ()
    probability: float | None = None
    gain_probability: float | None = None
    choice: str = ""
    changes: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    by_chance: Collection[str] = ()
    notes: tuple[str, ...] = ()
    header: str = ""
    models: str = BUILTIN
    batch: int = 1

    def __getitem__(self, metric: str) -> float:
        """A metric's value. Raises KeyError, with the nearest name, for one that was not measured."""
        if metric not in self.metrics:
            raise KeyError(f"trial {self.number}, {metric!r}: {unknown_key(metric, self.metrics, 'metric')}")
        return self.metrics[metric].value

    def __repr__(self) -> str:
        values = []
        for name in self.objectives:
            against = f", against vanilla {self.change(name)}" if name in self.changes else ""
            values.append(f"{name} {_text(self.metrics[name])}{against}")
        notes = "".join(f"; note: {note}" for note in self.notes)
        return clean(f"Trial {self.number}, {self.setting}" + (f" ({'; '.join(values)})" if values else "") + notes)

    def _repr_html_(self) -> str:
        rows = [(name, _text(self.metrics[name])) for name in self.objectives]
        rows += [(f"{name} against vanilla", self.change(name)) for name in self.changes]
        chances = {"holds": self.probability, "better than vanilla": self.gain_probability}
        rows += [(name, f"in {percent(chance)} of draws") for name, chance in chances.items() if chance is not None]
        if self.gain_probability is not None and self.objectives[0] in self.by_chance:
            rows[-1] = rows[-1][0], f"{rows[-1][1]} by chance"
        rows += [("note", note) for note in self.notes]
        heading = f"{escape(self.choice)}: " if self.choice else ""
        return f"{heading}<b>Trial {self.number}</b>, {escape(self.setting)}{_html_table([], rows)}"

    def change(self, metric: str) -> str:
        """A metric's change against vanilla as text: `+2.3 ± 5.9 %`, or `+7.5 ± 5.9 % by chance`; empty for one
        without."""
        if metric not in self.changes:
            return ""
        return signed_percent(*self.changes[metric]) + (" by chance" if metric in self.by_chance else "")

    def save(self, path: str | Path) -> Path:
        """Write the config as YAML, which `specfrontier generate --config` and `load_engine` read. Comments say what
        the sweep measured, at which batch.

        Raises:
            ValueError: the path does not end in .yaml or .yml.
        """
        ending_of(path := Path(path), CONFIGS)
        path.write_text(self.header + write_document(self.config.to_mapping()), "utf-8")
        return path


@dataclass(frozen=True)
class _Analysis:
    """A front, and what it recommends."""

    front: Front

    @cached_property
    def choices(self) -> dict[str, Choice]:
        return marked_choices(self.front)

    @property
    def recommended(self) -> list[Trial]:
        return [_trial(self.front, choice) for choice in self.choices.values()]


class Sweep(results.Sweep):
    """A finished or running sweep. Without `x` and `y` a question is about the sweep's first two objectives."""

    @classmethod
    def launch(
        cls,
        space: str | Path,
        out: str | Path = "sweeps",
        *,
        settings: Mapping[str, Any] | None = None,
        resume: bool = False,
        **options: Any,
    ) -> Self:
        """Run a sweep, or the rest of one, to its end; prints its progress.

        space: a YAML file or the name of a ready space. out: parent of the sweep's folder, or a URI. settings: keys of
        the space with other values, such as {"captions.count": 48}. options: other options of `specfrontier launch`, by
        their names: trials=200, gpus_per_worker=1, mlflow=False.

        Raises:
            TypeError: there is no such option.
            CommandError: the space is invalid, a sweep exists there, or all trials failed.
        """
        from orchestrator.cli.launch import launch

        os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")  # as the command does
        assignments = [f"{key}={json.dumps(value)}" for key, value in (settings or {}).items()]
        return cls.open(launch(str(space), out=str(out), resume=resume, assignments=assignments, **options))

    def reload(self) -> Self:
        """The sweep as it is stored now: a running one gets new trials."""
        return self.open(self.storage)

    def best(self, *limits: str, x: str | None = None, y: str | None = None, lossless: bool = False) -> Trial:
        """The trial that is best in `x` among those that meet all limits, such as "fid <= 1.2 * vanilla".

        lossless: only among settings that leave the distribution of images as it is.

        Raises:
            QueryError: no trial meets the limits, or one cannot be parsed.
        """
        front = self._analysis(x, y).front
        found = best_within(front, limits, lossless=lossless)
        if found is None:
            wanted = [*(["lossless"] if lossless else []), *(f"within {limit}" for limit in limits)]
            trials = counted(len(front.candidates), "trial")
            raise QueryError(f"sweep {self.name}: none of {trials} is {' and '.join(wanted) or 'measured'}")
        return _trial(front, found, limit_notes(front, limits))

    def knee(self, x: str | None = None, y: str | None = None) -> Trial:
        """The trial at the knee of the front.

        Raises:
            QueryError: the front has fewer than three trials, or is a line.
        """
        analysis = self._analysis(x, y)
        if KNEE not in analysis.choices:
            raise QueryError(f"sweep {self.name}: the front has no knee")
        return _trial(analysis.front, analysis.choices[KNEE])

    def trial(self, number: int) -> Trial:
        """A finished trial by its number, one that failed or stopped early included.

        Raises:
            QueryError: there is none, or its config is invalid.
        """
        front = front_of([self], feasible=False)
        return _trial(front, choice_of(front, trial_by_number(front, number)))

    @property
    def vanilla(self) -> Trial:
        """The trial that all speed-ups and changes compare with. Its config has the sweep's sampling.

        Raises:
            QueryError: it has not finished.
        """
        if self.baseline is None:
            raise QueryError(f"sweep {self.name}: vanilla has not finished")
        return self.trial(self.baseline.number)

    def to_pandas(self) -> pandas.DataFrame:
        """One row per finished trial (columns: see `trials`)."""
        return self.trials().to_pandas()

    def plot(
        self, x: str | None = None, y: str | None = None, *, where: Iterable[str] = (), ax: Axes | None = None
    ) -> Axes:
        """Draw the front with error bars on matplotlib axes (by default on a new figure); returns them."""
        from matplotlib import pyplot

        from orchestrator.results.plots import FIGURE_SIZE, draw_front

        if ax is None:
            _, ax = pyplot.subplots(figsize=FIGURE_SIZE, layout="constrained")
        analysis = self._analysis(x, y, where)
        draw_front(ax, analysis.front, self.name, analysis.choices)
        return ax

    def __repr__(self) -> str:
        choices = [f"{clean(trial.choice)}: {trial!r}" for trial in self._default.recommended]
        return "\n  ".join([self._headline(self._default.front), *choices])

    def _repr_html_(self) -> str:
        front = self._default.front
        chosen = [
            (
                trial.choice,
                str(trial.number),
                trial.setting,
                *(_text(trial.metrics[axis.name]) for axis in front.axes),
                *(trial.change(axis.name) for axis in front.axes[1:]),
            )
            for trial in self._default.recommended
        ]
        heads = [*map(_heading, front.axes), *(f"{axis.name} against vanilla" for axis in front.axes[1:])]
        choices = _html_table(["recommended", "trial", "setting", *heads], chosen) if chosen else ""
        members = [
            (
                member.name,
                member.title,
                *(_text(member.record.metrics[axis.name]) for axis in front.axes),
                percent(member.confidence),
            )
            for member in front.members
        ]
        table = _html_table(["trial", "setting", *map(_heading, front.axes), "on front"], members)
        return f"<p>{escape(self._headline(front))}</p>{choices}{table}"

    @cached_property
    def _default(self) -> _Analysis:
        """Of the sweep's own objectives. Records never change, so it is made once."""
        return _Analysis(front_of([self]))

    def _analysis(self, x: str | None, y: str | None, where: Iterable[str] = ()) -> _Analysis:
        return _Analysis(front_of([self], x, y, where=where)) if x or y or where else self._default

    def _headline(self, front: Front) -> str:
        axes = " and ".join(axis.name for axis in front.axes)
        on_front = f"{len(front.members)} on the front of {axes}"
        return clean(f"Sweep {self.name}: {counted(len(self.records), 'trial')}, {on_front} ({_place(self.storage)})")


def _trial(front: Front, choice: Choice, notes: Sequence[str] = ()) -> Trial:
    candidate, record, sweep = choice.trial, choice.trial.record, front.sweeps[choice.trial.sweep]
    names = [axis.name for axis in front.axes]
    return Trial(
        number=record.number,
        setting=candidate.title,
        config=candidate.config,
        metrics=record.metrics,
        objectives=tuple(name for name in names if name in record.metrics),
        probability=choice.confidence,
        gain_probability=choice.gain_confidence,
        choice=choice.heading,
        changes={name: choice.changes[name] for name in names[1:] if name in choice.changes},
        by_chance=choice.by_chance,
        notes=tuple(notes),
        header=choice_header(front, choice),
        models=sweep.models,
        batch=int(sweep.identity.timing.get("batch", 1)),
    )


def _place(storage: Storage) -> str:
    """Where a sweep is: relative to the working directory if it is inside."""
    path = Path(storage.display_name)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else storage.display_name


def _text(entry: Estimate) -> str:
    return measured(entry.value, entry.error)


def _heading(axis: Metric) -> str:
    return f"{axis.name} {'↑' if axis.direction == 'maximize' else '↓'}"


def _html_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    def line(cells: Iterable[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag} {_LEFT}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    heading = line(head, "th") if (head := list(head)) else ""
    return f"<table>{heading}{''.join(line(row, 'td') for row in rows)}</table>"
