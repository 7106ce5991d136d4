"""The speeds of a sweep's trials: the passes of their images, which no device changes, times the
costs of a device.

`Prices` are these costs: what a prefill and a pass of each shape take on one device at one batch
size. Texts for users have no such word: a trial is timed on a device, and has a speed there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np

from orchestrator.errors import QueryError
from orchestrator.store.files import read_table
from orchestrator.store.identity import Identity
from orchestrator.store.records import (
    History,
    TrialRecord,
    may_compare_speeds,
    trial_file,
)
from search_spaces.constraints import Constraint, split_batch
from search_spaces.params import ConfigError
from workers.data.shards import TIMINGS
from workers.data.storage import Storage, in_parallel
from workers.metrics.costs import Prices, batch_passes
from workers.metrics.estimate import BLOCKS, Estimate, MetricUnavailable
from workers.metrics.readings import Floats
from workers.metrics.timings import Device, PriceList, TimedSession, read_session

Price = Callable[[Prices, TrialRecord, Floats, int], Estimate]

#: The metrics of speed, each from the prices of a device, a trial, the passes of its batches and
#: their size
PRICED: Mapping[str, Price] = {
    "speedup": lambda prices, trial, passes, _: prices.speedup(_shape(trial), passes, trial.images),
    "latency": lambda prices, trial, passes, batch: prices.latency(
        _shape(trial), passes, trial.images, batch
    ),
    "step_cost": lambda prices, trial, *_: prices.step_cost(_shape(trial)),
}


def _shape(trial: TrialRecord) -> object:
    assert trial.config is not None, "a trial without a config has no metrics"
    return trial.config.shape


def read_prices(storage: Storage, names: Sequence[str] | None = None) -> PriceList:
    """The costs from timing sessions of a store, by default all. Files that cannot be used are
    among its `problems`.
    """
    if names is None:
        names = [f"{TIMINGS}/{name}" for name in storage.names(TIMINGS)]
    read = list(in_parallel(partial(_session_or_problem, storage), names))
    sessions = [entry for entry in read if not isinstance(entry, str)]
    problems = [entry for entry in read if isinstance(entry, str)]
    return PriceList(sessions, problems)


def _session_or_problem(storage: Storage, name: str) -> TimedSession | str:
    """A timing session, or why it cannot be used."""
    from workers.data.records import ShardError

    try:
        return read_session(storage, name)
    except (ShardError, FileNotFoundError, MetricUnavailable) as error:
        return str(error)
    except ConfigError as error:  # of a plugin that is not loaded
        return f"{storage.locate(name)}: {error}"


@dataclass(frozen=True, slots=True)
class Machine:
    """A device and a batch size: what all speeds in a table, a front or a report are of."""

    device: Device
    batch: int

    def __str__(self) -> str:
        return f"{self.device} at batch {self.batch}"

    @property
    def options(self) -> list[str]:
        """The options of commands that show speeds of it."""
        return ["--device", str(self.device), "--batch", str(self.batch)]

    @classmethod
    def all(cls, prices: PriceList) -> list[Self]:
        """Those on which a sweep was timed: its own device first, then in the order of its
        sessions.
        """
        devices = sorted(prices.devices, key=lambda device: device != prices.own)
        return [cls(device, batch) for device in devices for batch in prices.batches_on(device)]

    @classmethod
    def own(cls, prices: PriceList, batch: int) -> Self | None:
        """The sweep's own (see `PriceList`), at this batch size, or else at the first one that was
        timed there.
        """
        return None if prices.own is None else cls._at(prices, prices.own, batch)

    @classmethod
    def _at(cls, prices: PriceList, device: Device, batch: int) -> Self:
        sizes = prices.batches_on(device)
        return cls(device, batch if batch in sizes else sizes[0])

    @classmethod
    def find(
        cls,
        prices: PriceList,
        device: str | None,
        batch: int | None,
        own_batch: int = 1,
        time: str = "specfrontier time SWEEP",
    ) -> Self:
        """One of the devices and batch sizes at which a sweep was timed.

        Args:
            prices: of the sweep.
            device: a part of the device's name; None: the sweep's own, or else the only one.
            batch: None: `own_batch` where settings were timed at it there, else the first one.
            own_batch: the batch size of the sweep itself.
            time: the command that times the sweep, for messages.

        Raises:
            QueryError: there is no such device, there are several, or nothing was timed at that
                batch size.
        """
        listed = "; ".join(f"{entry} (batch {_batches(prices, entry)})" for entry in prices.devices)
        if batch is not None:
            time += f" --batch {batch}"
        known = f"it was timed on {listed or 'no device'}; `{time}` times it on this machine"
        named = list(prices.devices)
        if device is not None:
            named = _find_named(device, named)
            if not named:
                raise QueryError(f"not timed on a device {device!r}: {known}")
        elif prices.own is not None:
            named = [prices.own]
        timed = [
            entry for entry in prices.devices if batch is None or batch in prices.batches_on(entry)
        ]
        found = [entry for entry in named if entry in timed]
        at = "" if batch is None else f" at batch {batch}"
        if not found and timed and device is None:
            others = "; ".join(map(str, timed))
            raise QueryError(
                f"not timed{at} on {prices.own}, the sweep's own device; `{time}` times it there, "
                f"or choose with --device: {others}"
            )
        if not found:
            on = f" on {device!r}" if device else ""
            raise QueryError(f"not timed{at}{on}: {known}")
        if len(named if device is None else found) > 1:
            of = "" if device is None else f" with {device!r} in their names"
            raise QueryError(
                f"{len(named)} devices{of} timed it; choose one with --device: {listed}"
            )
        return cls._at(prices, found[0], batch or own_batch)


def _find_named(name: str, devices: Sequence[Device]) -> list[Device]:
    """The device of this name, or else those whose names have this part."""
    name = name.casefold()
    same = [device for device in devices if str(device).casefold() == name]
    return same or [device for device in devices if name in str(device).casefold()]


def _batches(prices: PriceList, device: Device) -> str:
    return ", ".join(map(str, prices.batches_on(device)))


def is_priced(metric: str) -> bool:
    """Whether a metric is one of speed, which depends on the device."""
    return split_batch(metric)[0] in PRICED


def price_on(
    machine: Machine,
    records: Iterable[TrialRecord],
    prices: PriceList,
    identity: Identity,
    storage: Storage,
) -> tuple[TrialRecord, ...]:
    """The records with the metrics of speed on one device at one batch size, and with the
    violations of the sweep's constraints that follow. Trials whose shapes were not timed there have
    none, nor a history of these metrics. Numbers of passes that no record has are those of the
    images in its shards.

    Raises:
        ValueError: a shard is missing or damaged.
    """
    names = [name for name in identity.metrics if is_priced(name)]
    found = []
    least = min_images(machine.batch, identity)
    for record in records:
        metrics = {name: value for name, value in record.metrics.items() if not is_priced(name)}
        if record.metrics and record.images >= least:
            metrics = _speeds(names, record, prices, machine, storage) | metrics
        timed_on = {}
        history = record.history
        if any(is_priced(name) for name in metrics):
            timed_on[record.images] = str(machine.device)
        else:
            history = _without_speeds(history)
        found.append(replace(record, metrics=metrics, timed_on=timed_on, history=history))
    if not any(is_priced(Constraint.parse(text).metric) for text in identity.constraints):
        return tuple(found)
    return with_violations(found, identity)


def min_images(batch: int, identity: Identity) -> int:
    """The images of a trial from which its speed at a batch size is known: the longest one of a
    batch is not known from fewer than two batches.
    """
    return min(2 * batch, identity.images)


def with_violations(records: Sequence[TrialRecord], identity: Identity) -> tuple[TrialRecord, ...]:
    """The records of a sweep with their violations of its constraints (see `violations`); as they
    are without vanilla's.
    """
    limits = [Constraint.parse(text) for text in identity.constraints]
    if not limits or not records or records[0].number != 0:
        return tuple(records)
    return tuple(
        replace(record, constraints=violations(record, limits, records)) for record in records
    )


def _without_speeds(history: History) -> History:
    return tuple(
        (images, {name: entry for name, entry in metrics.items() if not is_priced(name)})
        for images, metrics in history
    )


def _speeds(
    names: Iterable[str],
    record: TrialRecord,
    prices: PriceList,
    machine: Machine,
    storage: Storage,
) -> dict[str, Estimate]:
    """Those of the named metrics of speed of a trial that the prices suffice for."""
    if record.config is None:
        return {}
    found = {}
    for name in names:
        base, batch = split_batch(name)
        try:
            costs, size = prices.of(_shape(record), batch or machine.batch, machine.device)
        except MetricUnavailable:
            continue
        if passes := record.passes.get(size) or _stored_passes(storage, record, size):
            found[name] = PRICED[base](costs, record, np.array(passes), size)
    return found


def identity_on(machine: Machine, identity: Identity) -> Identity:
    """The identity of a sweep as if its settings had been timed on one device at one batch size."""
    timing = {**identity.timing, "device": str(machine.device)}
    if machine.batch != identity.timing_batch:
        timing["batch"] = machine.batch
    return replace(identity, timing=timing)


def _stored_passes(storage: Storage, record: TrialRecord, batch: int) -> tuple[float, ...]:
    """Passes of a trial's batches of images (see `TrialRecord`), from its shards, which are in the
    order of captions; none without shards.

    Raises:
        ValueError: a shard is missing or damaged.
    """
    if not record.image_shards:
        return ()
    fix = (
        f"to generate it again, move it and {trial_file(record.number)} elsewhere, then launch "
        "with --resume"
    )
    columns = ["caption_id", "passes"]
    tables = list(
        in_parallel(lambda shard: read_table(storage, shard, columns, fix=fix), record.image_shards)
    )
    captions, passes = (
        np.concatenate([table.column(name).to_numpy() for table in tables]) for name in columns
    )
    _, first, caption = np.unique(captions, return_index=True, return_inverse=True)
    positions = first.argsort().argsort()[caption]
    return tuple(batch_passes(passes.astype(np.float64), positions % BLOCKS, batch).tolist())


def violations(
    record: TrialRecord, constraints: Sequence[Constraint], records: Sequence[TrialRecord]
) -> dict[str, float]:
    """By how much a trial violates each constraint, in the metric's unit, at most 0 if it is met;
    empty if it failed.

    One on a speed that was not measured, or on vanilla's speed on another device, is not met. A
    stopped trial is compared with vanilla (`records[0]`) on as many images; vanilla's speed does
    not depend on their number.
    """
    if record.has_failed:
        return {}
    vanilla = records[0] if records else record
    reference = vanilla.metrics
    if record.is_stopped and record.images != vanilla.images:
        reference = dict(vanilla.history).get(record.images, {})
    found = {}
    for constraint in constraints:
        is_speed = is_priced(constraint.metric)
        value = record.metrics.get(constraint.metric)
        limit = (vanilla.metrics if is_speed else reference).get(constraint.metric)
        is_elsewhere = is_speed and not may_compare_speeds(record.device, vanilla.device)
        lacks_limit = limit is None or is_elsewhere
        if value is None or (lacks_limit and constraint.relative_to_vanilla):
            found[constraint.text] = math.inf
        else:
            found[constraint.text] = constraint.violation(
                value.value, math.nan if limit is None else limit.value
            )
    return found
