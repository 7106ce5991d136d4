"""The timing sessions of a sweep: which settings are timed together, and when.

A session times vanilla and one setting of each shape in turn. The first one has the shapes of `enqueue`; each new shape
has a session with an anchor, the first shape that was timed, when its first trial starts; and when all trials have
finished, the front and the choices are timed again. So costs come from sessions that are spread over the sweep, and
those of the anchor and of the front show how much they vary from one to the next.

Sessions are numbered in the order of the trials' numbers, whatever the workers do. So a sweep that is resumed has the
same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from orchestrator.results.bounds import MAX_NAMED
from orchestrator.results.choices import default_choices
from orchestrator.results.front import front_of
from orchestrator.results.query import QueryError
from orchestrator.results.sweep import Sweep
from orchestrator.run.build import Build
from orchestrator.run.tasks import SWEEP, ClusterLost, EventSink, PoolError, SweepError, Task
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, StepShape
from workers.data.shards import MAX_SHAPES, TIMINGS
from workers.metrics.registry import uses_timings

_MAX_REPLACED = 64  # sessions, among which that of a stored trial is looked for

PlanSession = Callable[[Sequence[DecodingConfig], int], Task]


class Sessions:
    """The sessions of a sweep's trials.

    plan: the session of vanilla and some configs, by its number.
    """

    def __init__(self, sweep: SweepConfig, vanilla: DecodingConfig, plan: PlanSession) -> None:
        self._plan = plan
        self._is_needed = uses_timings(sweep.requested_metrics)
        self._made: list[Task] = []
        self._count = 0  # of those that were made or failed
        self._of_shape: dict[StepShape, Task] = {}
        self._kept: dict[str, Task | None] = {}  # of earlier launches, by file
        self._anchor: DecodingConfig | None = None
        self._vanilla = vanilla.shape
        enqueued = {entry.config.shape: entry.config for entry in reversed(sweep.enqueue)}
        shapes = [config for config in reversed(enqueued.values()) if config.shape != self._vanilla]
        self._first = [shapes[i : i + MAX_SHAPES] for i in range(0, len(shapes), MAX_SHAPES)] or [[]]

    @property
    def made(self) -> list[Task]:
        """Those of all trials so far."""
        return list(self._made)

    def of(self, config: DecodingConfig) -> tuple[Task, ...]:
        """The sessions that price a trial, that of its shape last; empty if no metric needs them.

        Call it in the order of the trials' numbers.
        """
        if not self._is_needed:
            return ()
        while self._first:
            self._add(self._first.pop(0))
        if config.shape not in self._of_shape:
            self._add([config])
        own = self._of_shape[config.shape]
        return (*(session for session in self._made if session != own), own)

    def keep(self, config: DecodingConfig, files: Collection[str]) -> None:
        """Add the session of a trial that an earlier launch finished, which is not the planned one if that failed.

        files: the trial's. Call it in the order of the trials' numbers, as `of`.
        """
        name = next((file for file in files if file.startswith(TIMINGS)), None)
        planned = self.of(config)
        if name is None or not planned or name == planned[-1].name:
            return
        self._made = [session for session in self._made if session != planned[-1]]
        if name not in self._kept:
            self._kept[name] = found = self._find(config, name)
            self._made += [found] if found else []
        self._of_shape[config.shape] = self._kept[name] or planned[-1]

    def _find(self, config: DecodingConfig, name: str) -> Task | None:
        """The session of a config, next to vanilla or the anchor as well, whose file has this name."""
        alone, anchor = self._alone(config), [self._anchor] if self._anchor else []
        numbers = range(self._count + _MAX_REPLACED)
        sessions = (self._plan([*others, *alone], number) for number in numbers for others in ([], anchor))
        return next((session for session in sessions if session.name == name), None)

    def _alone(self, config: DecodingConfig) -> list[DecodingConfig]:
        """The settings besides vanilla of a session for one config."""
        return [] if config.shape == self._vanilla else [config]

    def without(self, config: DecodingConfig, sessions: Sequence[Task], lost: Collection[str]) -> tuple[Task, ...]:
        """Sessions that price a trial if some of these cannot be made. If that of its shape is among them, the shape is
        timed in a session of its own; empty if that is lost, too.
        """
        if not sessions:
            return ()
        left, own = [session for session in sessions if session.name not in lost], sessions[-1]
        self._made = [session for session in self._made if session.name not in lost]
        if own in left:
            return tuple(left)
        known = self._of_shape.get(config.shape, own)
        if known == own or known.name in lost:
            known = self._plan_next(self._alone(config))
        self._of_shape[config.shape] = known
        is_alone = len(own.payload["configs"]) <= 1 + len(self._alone(config))
        return () if is_alone else (*left, known)

    def _add(self, configs: Sequence[DecodingConfig]) -> None:
        others = [self._anchor] if self._anchor else []
        session = self._plan_next([*others, *configs])
        self._of_shape |= dict.fromkeys((config.shape for config in configs), session)
        self._of_shape.setdefault(self._vanilla, session)
        self._anchor = self._anchor or next(iter(configs), None)

    def _plan_next(self, configs: Sequence[DecodingConfig]) -> Task:
        session = self._plan(configs, self._count)
        self._count += 1
        self._made.append(session)
        return session


def decisive_configs(sweep: Sweep) -> list[DecodingConfig]:
    """A config of each shape on the front, those first that decide what is recommended: the choices, and of the
    settings within error of each those with the best bounds.
    """
    front = front_of([sweep])
    chosen = list(default_choices(front).values())
    rivals = [trial for choice in chosen for trial in (choice.alternatives or ())[:MAX_NAMED]]
    by_shape: dict[StepShape, DecodingConfig] = {}
    for trial in (*chosen, *rivals, *front.members):
        if not trial.is_vanilla:
            by_shape.setdefault(trial.config.shape, trial.config)
    return list(by_shape.values())


def time_front(sweep: Sweep, plan: PlanSession, sessions: Sequence[Task], build: Build, emit: EventSink) -> None:
    """Time the front and the choices of a sweep whose trials have finished, as long as images are left to time.

    At least one session is made, and others as long as fewer images are timed than if each shape had been timed alone,
    next to vanilla. Which settings a session has depends on the records and on the sessions before it alone, so a sweep
    that is resumed has the same ones. sessions: those of the trials. A session that fails leaves the speeds as they
    are, with a note.

    Raises:
        ClusterLost: another cluster can go on.
    """
    sessions = [session for session in sessions if session.name in build.files]
    if not sessions:
        return
    names = [session.name for session in sessions]
    sizes = [len(session.payload["configs"]) for session in sessions]
    shapes = {record.shape for record in sweep.records if record.shape and record.config != sweep.identity.baseline}
    left = 2 * len(shapes) - sum(sizes)  # in images of a session, of one setting
    try:
        while True:
            configs = decisive_configs(sweep.priced(names))
            if not configs or (left < 1 + len(configs) and len(names) > len(sessions)):
                return
            session = replace(plan(configs, len(names)), about="timing the front once more")
            build.want(SWEEP, session)
            build.wait(session.name)
            names.append(session.name)
            left -= 1 + len(configs)
    except ClusterLost:
        raise
    except (SweepError, PoolError, QueryError) as error:  # the last one: the objectives have no front
        emit({"event": "note", "note": f"the front was not timed once more: {error}"})
