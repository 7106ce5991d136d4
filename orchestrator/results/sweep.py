"""The Python API of finished and running sweeps. The commands use it too:

    sweep = Sweep.open("sweeps/quickstart")
    sweep.front("speedup", "fid", where=["acceptance.neighbourhood=additive"], subject_to=["drift<=2"]).to_pandas()

Tables are pyarrow tables. No file is written. Neither torch nor the model's files are needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from orchestrator.results.compare import (
    DEFAULT_OBJECTIVES,
    drawn_hypervolumes,
    hypervolume,
    reference_point,
    require_comparable,
)
from orchestrator.results.fronts import (
    Candidate,
    directions,
    joint_errors,
    mark_front,
    rows_passing,
    values_of,
)
from orchestrator.results.image_table import image_table
from orchestrator.results.joint import JointErrors, standard_error
from orchestrator.results.launches import load_identity
from orchestrator.results.names import SettingNames
from orchestrator.results.pareto import knee, knee_confidence, nondominated
from orchestrator.results.query import QueryError, limit_confidence, parse_limit, passing
from orchestrator.results.store import Identity, find_sweep, read_sweep_yaml, read_trials
from orchestrator.results.trials import COMPLETE, FAILED, STOPPED, TrialRecord, trial_table
from search_spaces.params import unknown_key
from search_spaces.sweep_sections import BUILTIN
from search_spaces.trial import DecodingConfig
from workers.data.storage import Storage
from workers.metrics.definition import Metric

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class Sweep:
    """One sweep. records: its finished trials by number."""

    storage: Storage
    identity: Identity
    records: tuple[TrialRecord, ...]

    @classmethod
    def open(cls, location: str | Path | Storage) -> Self:
        """Read the sweep in a folder, at a URI, or with this name in ./sweeps.

        Raises:
            NoSweepError: there is no sweep, or it has no results yet.
            ValueError: one of its files is damaged.
        """
        storage = location if isinstance(location, Storage) else find_sweep(location)
        return cls(storage, load_identity(storage), tuple(read_trials(storage)))

    @property
    def name(self) -> str:
        return self.identity.name

    @cached_property
    def table(self) -> pyarrow.Table:
        """One row per finished trial (see `trial_table`)."""
        return trial_table(self.records, self.identity.sampling)

    @cached_property
    def names(self) -> SettingNames:
        """The names of the trials' settings."""
        return SettingNames(self.identity.sampling)

    @cached_property
    def front_records(self) -> tuple[TrialRecord, ...]:
        """The feasible trials on the front of all of the sweep's objectives, by number."""
        feasible, goals = [record for record in self.records if record.feasible], self.identity.objectives
        on_front = nondominated(values_of(feasible, goals)[0], directions(goals)) if goals else ()
        return tuple(record for record, kept in zip(feasible, on_front, strict=False) if kept)

    @property
    def baseline(self) -> TrialRecord | None:
        """Vanilla: the trial with the baseline's config, or else the one with the label `vanilla`."""
        return self.find(self.identity.baseline, "vanilla")

    @cached_property
    def models(self) -> str:
        """The sweep's models, as --models takes them: builtin, a folder, a models.yaml, or FILE#ENTRY."""
        given = read_sweep_yaml(self.storage).get("models") or {}
        file, entry = (given.get("file"), given.get("name")) if isinstance(given, Mapping) else (given, None)
        return f"{file or BUILTIN}#{entry}" if entry else str(file or BUILTIN)

    def find(self, config: DecodingConfig | None, label: str) -> TrialRecord | None:
        """The first complete trial with this config, else the first one with this label."""
        done = [record for record in self.records if record.state == COMPLETE]
        same = [record for record in done if record.config == config]
        return next(iter([*same, *(record for record in done if record.label == label)]), None)

    def axis(self, metric: str) -> Metric:
        """A metric as an objective.

        Raises:
            QueryError: the sweep has no such metric.
        """
        if metric not in self.identity.metrics:
            raise QueryError(f"sweep {self.name}, {metric!r}: {unknown_key(metric, self.identity.metrics, 'metric')}")
        return self.identity.metrics[metric]

    def axes(self, x: str | None = None, y: str | None = None, z: str | None = None) -> tuple[Metric, ...]:
        """Two or three objectives: by default the sweep's own, where they differ from those that are given.

        Raises:
            QueryError: an unknown metric, or the same one twice.
        """
        own = [axis.name for axis in self.identity.objectives[:3]]
        first, second, *_ = own if len(own) > 1 else DEFAULT_OBJECTIVES
        if x or y or len(own) < 2:
            x = x or (second if first == y else first)
            own = [x, y or (first if second == x else second)]
        names = own if z is None else [*own[:2], z]
        if len(set(names)) < len(names):
            raise QueryError(f"objectives {', '.join(names)}: each must be a different metric")
        return tuple(self.axis(name) for name in names)

    def trials(self, where: Iterable[str] = (), columns: Sequence[str] | None = None) -> pyarrow.Table:
        """One row per finished trial, by number. Columns: see `trial_table`; `front`: on the front of the objectives.

        Raises:
            QueryError: an invalid filter, or an unknown column.
        """
        import pyarrow as pa

        front = {record.number for record in self.front_records if record.duplicate_of is None}
        marks = pa.array([record.number in front for record in self.records], pa.bool_())
        table = self.table.append_column("front", marks)
        table = table.filter(passing(table, where))
        for name in columns or ():
            if name not in table.column_names:
                raise QueryError(f"sweep {self.name}, {name!r}: {unknown_key(name, table.column_names, 'column')}")
        return table if columns is None else table.select(list(columns))

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
        """The front of two or three metrics (see `front_of`), or all measured candidates with `everything`, as a table
        (columns: see `Front.table`).
        """
        front = front_of([self], x, y, z, where, subject_to, feasible=feasible)
        return front.table(front.candidates if everything else front.members).drop_columns(["sweep"])

    def images(self, number: int | None = None, columns: Sequence[str] | None = None) -> pyarrow.Table:
        """One row per image of a trial, or of all trials, with the trial's `number` as first column.

        Trials with the same config share their images; their rows have the requested number, or else the first trial's.

        Raises:
            QueryError: there is no such trial.
            ValueError: a shard is missing or damaged, or has no such column.
        """
        records = [record for record in self.records if number is None or record.number == number]
        if number is not None and not records:
            raise QueryError(f"sweep {self.name}: no finished trial {number}")
        return image_table(self.storage, records, columns)

    def limit(self, text: str) -> Callable[[TrialRecord], bool]:
        """A function that tells whether a trial meets a constraint such as `fid<=vanilla+0.5`.

        Raises:
            QueryError: the constraint cannot be parsed, or needs a value that the sweep does not have.
        """
        return parse_limit(text, self.identity.metrics, {} if self.baseline is None else self.baseline.metrics)


@dataclass(frozen=True, slots=True)
class Front:
    """The front of one or more sweeps.

    candidates: the trials that may be on it, by increasing first objective. left_out: number of other trials by reason.
    trials: all trials as a table, with a column `sweep`.
    """

    sweeps: Mapping[str, Sweep]
    axes: tuple[Metric, ...]
    candidates: list[Candidate]
    left_out: Mapping[str, int]
    trials: pyarrow.Table

    @property
    def members(self) -> list[Candidate]:
        """The trials on the front."""
        return [candidate for candidate in self.candidates if candidate.on_front]

    def table(self, candidates: Sequence[Candidate]) -> pyarrow.Table:
        """Candidates as rows. Columns: `sweep`, those of `trial_table`, and the last four fields of `Candidate`."""
        import pyarrow as pa

        table, texts = self.trials.take(pa.array([c.row for c in candidates], pa.int64())), pa.list_(pa.string())
        kinds = {"on_front": pa.bool_(), "confidence": pa.float64(), "distinct_from_next": texts}
        for name, kind in (kinds | {"within_error_of": texts}).items():
            table = table.append_column(name, pa.array([getattr(c, name) for c in candidates], kind))
        return table

    def knee(self) -> Candidate | None:
        """The front's knee (see `pareto.knee`)."""
        found = knee(values_of([member.record for member in self.members], self.axes)[0], directions(self.axes))
        return None if found is None else self.members[found]

    def joint_errors(self) -> JointErrors:
        """The candidates' values in the axes, with the errors that they share."""
        return joint_errors(self.candidates, self.axes, {name: sweep.identity for name, sweep in self.sweeps.items()})

    def knee_confidence(self, trial: Candidate) -> float:
        """The share of draws from the candidates' errors in which this one is the knee."""
        return knee_confidence(self.joint_errors().draws(), directions(self.axes), self.candidates.index(trial))

    def best(self, limits: Sequence[str] = (), *, lossless: bool = False) -> Candidate | None:
        """The candidate with the best first objective among those that meet all limits, the first one on a tie;
        `lossless`: among those that are (see `DecodingConfig.is_lossless`)."""
        owners = {c.sweep for c in self.candidates} or self.sweeps  # a sweep without candidates may lack vanilla
        tests = {name: [self.sweeps[name].limit(text) for text in limits] for name in owners}
        within = [c for c in self.candidates if all(test(c.record) for test in tests[c.sweep])]
        within = [c for c in within if not lossless or c.record.is_lossless(self.sweeps[c.sweep].identity.sampling)]
        sign, metric = -1.0 if self.axes[0].direction == "maximize" else 1.0, self.axes[0].name
        return min(within, key=lambda c: sign * c.record.metrics[metric].value, default=None)

    def best_lossless(self) -> Candidate | None:
        """The best lossless candidate; None if it is vanilla, or if the first objective is of quality, in which
        lossless settings differ by chance alone."""
        best = self.best(lossless=True) if self.axes[0].is_of_counts else None
        return None if best is None or self.is_vanilla(best) else best

    def limit_confidence(self, trial: Candidate, limits: Sequence[str]) -> float | None:
        """The share of draws in which a trial meets all limits (see `query.limit_confidence`)."""
        sweep = self.sweeps[trial.sweep]
        return limit_confidence(trial.record, sweep.baseline, limits, sweep.identity.metrics)

    def is_vanilla(self, trial: Candidate) -> bool:
        """Whether it is the vanilla of its own sweep."""
        return trial.record is self.sweeps[trial.sweep].baseline

    def reference_point(self) -> list[float]:
        """The default reference point, in the axes' units; computed from all complete trials, without filters."""
        complete = [record for sweep in self.sweeps.values() for record in sweep.records if record.state == COMPLETE]
        return [float(value) for value in reference_point(values_of(complete, self.axes)[0], directions(self.axes))]

    def hypervolume(self, reference: Sequence[float]) -> float:
        """The front's hypervolume up to a reference point."""
        values, _ = values_of([member.record for member in self.members], self.axes)
        return hypervolume(values, reference, directions(self.axes))

    def hypervolume_error(self, reference: Sequence[float]) -> float:
        """The standard error of the hypervolume: its spread over draws from the candidates' errors."""
        return standard_error(drawn_hypervolumes(self.joint_errors().draws(), reference, directions(self.axes)))


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

    counts = Counter(sweep.name for sweep in sweeps)
    named = {sweep.name if counts[sweep.name] == 1 else sweep.storage.display_name: sweep for sweep in sweeps}
    if len(named) < len(sweeps):
        raise QueryError("a sweep is given twice; name each once")
    axes = sweeps[0].axes(x, y, z)
    for axis in axes:
        for sweep in sweeps:
            sweep.axis(axis.name)
        require_comparable([sweep.identity for sweep in sweeps], axis.name)
    owned = [(name, record) for name, sweep in named.items() for record in sweep.records]
    limits = {name: [sweep.limit(text) for text in subject_to] for name, sweep in named.items()}
    trials = pa.concat_tables([sweep.table for sweep in named.values()], promote_options="default")
    trials = trials.add_column(0, "sweep", pa.array([name for name, _ in owned], pa.string()))
    rows, left_out = rows_passing(
        {
            "by --where": passing(trials, where),
            "failed": [record.state != FAILED for _, record in owned],
            "stopped early": [record.state != STOPPED for _, record in owned],
            "repeated": [record.duplicate_of is None for _, record in owned],
            "outside the constraints": [record.feasible or not feasible for _, record in owned],
            "outside --subject-to": [all(limit(record) for limit in limits[name]) for name, record in owned],
            "not measured": [all(axis.name in record.metrics for axis in axes) for _, record in owned],
        }
    )
    candidates, names = [], SettingNames.across(sweep.identity.sampling for sweep in sweeps)
    for row in rows:
        name, record = owned[row]
        setting, label = record.config, f"{name}#{record.number}" if len(named) > 1 else str(record.number)
        candidates.append(Candidate(row, name, label, names.name(setting), names.describe(setting), record))
    return Front(named, axes, mark_front(candidates, axes, {n: s.identity for n, s in named.items()}), left_out, trials)
