"""Sweeps and their trials, as a notebook shows them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from orchestrator.results import sweep as results
from orchestrator.results.axes import Axis
from orchestrator.results.fronts import Candidate
from orchestrator.results.query import QueryError
from orchestrator.results.sweep import Front, front_of
from orchestrator.results.text import counted, measured, percent
from orchestrator.results.trials import Measured
from search_spaces.documents import write_document
from search_spaces.params import unknown_key
from search_spaces.trial import DecodingConfig

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects
    from matplotlib.axes import Axes

    from workers.data.storage import Storage


class LaunchOptions(TypedDict, total=False):
    """Options of `specfrontier launch`, by its names."""

    name: str
    trials: int
    images: int
    hours: float
    sampler: str
    parallel: int
    seed: int
    models: str
    address: str
    workers: int
    cpus_per_worker: float
    gpus_per_worker: float
    threads: int
    study: str
    tracking_uri: str
    mlflow: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """A measured trial.

    setting: its label and config in short. metrics: values with standard errors by name. objectives: the names of the
    metrics by which it was chosen. probability: that it is the knee, or within the limits that it was asked for; None
    if it was chosen by its number. gain_probability: that it is better than vanilla in the first objective; None for
    vanilla.
    """

    number: int
    setting: str
    config: DecodingConfig
    metrics: Mapping[str, Measured]
    objectives: tuple[str, ...] = ()
    probability: float | None = None
    gain_probability: float | None = None

    def __getitem__(self, metric: str) -> float:
        """A metric's value. Raises KeyError, with the nearest name, for one that was not measured."""
        if metric not in self.metrics:
            raise KeyError(f"trial {self.number}, {metric!r}: {unknown_key(metric, self.metrics, 'metric')}")
        return self.metrics[metric].value

    def __repr__(self) -> str:
        values = ", ".join(f"{name} {_text(self.metrics[name])}" for name in self.objectives)
        return f"Trial {self.number}, {self.setting}{f' ({values})' if values else ''}"

    def _repr_html_(self) -> str:
        chances = {"probability": self.probability, "better than vanilla": self.gain_probability}
        shown = [(name, percent(chance)) for name, chance in chances.items() if chance is not None]
        rows = [*((name, _text(self.metrics[name])) for name in self.objectives), *shown]
        return f"<b>Trial {self.number}</b>, {escape(self.setting)}{_html_table([], rows)}"

    def save(self, path: str | Path) -> Path:
        """Write the config as YAML, which `specfrontier generate --config` and `load_engine` read."""
        path = Path(path)
        path.write_text(write_document(self.config.to_mapping()), "utf-8")
        return path


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
        **options: Unpack[LaunchOptions],
    ) -> Self:
        """Run a sweep, or the rest of one, to its end; prints its progress.

        space: a YAML file or the name of a ready space. out: parent of the sweep's folder, or a URI. settings: keys of
        the space with other values, such as {"captions.count": 48}.

        Raises:
            CommandError: the space is invalid, a sweep exists there, or all trials failed.
        """
        from orchestrator.cli.launch import launch

        os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")  # as the command does
        assignments = [f"{key}={json.dumps(value)}" for key, value in (settings or {}).items()]
        return cls.open(launch(str(space), str(out), resume=resume, assignments=assignments, **options))

    def reload(self) -> Self:
        """The sweep as it is stored now: a running one gets new trials."""
        return self.open(self.storage)

    def best(self, *limits: str, x: str | None = None, y: str | None = None, lossless: bool = False) -> Trial:
        """The trial that is best in `x` among those that meet all limits, such as "fid <= 1.2 * vanilla".

        lossless: only among settings that leave the distribution of images as it is.

        Raises:
            QueryError: no trial meets the limits, or one cannot be parsed.
        """
        front = front_of([self], x, y)
        found = front.best(limits, lossless=lossless)
        if found is None:
            raise QueryError(f"sweep {self.name}: none of {counted(len(front.candidates), 'trial')} meets {limits}")
        return _trial(front, found, front.limit_confidence(found, limits) if limits else None)

    def knee(self, x: str | None = None, y: str | None = None) -> Trial:
        """The trial at the knee of the front.

        Raises:
            QueryError: the front has fewer than three trials, or is a line.
        """
        front = front_of([self], x, y)
        found = front.knee()
        if found is None:
            raise QueryError(f"sweep {self.name}: the front has no knee")
        return _trial(front, found, front.knee_confidence(found))

    def trial(self, number: int) -> Trial:
        """A measured trial by its number.

        Raises:
            QueryError: there is none.
        """
        front = front_of([self], feasible=False)
        found = next((candidate for candidate in front.candidates if candidate.record.number == number), None)
        if found is None:
            raise QueryError(f"sweep {self.name}: no measured trial {number}")
        return _trial(front, found)

    def to_pandas(self) -> pandas.DataFrame:
        """One row per finished trial (columns: see `orchestrator.results.trials.trial_table`)."""
        return self.trials().to_pandas()

    def plot(
        self, x: str | None = None, y: str | None = None, *, where: Iterable[str] = (), ax: Axes | None = None
    ) -> Axes:
        """Draw the front with error bars on matplotlib axes (by default on a new figure); returns them."""
        from matplotlib import pyplot

        from orchestrator.results.plots import draw_front

        if ax is None:
            _, ax = pyplot.subplots(figsize=(7.6, 5.2), layout="constrained")
        draw_front(ax, front_of([self], x, y, where=where), self.name)
        return ax

    def plot_interactive(
        self, x: str | None = None, y: str | None = None, *, where: Iterable[str] = ()
    ) -> plotly.graph_objects.Figure:
        """The front as a Plotly figure, with each trial's setting on hover. Needs `pip install plotly`."""
        from specfrontier.interactive import front_figure

        return front_figure(front_of([self], x, y, where=where), self.name)

    def __repr__(self) -> str:
        front = front_of([self])
        axes = " and ".join(axis.name for axis in front.axes)
        on_front = f"{len(front.members)} on the front of {axes}"
        return f"Sweep {self.name}: {counted(len(self.records), 'trial')}, {on_front} ({_place(self.storage)})"

    def _repr_html_(self) -> str:
        front = front_of([self])
        head = ["trial", "setting", *map(_heading, front.axes), "on front"]
        rows = [
            (
                member.name,
                member.title,
                *(_text(member.record.metrics[axis.name]) for axis in front.axes),
                f"{member.confidence:.0%}",
            )
            for member in front.members
        ]
        return f"<p>{escape(repr(self))}</p>{_html_table(head, rows)}"


def _trial(front: Front, candidate: Candidate, probability: float | None = None) -> Trial:
    record, names = candidate.record, tuple(axis.name for axis in front.axes)
    gain = front.gain_confidence(candidate)
    return Trial(record.number, candidate.title, candidate.config, record.metrics, names, probability, gain)


def _place(storage: Storage) -> str:
    """Where a sweep is: relative to the working directory if it is inside."""
    path = Path(storage.display_name)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else storage.display_name


def _text(entry: Measured) -> str:
    return measured(entry.value, entry.error)


def _heading(axis: Axis) -> str:
    return f"{axis.name} {'↑' if axis.direction == 'maximize' else '↓'}"


def _html_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    def line(cells: Iterable[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    heading = line(head, "th") if (head := list(head)) else ""
    return f"<table>{heading}{''.join(line(row, 'td') for row in rows)}</table>"
