"""The timing sessions of a sweep: which settings are timed together, and when.

A session times vanilla and one setting of each shape in turn. The first one has the shapes of
`enqueue`; each new shape has a session when its first trial starts; and when all trials have
finished, the front and the choices are timed again. So costs come from sessions that are spread
over the sweep, and those of the front show how much they vary from one to the next.

No more images are timed than if each shape had been timed once, alone with vanilla, and the front
once more: sessions of several shapes leave images over (`_images_left`). New shapes are timed
together with an anchor, the first shape that was timed, as long as images are left, and what then
remains is spent on the front. If `enqueue` has no shape but vanilla's, none are left: timing a
shape twice would take more images, and the state of the machine is assumed until the last session
(see `workers.metrics.costs`). With one shape, the second session has the anchor.

Sessions are numbered in the order of the trials' numbers, whatever the workers do, and one in the
place of a session that failed has the same number. So a sweep that is resumed has the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from orchestrator.cluster.tasks import SWEEP, ClusterLost, PoolError, SweepError, Task
from orchestrator.errors import QueryError
from orchestrator.front.choice import recommend
from orchestrator.front.front import front_of
from orchestrator.run.build import Build
from orchestrator.store import events
from orchestrator.store.sweep import Sweep
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, StepShape
from workers.data.shards import TIMINGS, TimingSession, plan_session, session_groups
from workers.metrics.registry import uses_timings

PlanSession = Callable[[Sequence[DecodingConfig], int], Task]


class Sessions:
    """The sessions of a sweep's trials.

    plan: the session of vanilla and some configs, by its number.
    """

    def __init__(self, sweep: SweepConfig, vanilla: DecodingConfig, plan: PlanSession) -> None:
        self._plan = plan
        self._is_needed = uses_timings(sweep.requested_metrics)
        self._made: dict[str, Task] = {}  # by name
        self._count = 0  # of those that were planned, without those in the place of others
        self._of_shape: dict[StepShape, Task] = {}
        self._anchor: DecodingConfig | None = None
        self._left = _images_left(0, ())
        self._vanilla = vanilla.shape
        enqueued = {entry.config.shape: entry.config for entry in reversed(sweep.enqueue)}
        shapes = [config for config in reversed(enqueued.values()) if config.shape != self._vanilla]
        self._first = session_groups(shapes) or [[]]

    @property
    def made(self) -> list[Task]:
        """Those of all trials so far."""
        return list(self._made.values())

    def of(self, config: DecodingConfig) -> tuple[Task, ...]:
        """The sessions that price a trial, that of its shape last; empty if no metric needs them.

        Call it in the order of the trials' numbers.
        """
        if not self._is_needed:
            return ()
        own = self._session_of(config)
        self._made.setdefault(own.name, own)  # one that failed is tried again
        return (*(session for name, session in self._made.items() if name != own.name), own)

    def keep(self, config: DecodingConfig, files: Collection[str]) -> None:
        """Add the session of a trial that an earlier launch finished, which is not the planned one
        if that failed.

        files: the trial's. Call it in the order of the trials' numbers, as `of`.
        """
        if not self._is_needed:
            return
        own = self._session_of(config)
        name = next((file for file in files if file.startswith(TIMINGS)), own.name)
        if name == own.name:
            return
        self._made.pop(own.name, None)
        alone = self._alone(config.shape, own)
        if alone.name == name:
            self._made[name] = self._of_shape[config.shape] = alone

    def without(
        self, config: DecodingConfig, sessions: Sequence[Task], lost: Collection[str]
    ) -> tuple[Task, ...]:
        """Sessions that price a trial if some of these cannot be made. If that of its shape is
        among them, the shape is timed in a session of its own; empty if that is lost too.
        """
        if not sessions:
            return ()
        for name in lost:
            self._made.pop(name, None)
        own = sessions[-1]
        left = [session for session in sessions if session.name not in lost]
        if own.name not in lost:
            return tuple(left)
        alone = self._alone(config.shape, own)
        if alone.name == own.name:
            return ()
        self._made[alone.name] = self._of_shape[config.shape] = alone
        return (*left, alone)

    def _session_of(self, config: DecodingConfig) -> Task:
        """The session of a config's shape, which is planned if it is the first with this shape."""
        while self._first:
            self._add(self._first.pop(0))
        if config.shape not in self._of_shape:
            self._add([config])
        return self._of_shape[config.shape]

    def _alone(self, shape: StepShape, failed: Task) -> Task:
        """The session of vanilla and this shape alone in the place of one that failed. It has its
        number, so that all others keep theirs.
        """
        configs = map(DecodingConfig.from_mapping, failed.payload["configs"][1:])
        own = [config for config in configs if config.shape == shape]
        return self._plan(own, failed.payload["number"])

    def _add(self, configs: Sequence[DecodingConfig]) -> None:
        self._left += 2 * len(configs) - (1 + len(configs))
        timed = [*configs]
        if self._anchor and self._left > 0:
            timed.insert(0, self._anchor)
            self._left -= 1
        session = self._plan(timed, self._count)
        self._count += 1
        self._made[session.name] = session
        self._of_shape |= dict.fromkeys((config.shape for config in configs), session)
        self._of_shape.setdefault(self._vanilla, session)
        self._anchor = self._anchor or next(iter(configs), None)


def session_of(
    sweep: SweepConfig, configs: Sequence[DecodingConfig], captions: int, number: int = 0
) -> TimingSession:
    """A sweep's timing session of configs, vanilla's first. captions: their number.

    Raises:
        ValueError: too few captions.
    """
    timing = sweep.timing
    return plan_session(
        configs,
        captions,
        images=timing.images,
        batches=timing.batches,
        repetitions=timing.repetitions,
        precision=timing.precision,
        seed=sweep.seed,
        number=number,
    )


def decisive_configs(sweep: Sweep) -> list[DecodingConfig]:
    """A config of each shape that decides what is recommended (see `Recommendation.decisive`)."""
    by_shape: dict[StepShape, DecodingConfig] = {}
    for trial in recommend(front_of([sweep])).decisive:
        by_shape.setdefault(trial.config.shape, trial.config)
    return list(by_shape.values())


def _images_left(shapes: int, sizes: Iterable[int]) -> int:
    """How many settings may still be timed: 1 + 2 x shapes, minus those of all sessions so far. So
    many it takes to time vanilla once, and each of `shapes` others once, alone with vanilla. sizes:
    settings of each session.
    """
    return 1 + 2 * shapes - sum(sizes)


def planned_sizes(sweep: SweepConfig, configs: Sequence[DecodingConfig], front: int) -> list[int]:
    """Settings in each session of a sweep, vanilla included, if its trials have these configs,
    vanilla's first, and its front so many shapes without vanilla's.
    """
    sizes = list[int]()

    def plan(others: Sequence[DecodingConfig], number: int) -> Task:
        sizes.append(1 + len(others))
        return Task(str(number), {})

    sessions = Sessions(sweep, configs[0], plan)
    for config in configs:
        sessions.of(config)
    last = _sizes_of_front(range(front))
    if not sizes or not last:
        return sizes
    others = {config.shape for config in configs} - {configs[0].shape}
    left = _images_left(len(others), sizes)
    return [*sizes, *max(1, left // sum(last)) * last]


def _sizes_of_front(settings: Sequence[object]) -> list[int]:
    """Settings in the sessions that time these once more."""
    return [1 + len(group) for group in session_groups(settings)]


def time_front(
    sweep: Sweep, plan: PlanSession, sessions: Sequence[Task], build: Build, emit: events.EventSink
) -> str:
    """Time the front and the choices of a sweep whose trials have finished, at least once, and
    again as long as images are left for it (see the module).

    Which settings a session has depends on the records and on the sessions before it alone, so a
    sweep that is resumed has the same ones. sessions: those of the trials. A session that fails
    leaves the speeds as they are, with a note; returns why it did (see `Outcome.untimed`).

    Raises:
        ClusterLost: another cluster can go on.
    """
    sessions = [session for session in sessions if session.name in build.files]
    if not sessions:
        return ""
    names = [session.name for session in sessions]
    number = 1 + max(session.payload["number"] for session in sessions)
    shapes = {
        record.shape
        for record in sweep.records
        if record.shape and record.config != sweep.identity.baseline
    }
    left = _images_left(len(shapes), (len(session.payload["configs"]) for session in sessions))
    try:
        while True:
            configs = decisive_configs(sweep.priced(names))
            size = sum(_sizes_of_front(configs))
            if not configs or (left < size and len(names) > len(sessions)):
                return ""
            again = []
            for group in session_groups(configs):
                again.append(replace(plan(group, number), about="timing the front once more"))
                number += 1
            build.want(SWEEP, *again)
            for session in again:
                build.wait(session.name)
                names.append(session.name)
            left -= size
    except ClusterLost:
        raise
    except (SweepError, PoolError, QueryError) as error:
        # the last one: the objectives have no front
        emit(events.Note(note=f"the front was not timed once more: {error}"))
        return str(error)
