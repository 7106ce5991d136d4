"""The speeds of a sweep's trials: the passes of their images, which no device changes, times the costs of a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np

from orchestrator.results.query import QueryError
from orchestrator.results.store import Identity, read_table, trial_file
from orchestrator.results.trials import FAILED, STOPPED, TrialRecord
from search_spaces.constraints import Constraint, split_batch
from search_spaces.params import ConfigError
from workers.data.shards import TIMINGS
from workers.data.storage import Storage
from workers.metrics.costs import Floats, Prices, batch_passes
from workers.metrics.estimate import BLOCKS, Estimate, MetricUnavailable
from workers.metrics.timings import WALL_CLOCK, Device, PriceList, read_session

Price = Callable[[Prices, TrialRecord, Floats, int], Estimate]

#: The metrics of speed, each from the prices of a device, a trial, the passes of its batches and their size
PRICED: Mapping[str, Price] = {
    "speedup": lambda prices, trial, passes, _: prices.speedup(_shape(trial), passes, trial.images),
    "latency": lambda prices, trial, passes, batch: prices.latency(_shape(trial), passes, trial.images, batch),
    "step_cost": lambda prices, trial, *_: prices.step_cost(_shape(trial)),
}


def _shape(trial: TrialRecord) -> object:
    assert trial.config is not None, "a trial without a config has no metrics"
    return trial.config.shape


def read_prices(storage: Storage, names: Sequence[str] | None = None) -> PriceList:
    """The costs from timing sessions of a store, by default all. Files that cannot be used are among its `problems`."""
    from workers.data.records import ShardError

    found, problems = [], []
    for name in [f"{TIMINGS}/{name}" for name in storage.names(TIMINGS)] if names is None else names:
        try:
            found.append(read_session(storage, name))
        except (ShardError, FileNotFoundError, MetricUnavailable) as error:
            problems.append(str(error))
        except ConfigError as error:  # of a plugin that is not loaded
            problems.append(f"{storage.locate(name)}: {error}")
    return PriceList(sorted(found, key=lambda session: session.started), problems)


def price(records: Iterable[TrialRecord], prices: PriceList, identity: Identity) -> tuple[TrialRecord, ...]:
    """The records with the metrics of speed at these prices, where their shapes were timed, and with the violations
    of the sweep's constraints that follow.
    """
    return _with_constraints([_price(record, prices) for record in records], identity)


def _with_constraints(records: Sequence[TrialRecord], identity: Identity) -> tuple[TrialRecord, ...]:
    """The records with their violations of constraints on speed."""
    limits = [Constraint.parse(text) for text in identity.constraints]
    if not any(is_priced(limit.metric) for limit in limits):
        return tuple(records)
    return tuple(replace(record, constraints=violations(record, limits, records)) for record in records)


def _price(record: TrialRecord, prices: PriceList) -> TrialRecord:
    names = [name for name in record.metrics if is_priced(name)]
    found = _speeds(names, record, prices, lambda size: record.passes.get(size))
    return replace(record, metrics=dict(record.metrics) | found)


def is_priced(metric: str) -> bool:
    """Whether a metric is computed from prices."""
    return split_batch(metric)[0] in PRICED


def _speeds(
    names: Iterable[str],
    record: TrialRecord,
    prices: PriceList,
    passes_of: Callable[[int], Sequence[float] | None],
    machine: Machine | None = None,
) -> dict[str, Estimate]:
    """Those of the named metrics of speed of a trial that the prices suffice for. passes_of: the passes at a batch size
    (see `TrialRecord`), None if they are not known. machine: by default what `PriceList.of` takes.
    """
    found = {}
    for name in names if record.config is not None else ():
        base, batch = split_batch(name)
        try:
            if machine is None:
                costs, size = prices.of(_shape(record), batch)
            else:
                costs, size = prices.of(_shape(record), batch or machine.batch, machine.devices)
        except MetricUnavailable:
            continue
        if (passes := passes_of(size)) is not None:
            found[name] = PRICED[base](costs, record, np.array(passes), size)
    return found


@dataclass(frozen=True, slots=True)
class Machine:
    """A device, by all that sessions call it, and a batch size."""

    devices: tuple[Device, ...]
    batch: int

    def __str__(self) -> str:
        return f"{self.devices[0]} at batch {self.batch}"

    @classmethod
    def find(cls, prices: PriceList, device: str | None, batch: int | None, own_batch: int = 1) -> Self:
        """The device whose name has this part, by default the first one; and the batch size, by default the sweep's
        own where settings were timed at it there, else the first one.

        Raises:
            QueryError: there is no such device, there are several, or nothing was timed at that batch size.
        """
        by_name: dict[str, list[Device]] = {}
        for entry in prices.devices:
            by_name.setdefault(str(entry), []).append(entry)
        listed = "; ".join(f"{name} (batch {_batches(prices, same)})" for name, same in by_name.items())
        known = f"the sweep has prices of {listed or 'no device'}; `specfrontier time` measures others"
        part = (device or "").casefold()
        matching = [name for name in by_name if part in name.casefold()]
        matching = [name for name in matching if name.casefold() == part] or matching
        if device is not None and not matching:
            raise QueryError(f"no prices of a device {device!r}: {known}")
        if device is not None and len(matching) > 1:
            raise QueryError(f"{device!r} is part of the names of {len(matching)} devices: {known}")
        if batch is not None:
            matching = [name for name in matching if batch in prices.batches_on(by_name[name])]
        if not matching:
            at = "" if batch is None else f" at batch {batch}"
            raise QueryError(f"no prices{at}{f' of {device!r}' if device else ''}: {known}")
        devices = tuple(by_name[matching[0]])
        sizes = prices.batches_on(devices)
        return cls(devices, batch or (own_batch if own_batch in sizes else sizes[0]))


def _batches(prices: PriceList, devices: Sequence[Device]) -> str:
    return ", ".join(map(str, prices.batches_on(devices)))


def price_on(
    machine: Machine, records: Iterable[TrialRecord], prices: PriceList, identity: Identity, storage: Storage
) -> tuple[TrialRecord, ...]:
    """The records with the metrics of speed on one device at one batch size; trials whose shapes were not timed there
    have none. Numbers of passes that no record has are those of the images in its shards.

    Raises:
        ValueError: a shard is missing or damaged.
    """
    names = [name for name in identity.metrics if is_priced(name)]
    found = []
    for record in records:
        metrics = {name: value for name, value in record.metrics.items() if not is_priced(name)}
        if record.metrics:
            passes_of = partial(_passes_of, storage, record)
            metrics = _speeds(names, record, prices, passes_of, machine) | metrics
        found.append(replace(record, metrics=metrics))
    return _with_constraints(found, identity)


def identity_on(machine: Machine, identity: Identity) -> Identity:
    """The identity of a sweep as if its settings had been timed on one device at one batch size."""
    device = machine.devices[0]
    name = f"cuda ({device.name})" if device.clock == WALL_CLOCK else str(device)
    timing = {key: value for key, value in identity.timing.items() if key != "nodes"}
    return replace(identity, device=name, threads=device.threads, timing=timing | {"batch": machine.batch})


def _passes_of(storage: Storage, record: TrialRecord, batch: int) -> tuple[float, ...]:
    return record.passes.get(batch) or _stored_passes(storage, record, batch)


def _stored_passes(storage: Storage, record: TrialRecord, batch: int) -> tuple[float, ...]:
    """Passes of a trial's batches of images (see `TrialRecord`), from its shards, which are in the order of captions.

    Raises:
        ValueError: a shard is missing or damaged.
    """
    fix = f"to generate it again, move it and {trial_file(record.number)} elsewhere, then launch with --resume"
    columns = ["caption_id", "rounds"]
    tables = [read_table(storage, shard, columns, fix=fix) for shard in record.image_shards]
    captions, rounds = (np.concatenate([table.column(name).to_numpy() for table in tables]) for name in columns)
    _, first, caption = np.unique(captions, return_index=True, return_inverse=True)
    positions = first.argsort().argsort()[caption]
    return tuple(batch_passes(rounds.astype(np.float64), positions % BLOCKS, batch).tolist())


def violations(
    record: TrialRecord, constraints: Sequence[Constraint], records: Sequence[TrialRecord]
) -> dict[str, float]:
    """By how much a trial violates each constraint, in the metric's unit, at most 0 if it is met; empty if it failed.

    One on a speed that was not measured is not met. A stopped trial is compared with vanilla (`records[0]`) on as many
    images.
    """
    if record.state == FAILED:
        return {}
    vanilla = records[0] if records else record
    images = record.images if record.state == STOPPED else vanilla.images
    reference = vanilla.metrics if images == vanilla.images else dict(vanilla.history)[images]
    found = {}
    for constraint in constraints:
        limit = reference.get(constraint.metric)
        value = record.metrics.get(constraint.metric)
        excess = constraint.violation(value.value, limit.value if limit else math.nan) if value else math.inf
        found[constraint.text] = excess
    return found
