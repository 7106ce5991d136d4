"""Sweeps as a notebook shows them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from orchestrator.errors import NoChoiceError, QueryError, with_sweep_libraries
from orchestrator.front.choice import Choice, ChoiceKind, Recommendation, recommend
from orchestrator.front.difference import TrialDifference, difference, trials_of
from orchestrator.front.front import Front, front_of
from orchestrator.front.importance import Importances, importances
from orchestrator.front.questions import objectives_of, trial_rows
from orchestrator.front.trial import Trial
from orchestrator.front.what_next import WhatNext, what_next
from orchestrator.store import files
from orchestrator.store import sweep as results
from orchestrator.text import clean, counted, html_table, percent

if TYPE_CHECKING:
    import pandas
    import pyarrow
    from matplotlib.axes import Axes


class Sweep(results.Sweep):
    """A finished or running sweep. The methods use the sweep's first two objectives unless `x` and
    `y` are given.

        sweep = Sweep.open("sweeps/quickstart")
        front = sweep.front("speedup", "fid", subject_to=["drift<=2"])
        front.to_pandas()
    """

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

        Args:
            space: A YAML file or the name of a ready space.
            out: Parent of the sweep's folder, or a URI.
            settings: Keys of the YAML file with other values, such as {"captions.count": 48}.
            resume: Continue a sweep that exists.
            options: Other options of `specfrontier launch`, by their names: trials=200,
                gpus_per_worker=1, mlflow=False.

        Raises:
            TypeError: there is no such option.
            CommandError: the space is invalid, a sweep exists there, all trials failed, or a
                library is not installed.
        """
        from orchestrator.cli.launch import launch

        os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")  # as the command does
        assignments = [f"{key}={json.dumps(value)}" for key, value in (settings or {}).items()]
        with with_sweep_libraries():
            store = launch(
                str(space), out=str(out), resume=resume, assignments=assignments, **options
            )
        return cls.open(store)

    def reload(self) -> Self:
        """Read the sweep again, with the trials that have finished since."""
        if self.machine is None:
            return self.open(self.storage)
        return self.open(self.storage, str(self.machine.device), self.machine.batch)

    def front(
        self,
        x: str | None = None,
        y: str | None = None,
        z: str | None = None,
        where: Iterable[str] = (),
        subject_to: Iterable[str] = (),
        *,
        feasible: bool = True,
        everything: bool = False,
    ) -> pyarrow.Table:
        """The front of two or three metrics (see `front_of`) as a table (columns: see
        `Front.table`).

        Args:
            x: First metric; None for the sweep's first objective.
            y: Second metric; None for the sweep's second objective.
            z: Third metric, if any.
            where: Filters that a trial must pass.
            subject_to: Limits such as "drift<=2" that a trial must meet.
            feasible: Leave out trials that violate the sweep's constraints.
            everything: All measured trials that could be on the front, not only those that are.
        """
        front = front_of([self], x, y, z, where, subject_to, feasible=feasible)
        trials = front.candidates if everything else front.members
        return front.table(trials).drop_columns(["sweep"])

    def best(
        self, *limits: str, x: str | None = None, y: str | None = None, lossless: bool = False
    ) -> Choice:
        """The trial that is best in `x` among those that meet all limits, such as "fid <= 1.2 *
        vanilla". Trials are ranked by the value that is 90 % sure (see `recommend`).
        `lossless` leaves out settings that change the distribution of images.

        Raises:
            QueryError: no trial meets the limits, or one cannot be parsed.
        """
        return self._require("best", recommend(self._front(x, y), limits, lossless=lossless))

    def knee(self, x: str | None = None, y: str | None = None) -> Choice:
        """The trial at the knee of the front.

        Raises:
            QueryError: the front has fewer than three trials, or is a line.
        """
        return self._require("knee", recommend(self._front(x, y)))

    def _require(self, kind: ChoiceKind, found: Recommendation) -> Choice:
        """The choice of a kind. Raises NoChoiceError if there is none."""
        try:
            return found.require(kind)
        except NoChoiceError as error:
            raise NoChoiceError(f"sweep {self.name}: {error}") from None

    def trial(self, number: int) -> Trial:
        """A finished trial by its number, even if it failed or stopped early.

        Raises:
            QueryError: there is none, or its config is invalid.
        """
        return front_of([self], feasible=False).trial(number)

    def diff(self, first: int, second: int, other: Sweep | None = None) -> TrialDifference:
        """How two trials differ: in their settings, their values and their images.

        Args:
            first: number of a trial.
            second: number of the other trial.
            other: the sweep of the second trial, if it is another one.

        Raises:
            QueryError: there is no such trial, or the sweeps have no two metrics in common.
        """
        return difference(*trials_of(self, first, other or self, second))

    def what_next(self, x: str | None = None, y: str | None = None) -> WhatNext:
        """What would tell trials apart that are within error of each other on the front of two
        metrics: more images, more timing sessions, or timings on more days.
        """
        return what_next(self._front(x, y))

    def importances(self, x: str | None = None, y: str | None = None) -> Importances:
        """How much each searched parameter matters for being among the best quarter of the trials
        in `x` and in `y`.

        Raises:
            QueryError: no such metric.
        """
        return importances(self, objectives_of(self, x, y))

    @property
    def vanilla(self) -> Trial:
        """The trial that all speed-ups and changes compare with. Its config has the sweep's
        sampling.

        Raises:
            QueryError: it has not finished.
        """
        if self.baseline is None:
            raise QueryError(f"sweep {self.name}: vanilla has not finished")
        return self.trial(self.baseline.number)

    def trials(
        self, where: Iterable[str] = (), columns: Sequence[str] | None = None
    ) -> pyarrow.Table:
        """One row per finished trial, by number (columns: see `trial_rows`), of those that pass all
        filters.

        Raises:
            QueryError: an invalid filter, or an unknown column.
        """
        return trial_rows(self, where, columns)

    def to_pandas(self) -> pandas.DataFrame:
        """One row per finished trial (columns: see `trials`)."""
        return self.trials().to_pandas()

    def plot(
        self,
        x: str | None = None,
        y: str | None = None,
        *,
        where: Iterable[str] = (),
        ax: Axes | None = None,
    ) -> Axes:
        """Plot the front with error bars on matplotlib axes (by default on a new figure); returns
        them.

        Fonts, colours and sizes are those of matplotlib's style, where it sets any. Narrow axes
        have trial numbers in the place of names. A figure of your own needs layout="constrained"
        for the legend and the labels.
        """
        from orchestrator.shown.plots import figure_size, plot_front

        with with_sweep_libraries():
            from matplotlib import pyplot

        if ax is None:
            _, ax = pyplot.subplots(figsize=figure_size(), layout="constrained")
        plot_front(ax, self._front(x, y, where), self.name)
        return ax

    def __repr__(self) -> str:
        choices = [f"{clean(trial.choice)}: {trial!r}" for trial in self._recommended]
        return "\n  ".join([self._headline, *choices])

    def _repr_html_(self) -> str:
        metrics = self._own_front.metrics
        heads = [
            f"{metric.name} {'↑' if metric.direction == 'maximize' else '↓'}" for metric in metrics
        ]
        changes = [f"{metric.name} against vanilla" for metric in metrics[1:]]
        chosen = [
            [
                trial.choice,
                trial.name,
                trial.title,
                *_values(trial),
                *(trial.change(metric.name) for metric in metrics[1:]),
            ]
            for trial in self._recommended
        ]
        choices = ""
        if chosen:
            choices = html_table(["recommended", "trial", "setting", *heads, *changes], chosen)
        members = [
            [trial.name, trial.title, *_values(trial), percent(trial.confidence)]
            for trial in self._own_front.members
        ]
        table = html_table(["trial", "setting", *heads, "on front"], members)
        return f"<p>{escape(self._headline)}</p>{choices}{table}"

    @cached_property
    def _own_front(self) -> Front:
        """The front of the sweep's own objectives. Records never change, so it is made once."""
        return front_of([self])

    @cached_property
    def _recommended(self) -> list[Choice]:
        return list(recommend(self._own_front).choices.values())

    def _front(self, x: str | None, y: str | None, where: Iterable[str] = ()) -> Front:
        if x or y or where:
            return front_of([self], x, y, where=where)
        return self._own_front

    @property
    def _headline(self) -> str:
        names = " and ".join(metric.name for metric in self._own_front.metrics)
        on_front = f"{len(self._own_front.members)} on the front of {names}"
        place = files.near_path(self.storage)
        speeds = ""
        if self.machine is not None:
            speeds = f"; speeds on {self.machine}"
        return clean(
            f"Sweep {self.name}: {counted(len(self.records), 'trial')}, {on_front}{speeds} "
            f"({place})"
        )


def _values(trial: Trial) -> list[str]:
    """The values of a trial in the front's metrics, with their errors."""
    return [str(trial.metrics[name]) for name in trial.objectives]
