"""The progress of a sweep, read from its files, and what to know about its results beyond their errors.

The process that runs the sweep is not contacted. Trials of one shape that were timed must agree with each other,
because they share step costs; speeds should not drift from timing to timing; and times depend on when they were
measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePath
from statistics import fmean, variance
from typing import TYPE_CHECKING, Any

from orchestrator.results.launches import EventLog, Launch, describe_event, find_launch, read_events
from orchestrator.results.store import EVENTS, Identity, planned_trials
from orchestrator.results.sweep import Sweep
from orchestrator.results.trials import COMPLETE, FAILED, STOPPED, State, TrialRecord
from workers.data.shards import TimingShard, shard_kind
from workers.data.storage import Storage
from workers.metrics.definition import OWN_TIMINGS, TIMINGS, Metric
from workers.metrics.estimate import Estimate
from workers.runtime.logs import log_folder

if TYPE_CHECKING:
    from orchestrator.results.sweep import Sweep


LEVEL = 0.01  # chance that any warning of a sweep about disagreement is a false alarm
_DRIFT, _MIN_SHAPES = 0.1, 3  # relative spread of vanilla's time, and shapes that it needs


def speed_warnings(records: Sequence[TrialRecord], timing: Mapping[str, Any]) -> list[str]:
    """A sentence for each trial that was timed itself and disagrees with its shape beyond errors.

    Its `speedup_timed` is compared with its `speedup`, and its `step_cost` with that of the first trial of its shape,
    by Student's t. The level is divided by the number of comparisons (Bonferroni). timing: the section of the sweep. A
    first sentence says how much speeds drifted from timing to timing, if that was much.
    """
    from scipy.special import stdtr  # the import takes a part of a second

    checked = []
    for sentence, difference, error, dof in _comparisons(records, int(timing.get("batch", 1))):
        if error > 0 and dof > 0:
            checked.append((sentence, 2 * float(stdtr(dof, -abs(difference) / error))))
    found = [(sentence, p) for sentence, p in checked if p * len(checked) < LEVEL]
    certain = "speed-ups of its shape are less certain than stated"
    return [*_drift(records), *(f"{sentence} (p = {p:.1g}): {certain}" for sentence, p in found)]


def _drift(records: Sequence[TrialRecord]) -> list[str]:
    """A sentence if vanilla's time differs between shapes by more than the noise of the timings explains."""
    times = {}  # of vanilla beside each shape: what remains of a trial's time without its speed-up; and its noise
    for record in records:
        if record.state == COMPLETE and {"speedup", "latency"} <= record.metrics.keys():
            parts = [record.metrics[name] for name in ("speedup", "latency")]
            noise = math.hypot(*((part.noise or 0.0) / part.value for part in parts))
            times[record.shape] = math.prod(part.value for part in parts), noise
    if len(times) < _MIN_SHAPES:
        return []
    vanilla, noises = zip(*times.values(), strict=True)
    excess = variance(map(math.log, vanilla)) - fmean(noise**2 for noise in noises)
    if excess <= _DRIFT**2:
        return []
    return [
        f"speeds drift: vanilla took {min(vanilla):.3g} to {max(vanilla):.3g} s per image from timing to timing, so "
        "speed-ups vary more than their errors say"
    ]


def _is_ratio(metric: Metric) -> bool:
    """Whether its values compare each trial with vanilla, timed in turn with it or with a trial of its shape."""
    return TIMINGS in metric.needs and OWN_TIMINGS not in metric.needs and not metric.is_time


def time_notes(identities: Sequence[Identity], expressions: Iterable[str]) -> list[str]:
    """A clause on the metrics that are times, if there are any, and on those to use instead. expressions: metrics, and
    limits and filters, which start with a metric.
    """
    metrics = {name: metric for identity in identities for name, metric in identity.metrics.items()}
    names = dict.fromkeys(word for text in expressions for word in re.findall(r"^\s*(\w+)", text))
    times = [name for name in names if name in metrics and metrics[name].is_time]
    ratios = [name for name, metric in metrics.items() if _is_ratio(metric)]
    if not times:
        return []
    note = f"{' and '.join(times)} also depends on how busy the machine was when a trial was timed"
    better = f"; {' and '.join(ratios)} is paired with vanilla, timed in turn with the setting" if ratios else ""
    return [note + better]


def _comparisons(records: Sequence[TrialRecord], batch: int) -> Iterator[tuple[str, float, float, int]]:
    """Pairs of values that should agree: what to say if they do not, their difference, its standard error and its
    degrees of freedom."""
    first: dict[str, tuple[int, Estimate]] = {}
    for record in records:
        metrics, number = record.metrics, record.number
        if record.state != COMPLETE or record.duplicate_of is not None or "speedup_timed" not in metrics:
            continue
        if "speedup" in metrics:
            exact, timed = metrics["speedup"], metrics["speedup_timed"]
            sentence = f"trial {number}: speedup is {exact.value:.3g}, but {timed.value:.3g} where it was timed"
            yield sentence, exact.value - timed.value, *_speed_error(record, exact, timed, timed.n // batch - 1)
        if "step_cost" in metrics:
            cost = metrics["step_cost"]
            other, shared = first.setdefault(record.shape, (number, cost))
            if other != number:
                costs = f"a step costs {cost.value:.3g} of vanilla's, but {shared.value:.3g} in trial {other}"
                sentence = f"trial {number}: {costs}, whose costs it shares"
                error = math.hypot(cost.known_error or 0, shared.known_error or 0)
                yield sentence, cost.value - shared.value, error, min(cost.n, shared.n) - 1


def _speed_error(record: TrialRecord, exact: Estimate, timed: Estimate, dof: int) -> tuple[float, int]:
    """Standard error of speedup - speedup_timed, at most, and its degrees of freedom.

    The timed captions are among those of `speedup`, so only the errors of the timed ones count. The clock's noise is in
    both if both are from the same timing files, and adds if not.
    """
    files = {name for name in record.shards if shard_kind(name) == TimingShard.kind}
    if not exact.noise or files <= set(record.shape.split(",")):
        return timed.known_error or 0, dof
    return math.hypot(exact.noise, timed.known_error or 0), min(dof, exact.noise_dof or dof)


MIN_PASSES = 100  # of the target, below which nothing is said about a drafter
MAX_ACCEPTED = 0.05  # drafted tokens per pass that are "hardly any"


def sweep_notes(sweep: Sweep) -> list[str]:
    """Sentences on the sweep's speeds and drafters (see `speed_warnings` and `drafter_warnings`)."""
    return [*speed_warnings(sweep.records, sweep.identity.timing), *drafter_warnings(sweep.records, sweep.identity)]


def waiting_note(sweep: Sweep) -> list[str]:
    """A sentence on what the launch does, if no trial has finished."""
    return [] if sweep.records else [f"no trial has finished; {find_launch(sweep.storage).text}"]


def drafter_warnings(records: Iterable[TrialRecord], identity: Identity) -> list[str]:
    """A sentence for each drafter with weights of which hardly anything is accepted in any of its trials."""
    counts: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        if record.config is not None and (count := _tokens_and_passes(record, identity)) is not None:
            counts.setdefault(record.config.drafter.kind, []).append(count)
    found = []
    for kind, trials in counts.items():
        enough = [(tokens, passes) for tokens, passes in trials if passes >= MIN_PASSES]
        if f"drafters.{kind}" in identity.models and enough and all(is_hardly_accepted(*count) for count in enough):
            tokens, passes = max(enough, key=lambda count: count[0] / count[1])
            found.append(drafter_warning(kind, identity.files.get(f"drafters.{kind}"), tokens, passes))
    return found


def is_hardly_accepted(tokens: float, passes: float) -> bool:
    """Whether fewer drafted tokens than `MAX_ACCEPTED` per pass were accepted, by a 95 % upper limit of their number
    (Poisson), over at least `MIN_PASSES`.

    tokens: emitted in these passes, each of which emits one that was not drafted.
    """
    accepted = max(0.0, tokens - passes)
    return passes >= MIN_PASSES and accepted + 2 * math.sqrt(accepted) + 3 < MAX_ACCEPTED * passes


def drafter_warning(kind: str, file: str | None, tokens: float, passes: float) -> str:
    """The sentence on a drafter of which hardly anything is accepted. file: its weights, if their place is known."""
    return (
        f"hardly anything that the {kind} drafter proposes is accepted ({tokens / passes:.2f} tokens per target pass "
        f"over {passes:,.0f} passes): its weights{f', {file},' if file else ''} probably do not belong to this target"
    )


def _tokens_and_passes(record: TrialRecord, identity: Identity) -> tuple[float, float] | None:
    """The tokens of all images of a trial and the passes that emitted them, without prefills; None if unknown."""
    length, compression = (record.metrics.get(name) for name in ("mean_accepted_length", "step_compression"))
    if identity.grid is None or not record.images:
        return None
    tokens = record.images * (math.prod(identity.grid) - 1)
    if length is not None:
        return tokens, tokens / length.value
    if compression is not None:  # of the image's tokens over its passes, the prefill's among both
        return tokens, (tokens + record.images) / compression.value - record.images
    return None


_MAX_TRIALS = 3  # in a warning


@dataclass(frozen=True, slots=True)
class SweepStatus:
    """The progress of a sweep.

    launch: the latest one. planned: trials in the budget, None if it has none. failed, stopped: number and cause of
    each. running: trials that the latest launch started and did not finish. images: those generated, each config's
    counted once. lost: workers and clusters that the launch lost, with the time. events: the latest, described. idle_s:
    seconds since the last event or trial, None if there was none. warnings: about the results. logs: folder of the
    workers' logs, if it is on this machine.
    """

    name: str
    place: str
    launch: Launch
    planned: int | None
    finished: int
    failed: tuple[Mapping[str, Any], ...]
    stopped: tuple[Mapping[str, Any], ...]
    running: tuple[int, ...]
    images: int
    lost: tuple[str, ...]
    events: tuple[str, ...]
    idle_s: float | None
    warnings: tuple[str, ...] = ()
    logs: str | None = None


def sweep_status(storage: Storage, sweep: Sweep | None = None, now: datetime | None = None) -> SweepStatus:
    """Read the status. sweep: None before its first results. now: the time from which `idle_s` counts."""
    now = now or datetime.now(UTC)
    log, records = read_events(storage), () if sweep is None else sweep.records
    finished = {record.number for record in records}
    times = [datetime.fromisoformat(stamp) for stamp in [*(r.finished for r in records if r.finished), *log.last]]
    logs = log_folder(storage)
    return SweepStatus(
        name=PurePath(storage.display_name.partition("?")[0]).name if sweep is None else sweep.name,
        place=storage.display_name,
        launch=find_launch(storage, log, now),
        planned=planned_trials(storage),
        finished=len(records),
        failed=_causes(records, FAILED),
        stopped=_causes(records, STOPPED),
        running=tuple(sorted(log.started - finished)),
        images=sum(record.images for record in records if record.duplicate_of is None)
        + sum(images for number, images in log.images.items() if number not in finished),
        lost=tuple(map(describe_event, log.lost)),
        events=tuple(map(describe_event, log.recent)),
        idle_s=max(0.0, (now - max(times)).total_seconds()) if times else None,
        warnings=(*_damage(log, records if storage.exists(EVENTS) else ()), *([] if sweep is None else _notes(sweep))),
        logs=None if logs is None else str(logs),
    )


def _notes(sweep: Sweep) -> list[str]:
    return sweep_notes(sweep) + time_notes([sweep.identity], [metric.name for metric in sweep.identity.objectives])


def _damage(log: EventLog, records: Iterable[TrialRecord]) -> list[str]:
    """Sentences on what the events lack of these records."""
    missing = [str(record.number) for record in records if record.number not in log.finished]
    problems = [f"{log.damaged} damaged lines are left out"] if log.damaged else []
    problems += [f"the end of trial {', '.join(missing[:_MAX_TRIALS])} is missing"] if missing else []
    return [f"{EVENTS}: {problem}; the trials' own files are complete" for problem in problems]


def _causes(records: Iterable[TrialRecord], state: State) -> tuple[Mapping[str, Any], ...]:
    return tuple(
        {"number": record.number, "cause": record.cause or "no cause recorded"}
        for record in records
        if record.state == state
    )
