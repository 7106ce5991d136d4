"""Who times a shape: the first trial of a shape runs timing shards, and later trials take its files."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from orchestrator.run.pending import PendingTrial, Planner
from orchestrator.run.tasks import Task
from search_spaces.trial import StepShape


@dataclass(slots=True)
class _Shape:
    """owner: the trial whose files all trials of the shape take. timed: numbers of the trials that are timed."""

    owner: PendingTrial
    timed: set[int] = field(default_factory=set)


@dataclass(slots=True)
class ShapeTimings:
    """Assigns timing shards to trials in the order of their numbers, so a resumed sweep assigns the same ones.

    existing: the files in the store; others add to it.
    """

    planner: Planner
    existing: Collection[str]
    _shapes: dict[StepShape, _Shape] = field(default_factory=dict)

    def assign(self, trial: PendingTrial) -> list[Task]:
        """Set the trial's timing files and those it misses; returns the tasks that it must run itself."""
        shape, recorded = self._shapes.setdefault(trial.config.shape, _Shape(trial)), self._recorded(trial)
        if not self._will_exist(shape.owner) or (recorded and not self._exist(shape.owner)):
            shape.owner = trial
        if shape.owner is trial or len(shape.timed) < self.planner.sweep.timing.direct:
            shape.timed.add(trial.number)
        submitted = set(trial.files["own_timing"])
        own = self.planner.timing_tasks(trial) if trial.number in shape.timed else []
        trial.files["own_timing"] = [task.name for task in own]
        first = (recorded or trial.files["own_timing"]) if shape.owner is trial else shape.owner.files["timing"]
        trial.files["timing"] = list(first)
        trial.missing.update({*trial.files["timing"], *trial.files["own_timing"]}.difference(self.existing))
        return [task for task in own if task.name not in submitted and task.name not in self.existing]

    def reassign(self, trials: Iterable[PendingTrial]) -> list[Task]:
        """The tasks of trials that wait for files which no other trial will write any more: they run their own."""
        tasks = []
        for trial in trials:
            files = trial.files["timing"]
            if not trial.is_running or trial.missing.isdisjoint(files):
                continue
            owner = self._shapes[trial.config.shape].owner
            if owner.files["timing"] != files or not self._will_exist(owner):
                trial.missing.difference_update(files)
                tasks += self.assign(trial)
        return tasks

    def _recorded(self, trial: PendingTrial) -> list[str]:
        """The timing files of a trial that an earlier run finished, if the store has them."""
        files = trial.record.shape.split(",") if trial.record is not None and trial.record.shape else []
        return files if all(name in self.existing for name in files) else []

    def _exist(self, owner: PendingTrial) -> bool:
        """Whether the owner's files are in the store."""
        return all(name in self.existing for name in owner.files["timing"])

    def _will_exist(self, owner: PendingTrial) -> bool:
        """Whether the owner's files are in the store, or its tasks still run."""
        return owner.is_running or self._exist(owner)
