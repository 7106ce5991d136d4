"""The progress of a sweep, read from its files, and what to know about its results beyond their
errors.

The process that runs the sweep is not contacted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

from orchestrator.front.plateau import plateau_notes, plateau_state
from orchestrator.store import files, launches
from orchestrator.store.identity import Identity
from orchestrator.store.names import trial_title
from orchestrator.store.prices import Machine, is_priced, min_images
from orchestrator.store.progress import SweepProgress, read_progress
from orchestrator.store.records import State, TrialRecord
from orchestrator.store.sweep import Sweep
from orchestrator.text import counted, some_trials
from search_spaces.constraints import split_batch
from search_spaces.params import expect_mapping
from search_spaces.plain_data import fit_entries
from workers.data.checked_json import parse_checked
from workers.data.storage import Storage
from workers.runtime.logs import log_folder


def timing_notes(sweep: Sweep) -> list[str]:
    """Sentences on a sweep's speeds that errors cannot say: sessions that cannot be used, what was
    not timed, and what was timed on a busy machine.
    """
    notes = session_problems(sweep)
    if (machine := sweep.machine) is None:
        return notes
    notes += untimed_notes(sweep, sweep.records)
    if len(sweep.prices.sessions_on(machine.device, machine.batch)) == 1:
        again = _time_command(sweep, machine)
        notes.append(f"all speeds on {machine} are of one timing session; `{again}` adds others")
    return notes + load_notes(sweep)


def untimed_notes(sweep: Sweep, records: Sequence[TrialRecord]) -> list[str]:
    """Sentences on those of a sweep's trials that have results, and no speed on its device at a
    batch size that was timed there: how many, why, and the command that times them.
    """
    machine = sweep.machine
    if machine is None:
        return []
    measured = [entry for entry in records if entry.is_complete and entry.duplicate_of is None]
    notes = []
    for batch, speed in _timed_speeds(sweep, machine).items():
        there = replace(machine, batch=batch)
        least = min_images(batch, sweep.identity)
        lacking = [entry for entry in measured if speed not in entry.metrics]
        untimed = [entry.number for entry in lacking if entry.images >= least]
        if untimed:
            numbers = ",".join(map(str, untimed))
            again = _time_command(sweep, there, "--where", f"number in {numbers}")
            notes.append(
                f"no speed on {there} for {some_trials(untimed, len(measured))}, not timed there; "
                f"`{again}` measures it"
            )
        if small := [entry.number for entry in lacking if entry.images < least]:
            notes.append(
                f"no speed on {there} for {some_trials(small, len(measured))}, with fewer than the "
                f"{least} images that it takes"
            )
    return notes


def _timed_speeds(sweep: Sweep, machine: Machine) -> Mapping[int, str]:
    """A metric of speed for each batch size that was timed on a machine's device."""
    timed = sweep.prices.batches_on(machine.device)
    found: dict[int, str] = {}
    for name in filter(is_priced, sweep.identity.metrics):
        batch = split_batch(name)[1] or machine.batch
        if batch in timed:
            found.setdefault(batch, name)
    return found


def load_notes(sweep: Sweep) -> list[str]:
    """A sentence on the timing sessions that other processes disturbed, if there are any among
    those of the sweep's speeds.
    """
    if (machine := sweep.machine) is None:
        return []
    sessions = sweep.prices.sessions_on(machine.device, machine.batch)
    busy = [session for session in sessions if session.is_busy]
    if not busy:
        return []
    which = "all speeds"
    if len(busy) < len(sessions):
        which = f"speeds ({len(busy)} of {len(sessions)} timing sessions)"
    measured = {
        "wall over CPU time": [session.load.wall_over_cpu or 0.0 for session in busy],
        "load per core": [session.load.per_core or 0.0 for session in busy],
    }
    found = [f"{name} {max(values):.2f}" for name, values in measured.items() if any(values)]
    again = _time_command(sweep, machine)
    return [
        f"{which} on {machine} were timed on a busy machine ({', '.join(found)} at most), so they "
        f"may differ more on another day; on a quiet machine, `{again}` adds others"
    ]


def session_problems(sweep: Sweep) -> list[str]:
    """A sentence on each timing session that cannot be used."""
    return [
        f"{problem}: the speeds are those of the other timing sessions"
        for problem in sweep.prices.problems
    ]


def _time_command(sweep: Sweep, machine: Machine, *options: str) -> str:
    """The command that times a sweep there. A CPU with as many threads is the same device."""
    threads = machine.device.threads
    place = ["--threads", str(threads)] if threads else []
    return files.command(sweep.storage, "time", *options, *place, "--batch", str(machine.batch))


MIN_PASSES = 100  # of the target; with fewer, nothing is said about a drafter
MAX_ACCEPTED = 0.05  # drafted tokens per pass; fewer are hardly any


def sweep_notes(sweep: Sweep, *, is_running: bool = False) -> list[str]:
    """Sentences on why the sweep ended, false claims, its speeds and drafters (see `plateau_notes`,
    `timing_notes` and `drafter_warnings`). A running one will time more by itself.
    """
    claims = _false_claims(sweep)
    speeds = timing_notes(sweep)
    if is_running:
        speeds = session_problems(sweep) + load_notes(sweep)
    drafters = drafter_warnings(sweep.records, sweep.identity)
    return [*plateau_notes(sweep), *claims, *speeds, *drafters]


def _false_claims(sweep: Sweep) -> list[str]:
    """A sentence on each trial that claims to be lossless and is not."""
    return [
        f"{trial_title(record.number, record.label, sweep.names.name(record.config))}: "
        f"{record.check.summary}"
        for record in sweep.records
        if record.check is not None and record.fails_check and record.duplicate_of is None
    ]


def waiting_note(sweep: Sweep) -> list[str]:
    """A sentence on what the launch does, if no trial has finished."""
    if sweep.records:
        return []
    return [f"no trial has finished; {launches.find_launch(sweep.storage).text}"]


def drafter_warnings(records: Iterable[TrialRecord], identity: Identity) -> list[str]:
    """A sentence for each drafter with weights of which hardly anything is accepted in any of its
    trials.
    """
    counts: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        count = _tokens_and_passes(record, identity)
        if record.config is not None and count is not None:
            counts.setdefault(record.config.drafter.kind, []).append(count)
    found = []
    for kind, trials in counts.items():
        key = f"drafters.{kind}"
        enough = [(tokens, passes) for tokens, passes in trials if passes >= MIN_PASSES]
        if key not in identity.models or not enough:
            continue
        if all(is_hardly_accepted(*count) for count in enough):
            tokens, passes = max(enough, key=lambda count: count[0] / count[1])
            found.append(drafter_warning(kind, identity.files.get(key), tokens, passes))
    return found


def is_hardly_accepted(tokens: float, passes: float) -> bool:
    """Whether fewer drafted tokens than `MAX_ACCEPTED` per pass were accepted, by a 95 % upper
    limit of their number (Poisson), over at least `MIN_PASSES`.

    tokens: emitted in these passes, each of which emits one that was not drafted.
    """
    accepted = max(0.0, tokens - passes)
    return passes >= MIN_PASSES and accepted + 2 * math.sqrt(accepted) + 3 < MAX_ACCEPTED * passes


def drafter_warning(kind: str, file: str | None, tokens: float, passes: float) -> str:
    """The sentence on a drafter of which hardly anything is accepted. file: its weights, if their
    place is known.
    """
    return (
        f"hardly anything that the {kind} drafter proposes is accepted ({tokens / passes:.2f} "
        f"tokens per target pass over {passes:,.0f} passes): its "
        f"weights{f', {file},' if file else ''} probably do not belong to this target"
    )


def _tokens_and_passes(record: TrialRecord, identity: Identity) -> tuple[float, float] | None:
    """The tokens of all images of a trial and the passes that emitted them, without prefills; None
    if unknown.
    """
    if not record.images:
        return None
    length = record.metrics.get("mean_accepted_length")
    compression = record.metrics.get("step_compression")
    tokens = record.images * (identity.token_grid.tokens - 1)
    if length is not None and length.value > 0:
        return tokens, tokens / length.value
    if compression is not None and compression.value > 0:
        # of the image's tokens over its passes, the prefill's among both
        return tokens, (tokens + record.images) / compression.value - record.images
    return None


_MAX_TRIALS = 3  # in a warning


@dataclass(frozen=True, slots=True)
class SweepStatus:
    """The progress of a sweep."""

    name: str
    place: str
    launch: launches.Launch  # the latest one
    planned: int | None  # trials in the budget, None if it has none
    finished: int
    failed: tuple[Mapping[str, Any], ...]  # number and cause of each
    stopped: tuple[Mapping[str, Any], ...]  # number and cause of each
    running: tuple[int, ...]  # trials that the latest launch started and did not finish
    images: int  # generated; each config's count once
    lost: tuple[str, ...]  # workers and clusters that the launch lost, with the time
    events: tuple[str, ...]  # the latest
    idle_s: float | None  # since the last event or trial, None if there was none
    warnings: tuple[str, ...] = ()  # about the results
    logs: str | None = None  # folder of the workers' logs, if it is on this machine
    # What is taken over from earlier sweeps: their names (`sweeps`), the number of `images` copied
    # so far (in a bucket, those of finished trials), and of `trials` reported to the search.
    taken: Mapping[str, Any] | None = None
    # how close the front is to the plateau of the budget; None without one (see `PlateauState`)
    plateau: Mapping[str, Any] | None = None


def sweep_status(
    storage: Storage, sweep: Sweep | None = None, now: datetime | None = None
) -> SweepStatus:
    """Read the status. sweep: None before its first results. now: the end of `idle_s`."""
    now = now or datetime.now(UTC)
    name = PurePath(storage.display_name.partition("?")[0]).name
    records: Sequence[TrialRecord] = ()
    if sweep is not None:
        name = sweep.name
        records = sweep.records
    progress = read_progress(storage)
    launch = launches.find_launch(storage, progress, now)
    finished = {record.number for record in records}
    moments = list(filter(None, [*(record.finished for record in records), progress.last]))
    latest = max(map(datetime.fromisoformat, moments), default=None)
    images = sum(record.images for record in records if record.duplicate_of is None)
    images += sum(count for number, count in progress.images.items() if number not in finished)
    is_running = launch.is_running
    warnings = _damage(
        progress, records if storage.exists(files.EVENTS) else (), is_running=is_running
    )
    if sweep is not None:
        warnings += sweep_notes(sweep, is_running=is_running)
    logs = log_folder(storage)
    return SweepStatus(
        name=name,
        place=storage.display_name,
        launch=launch,
        planned=files.planned_trials(storage),
        finished=len(records),
        failed=_causes(records, "failed"),
        stopped=_causes(records, "stopped"),
        running=tuple(sorted(progress.running.keys() - finished)),
        images=images,
        lost=tuple(map(launches.describe_event, progress.lost)),
        events=tuple(map(launches.describe_event, progress.recent)),
        idle_s=None if latest is None else max(0.0, (now - latest).total_seconds()),
        warnings=tuple(warnings),
        logs=None if logs is None else str(logs),
        taken=_taken(storage, progress, records),
        plateau=_plateau(storage, progress, sweep),
    )


def _plateau(
    storage: Storage, progress: SweepProgress, sweep: Sweep | None
) -> Mapping[str, Any] | None:
    """How close the front is to a plateau, as the launch last said; in a bucket, by the trials that
    are there.
    """
    latest = progress.plateau
    if sweep is not None and not storage.exists(files.EVENTS):
        state = plateau_state(sweep)
        latest = None if state is None else state.to_event()
    if latest is None:
        return None
    return {key: value for key, value in latest.to_mapping().items() if key not in ("event", "at")}


def _taken(
    storage: Storage, progress: SweepProgress, records: Iterable[TrialRecord]
) -> Mapping[str, Any] | None:
    """What a sweep takes over (see `SweepStatus`); None if it is nothing."""
    if not storage.exists(files.EARLIER):
        return None
    types = {"name": str, "records": tuple[str, ...]}

    def parse(entries: dict[str, Any]) -> tuple[list[str], int]:
        sources = [fit_entries(types, expect_mapping(source)) for source in entries["sources"]]
        reported = sum(len(source["records"]) for source in sources)
        return [source["name"] for source in sources], reported

    try:
        names, reported = parse_checked(storage.read(files.EARLIER), parse)
    except ValueError as error:
        fix = "restore the file; without it the sweep cannot be resumed"
        raise ValueError(f"{storage.locate(files.EARLIER)}: {error}; {fix}") from error
    copied = progress.copied | Counter(
        {record.number: record.taken * (record.duplicate_of is None) for record in records}
    )
    return {"sweeps": names, "images": copied.total(), "trials": reported}


def _damage(
    progress: SweepProgress, records: Iterable[TrialRecord], *, is_running: bool
) -> list[str]:
    """Sentences on what is damaged or missing among the events. records: those that the events
    should have.
    """
    damaged = progress.damaged
    if is_running and progress.ends_damaged:
        damaged -= 1  # it may be writing this line
    problems = []
    for count, kind, origin in (
        (damaged, "damaged line", ""),
        (progress.of_other_versions, "line", " of another version of specfrontier"),
    ):
        if count:
            verb = "is" if count == 1 else "are"
            problems.append(f"{counted(count, kind)}{origin} {verb} left out")
    missing = [str(record.number) for record in records if record.number not in progress.finished]
    if missing:
        problems.append(f"the end of trial {', '.join(missing[:_MAX_TRIALS])} is missing")
    return [
        f"{files.EVENTS}: {problem}; the trials' own files are complete" for problem in problems
    ]


def _causes(records: Iterable[TrialRecord], state: State) -> tuple[Mapping[str, Any], ...]:
    return tuple(
        {"number": record.number, "cause": record.cause or "no cause recorded"}
        for record in records
        if record.state == state
    )
