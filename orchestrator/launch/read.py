"""What a launch works with, as its options and files say it: the sweep, its storage, what it takes
over from earlier sweeps, and the stored sweep that it resumes.

Nothing here imports what takes seconds, so that a wrong file or an existing sweep is refused at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator.launch.options import LaunchOptions
from orchestrator.store import files, launches
from orchestrator.store.identity import plugins_of
from orchestrator.store.records import read_trials
from search_spaces.documents import describe_differences
from search_spaces.paths import is_remote
from search_spaces.plugins import load_plugins
from search_spaces.sweep import SweepConfig
from workers.data.storage import Storage

if TYPE_CHECKING:
    from orchestrator.launch.earlier import Earlier

_LIMITS = ("trials", "images", "hours")  # of a budget


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """A launch, as its options and files say it."""

    options: LaunchOptions
    # with the values that options set, and the settings that it takes over from earlier fronts
    sweep: SweepConfig
    storage: Storage
    # what the sweep takes over from earlier ones, or took over when it started
    earlier: Earlier | None = None

    @property
    def revived(self) -> tuple[int, ...]:
        """The trials that --revive names (`3,12`). Those that were revived already are allowed, so
        a command can be repeated.

        Raises:
            ValueError: not numbers, or trials that racing did not stop.
        """
        if self.options.revive is None:
            return ()
        stopped = {
            str(record.number)
            for record in read_trials(self.storage)
            if record.stop and record.duplicate_of is None
        }
        chosen = {number.strip() for number in self.options.revive.split(",")}
        if unknown := sorted(chosen - stopped):
            problem = "racing stopped no trial here"
            if stopped:
                found = ", ".join(sorted(stopped, key=int))
                problem = f"choose among the trials that racing stopped: {found}"
            raise ValueError(f"--revive {', '.join(unknown)}: {problem}")
        return tuple(sorted(map(int, chosen)))


def read_request(space: str, options: LaunchOptions) -> LaunchRequest:
    """Read the sweep in a file, or a ready one by its name, and what it takes over.

    Raises:
        ConfigError, OSError: see `SweepConfig.read`.
        NoSweepError, ValueError: see `_read_earlier`; or the URI of --out is malformed.
    """
    changes = options.changes()
    storage = _find_storage(options.out, SweepConfig.read_name(space, changes))
    with plugins_of(storage):  # if it holds a sweep to resume
        sweep = SweepConfig.read(space, changes)
    earlier = _read_earlier(sweep, storage, options.earlier or [])
    if earlier is not None:
        sweep = earlier.extend(sweep)
    return LaunchRequest(options, sweep, storage, earlier)


def _find_storage(out: str, name: str) -> Storage:
    """The storage of a sweep below a folder or URI, which may have a query."""
    if not is_remote(out):
        return Storage(f"{out.rstrip('/')}/{name}")
    root, question_mark, query = out.partition("?")
    return Storage(f"{root.rstrip('/')}/{name}{question_mark}{query}")


def _read_earlier(sweep: SweepConfig, storage: Storage, locations: Sequence[str]) -> Earlier | None:
    """What a sweep takes over from others at these places, or what it took over when it started
    (has an identity); None for nothing.

    Raises:
        NoSweepError, ValueError: an earlier sweep cannot be read, or a resumed sweep started from
            others.
    """
    has_started = storage.exists(files.IDENTITY)
    if not locations and not (has_started and storage.exists(files.EARLIER)):
        return None
    from orchestrator.launch.earlier import Earlier  # imports torch, which takes seconds

    try:
        if not has_started:
            places = {place.display_name: place.uri for place in map(files.find_sweep, locations)}
            return Earlier.read(locations, sweep).at(places)
        return _check_sources(Earlier.stored(storage), sweep, storage, locations)
    except files.NoSweepError as error:
        raise files.NoSweepError(f"--from {error}") from error


def _check_sources(
    earlier: Earlier | None, sweep: SweepConfig, storage: Storage, locations: Sequence[str]
) -> Earlier:
    """What a sweep took over when it started, if --from names no other sweeps.

    Raises:
        NoSweepError: --from names another place, where no sweep is.
        ValueError: --from names another sweep.
    """
    places = {place.display_name: place for place in map(files.find_sweep, locations)}
    known: set[str] = set()
    if earlier is not None:
        known = {source.store for source in earlier.sources}
    for name, place in places.items():
        if name not in known:
            launches.load_identity(place)  # a typing error is reported as such
    if earlier is None:
        raise ValueError(
            f"--from: {sweep.name} exists in {storage.display_name}, and took over nothing; start "
            "another with --name NAME, or another `name` in its file"
        )
    if places.keys() - known:
        started = ", ".join(source.store for source in earlier.sources)
        raise ValueError(
            f"--from: this sweep took over {started} when it started; leave the option out"
        )
    return earlier.at({name: place.uri for name, place in places.items()})


def resume(request: LaunchRequest) -> tuple[LaunchRequest, str]:
    """Let a launch resume the sweep that is stored where its own would be, if there is one.

    Limits of the stored budget stay where they are larger than the file's and this command gives no
    others: an earlier command may have given them.

    Returns:
        The launch, and a sentence on the limits that stay; "" if none does.

    Raises:
        ValueError: a sweep is stored there, and it is not to be resumed, or differs from this one.
    """
    stored = _read_stored(request)
    larger = {} if stored is None else _larger_limits(request, stored)
    if not larger:
        return request, ""
    own = request.sweep.budget
    kept = ", ".join(f"{limit:g} {unit}" for unit, limit in larger.items())
    instead = ", ".join(f"{getattr(own, unit):g} {unit}" for unit in larger)
    options = ", ".join(f"--{unit}" for unit in larger)
    sweep = replace(request.sweep, budget=replace(own, **larger))
    return replace(request, sweep=sweep), (
        f"{sweep.name}: goes on with its stored budget of {kept} instead of {instead} ({options} "
        "to change it)"
    )


def _read_stored(request: LaunchRequest) -> SweepConfig | None:
    """The stored sweep, None if there is none. Raises ValueError as `resume`."""
    storage = request.storage
    options = request.options
    is_described = storage.exists(files.SWEEP)  # if not, a resumed launch writes it again
    is_resumed = options.resume or options.check
    if not is_described and (is_resumed or not storage.exists(files.IDENTITY)):
        return None
    if not is_resumed:
        raise ValueError(
            f"{storage.display_name}: a sweep exists here; resume it with --resume, or start "
            "another with --name NAME"
        )
    with plugins_of(storage):
        load_plugins()  # all of them: workers may need those of metrics and samplers too
        stored = SweepConfig.parse(files.read_sweep_text(storage), storage.locate(files.SWEEP))
    if changes := request.sweep.changes(stored):
        raise ValueError(
            f"{storage.display_name}: this sweep started with other values: "
            f"{describe_differences(changes)}; restore them, or start another with --name NAME (a "
            "resumed sweep may change its budget alone)"
        )
    return stored


def _larger_limits(request: LaunchRequest, stored: SweepConfig) -> dict[str, Any]:
    """The stored limits of the budget that are larger than the request's, which no option gave."""
    given = request.options.changes()
    larger: dict[str, Any] = {}
    if "budget" in given:
        return larger
    for unit in _LIMITS:
        own = getattr(request.sweep.budget, unit)
        before = getattr(stored.budget, unit)
        if f"budget.{unit}" in given or own is None or before is None:
            continue
        if before > own:
            larger[unit] = before
    return larger
