"""The record of a finished trial, and all records as one table."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from sys import intern
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

from orchestrator.store.files import TRIALS
from orchestrator.store.identity import Identity, plugins_of
from search_spaces.constraints import check_metric, split_batch
from search_spaces.params import ConfigError, at, expect_list, expect_mapping
from search_spaces.plain_data import field_types, fit_entries, fit_type
from search_spaces.trial import DecodingConfig, flat_types
from workers.data.checked_json import (
    OtherVersionError,
    check_time,
    dump_checked,
    parse_checked,
)
from workers.data.storage import Storage, in_parallel
from workers.decoding.token_check import TokenCheck
from workers.metrics.estimate import BLOCKS, Estimate

if TYPE_CHECKING:
    import pyarrow

#: How a trial ended. Racing stops one early: its metrics are of fewer images than a complete
#: trial's.
State = Literal["complete", "stopped", "failed"]
# metrics by their numbers of images
History: TypeAlias = tuple[tuple[int, Mapping[str, Estimate]], ...]
_RUN_AGAIN = "remove it: --resume runs a trial without a record again"
_IMAGE_SHARD = "quality-"  # prefix of the names of shards with images


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """Racing stopped a trial, because another one was better in all objectives on the same
    images.
    """

    rival: int  # number of the other one
    images: int  # on which they were compared
    chance: float  # that this is wrong (see `orchestrator.run.racing.Stop`)


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One finished trial."""

    number: int
    label: str  # the name of a preset or the user's own, "" if the search proposed the config
    state: State
    config: DecodingConfig | None  # with its sampling; None if the search proposed an invalid one
    params: Mapping[str, Any] = field(default_factory=dict)  # what the study suggested
    metrics: Mapping[str, Estimate] = field(default_factory=dict)
    constraints: Mapping[str, float] = field(default_factory=dict)  # excess over each; 0: it is met
    # metrics at each number of images at which it was measured, rising; the last are `metrics`
    history: History = ()
    # at each number of its images, what these say of metrics whose values it shares with other
    # lossless trials (see `orchestrator.store.lossless`); None: nothing; files have these alone
    own: tuple[tuple[int, Mapping[str, Estimate | None]], ...] = ()
    shards: tuple[str, ...] = ()
    # key of what the costs of its passes depend on, if it was timed: trials with the same one share
    # these costs and their noise
    shape: str = ""
    # of batches of images by size, of all captions first, then without each block of them; the
    # metrics of speed are these at the costs known when it ended
    passes: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    # the device of these costs, by the number of images at which it was measured
    timed_on: Mapping[int, str] = field(default_factory=dict)
    images: int = 0
    taken: int = 0  # of these, copied from earlier sweeps
    seconds: float = 0.0  # that workers spent on it
    cause: str | None = None  # why it failed or stopped
    duplicate_of: int | None = None  # the earlier trial with this config, whose images it shares
    stop: EarlyStop | None = None  # kept if the trial was revived
    check: TokenCheck | None = None  # of its tokens, if it claims to be lossless
    started: str = ""  # ISO 8601, UTC
    finished: str = ""  # ISO 8601, UTC

    @property
    def is_complete(self) -> bool:
        return self.state == "complete"

    @property
    def is_stopped(self) -> bool:
        return self.state == "stopped"

    @property
    def has_failed(self) -> bool:
        return self.state == "failed"

    @property
    def digest(self) -> str:
        """Names the config, and with it the trial's image grid and heat map; "" without one."""
        return "" if self.config is None else self.config.digest()

    @property
    def device(self) -> str:
        """The device of its metrics of speed; "" if it has none, or if its record does not say."""
        return self.timed_on.get(self.images, "")

    def finite_values(self, metrics: Sequence[str]) -> list[float] | None:
        """The values of these metrics; None unless the trial has all of them, finite, and did not
        fail (Optuna would accept an infinite value as a result).
        """
        if self.has_failed or any(name not in self.metrics for name in metrics):
            return None
        values = [self.metrics[name].value for name in metrics]
        return values if all(math.isfinite(value) for value in values) else None

    @property
    def feasible(self) -> bool:
        return self.is_complete and all(value <= 0 for value in self.constraints.values())

    def is_lossless(self, identity: Identity) -> bool:
        """Whether its config is lossless in a sweep (see `DecodingConfig.is_lossless`), and its
        tokens do not contradict that.
        """
        cols = identity.grid[1]
        if self.config is None or self.fails_check:
            return False
        return self.config.is_lossless(identity.sampling, cols)

    @property
    def fails_check(self) -> bool:
        """Whether it claims to be lossless, and its tokens are not the target's own."""
        return self.check is not None and not self.check.passed

    @property
    def is_revived(self) -> bool:
        """Whether it went on after racing had stopped it."""
        return self.stop is not None and self.images != self.stop.images

    @property
    def image_shards(self) -> list[str]:
        """The shard files that have one row per image."""
        return [name for name in self.shards if name.rpartition("/")[2].startswith(_IMAGE_SHARD)]

    def by_batch(self, metric: str, first: int) -> dict[int, Estimate]:
        """A metric of speed at each batch size that was timed, rising. first: the size of the
        metric itself.
        """
        found = {}
        for name, entry in self.metrics.items():
            base, size = split_batch(name)
            if base == metric:
                found[size or first] = entry
        return dict(sorted(found.items()))

    @property
    def measured(self) -> TrialRecord:
        """The record with the values of its own images alone."""
        if not self.own:
            return self
        own = dict(self.own)
        history = tuple(
            (images, _restored(metrics, own.get(images, {})))
            for images, metrics in self.history
            if images <= self.images
        )
        metrics = _restored(self.metrics, own.get(self.images, {}))
        return replace(self, metrics=metrics, history=history, own=())

    def to_json(self) -> bytes:
        """The contents of its file. A number of images whose values are those of `metrics` has null
        in `history`.
        """
        measured = self.measured
        plain = asdict(replace(measured, config=None, metrics={}, history=()))
        del plain["own"]
        history = [
            (images, None if metrics == measured.metrics else _plain_metrics(metrics))
            for images, metrics in measured.history
        ]
        plain |= {
            "config": self.config.to_mapping() if self.config else {},
            "metrics": _plain_metrics(measured.metrics),
            "history": history,
        }
        return dump_checked(plain)

    @classmethod
    def from_json(cls, data: bytes) -> TrialRecord:
        """Read what `to_json` wrote.

        Raises:
            OtherVersionError: another version of specfrontier wrote these bytes.
            ValueError: they are damaged.
            ConfigError: its setting is invalid, or of a plugin that is not loaded.
        """
        record, config = parse_checked(data, cls._parse)
        if not config:
            return record
        with at("config"):
            return replace(record, config=DecodingConfig.from_mapping(config))

    @classmethod
    def _parse(cls, entries: dict[str, Any]) -> tuple[TrialRecord, Any]:
        """The record of these entries without its config, and the config as plain data."""
        config = entries.pop("config")
        metrics = _parse_metrics(entries.pop("metrics"))
        parsed: dict[str, Any] = {
            "metrics": metrics,
            "history": _parse_history(entries.pop("history"), metrics),
            "passes": _parse_passes(entries.pop("passes")),
            "timed_on": {
                int(key): fit_type(str, name) for key, name in entries.pop("timed_on").items()
            },
        }
        types = dict(field_types(TrialRecord))
        del types["own"]
        parsed |= fit_entries(types, expect_mapping(entries, types))
        for moment in filter(None, (parsed.get("started"), parsed.get("finished"))):
            check_time(moment)
        # the driver knows these names too
        parsed["shards"] = tuple(map(intern, parsed["shards"]))
        record = cls(config=None, **parsed)
        if min(record.number, record.images, record.taken) < 0:
            raise ValueError("a number is negative")
        if (record.metrics or record.history) and not config:
            raise ValueError("it was measured, but has no config")
        return record, config


def _restored(
    metrics: Mapping[str, Estimate], own: Mapping[str, Estimate | None]
) -> dict[str, Estimate]:
    """Metrics with a trial's own values in place of shared ones."""
    values = {**metrics, **own}
    return {name: entry for name, entry in values.items() if entry is not None}


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a worker measured of a trial on the images of a rung."""

    metrics: Mapping[str, Estimate]  # those with a finite value
    history: History  # metrics on fewer images
    skipped: Mapping[str, str]  # why other metrics are missing, by name
    passes: Mapping[int, tuple[float, ...]]  # see `TrialRecord`
    taken: int  # images that were copied from earlier sweeps
    device: str  # of the metrics of speed; "": there are none
    check: TokenCheck | None  # of its tokens, if that was asked for

    @classmethod
    def from_mapping(cls, output: Mapping[str, Any]) -> Self:
        """Read the output of a `MeasureTask`. Raises ValueError for anything else."""
        metrics = _parse_metrics(output["metrics"])
        check = output.get("check")
        return cls(
            metrics={name: entry for name, entry in metrics.items() if math.isfinite(entry.value)},
            history=_parse_history(output.get("history", ()), metrics),
            skipped=output.get("skipped", {}),
            passes=_parse_passes(output.get("passes", {})),
            taken=output.get("taken", 0),
            device=output.get("device", ""),
            check=check and fit_type(TokenCheck, check),
        )


def _plain_metrics(metrics: Mapping[str, Estimate]) -> dict[str, dict[str, Any]]:
    return {name: entry.to_mapping() for name, entry in metrics.items()}


def _parse_metrics(given: Mapping[str, Any]) -> dict[str, Estimate]:
    """Metrics from plain data. Raises ValueError for anything else."""
    return {
        check_metric(name): Estimate.from_mapping(fields)
        for name, fields in expect_mapping(given).items()
    }


def _parse_passes(given: Mapping[str, Sequence[float]]) -> dict[int, tuple[float, ...]]:
    """Passes by batch size from plain data, whose keys are texts. Raises ValueError for anything
    else.
    """
    found = {
        int(batch): fit_type(tuple[float, ...], passes)
        for batch, passes in expect_mapping(given).items()
    }
    if any(not 1 <= len(passes) <= 1 + BLOCKS for passes in found.values()):
        raise ValueError(f"passes: must be 1 to {1 + BLOCKS} numbers for each batch size")
    return found


def _parse_history(given: Sequence[Any], last: Mapping[str, Estimate]) -> History:
    """A trial's history from plain data. Raises ValueError for anything else. last: the metrics
    that null stands for.
    """
    pairs = map(expect_list, expect_list(given))
    return tuple(
        (fit_type(int, images), last if metrics is None else _parse_metrics(metrics))
        for images, metrics in pairs
    )


def may_compare_speeds(one: str, other: str) -> bool:
    """Whether speeds on two devices may be compared: they are the same, or one is unknown ("")."""
    return one == other or not (one and other)


COLUMNS: Final[dict[str, tuple[type, Callable[[TrialRecord, Identity], Any]]]] = {
    "number": (int, lambda record, _: record.number),
    "label": (str, lambda record, _: record.label),
    "state": (str, lambda record, _: record.state),
    "cause": (str, lambda record, _: record.cause),
    "feasible": (bool, lambda record, _: record.feasible),
    "digest": (str, lambda record, _: record.digest),
    "images": (int, lambda record, _: record.images),
    "seconds": (float, lambda record, _: record.seconds),
    "duplicate_of": (int, lambda record, _: record.duplicate_of),
    "started": (str, lambda record, _: record.started),
    "finished": (str, lambda record, _: record.finished),
    "lossless": (bool, lambda record, identity: record.is_lossless(identity)),
}
"""The columns that every table of trials has: name, type, and value from the record and the sweep's
identity."""


def trial_table(records: Sequence[TrialRecord], identity: Identity) -> pyarrow.Table:
    """One row per trial: `COLUMNS`, its config by flat key (null where a config lacks the key), its
    metrics.

    A metric `fid` has the columns `fid` and `fid_error`. Columns are in the order of their first
    occurrence, and have the same types in every sweep (see `typed_table`). identity: the sweep's,
    which decides what is `lossless` (see `DecodingConfig.is_lossless`).
    """
    rows = []
    for record in records:
        row = {name: value(record, identity) for name, (_, value) in COLUMNS.items()}
        row |= record.config.flat() if record.config else {}
        for name, entry in record.metrics.items():
            row |= {name: entry.value, f"{name}_error": entry.known_error}
        rows.append(row)
    return typed_table(rows, {name: kind for name, (kind, _) in COLUMNS.items()})


def typed_table(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, type]) -> pyarrow.Table:
    """Rows as a table whose types depend on the names of its columns alone. facts: the columns that
    it always has.

    Of the others, keys of a config have the type of their field, and all the rest are numbers:
    metrics and errors.
    """
    import pyarrow as pa

    arrow = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    known = {**flat_types(), **facts}
    names = dict.fromkeys([*facts, *(name for row in rows for name in row)])
    return pa.Table.from_pylist(
        rows, pa.schema({name: arrow[known.get(name, float)] for name in names})
    )


def trial_file(number: int) -> str:
    return f"{TRIALS}/{number:05d}.json"


def write_trial(storage: Storage, record: TrialRecord) -> None:
    storage.write(trial_file(record.number), record.to_json())


def read_trials(storage: Storage, skip: Container[int] = ()) -> list[TrialRecord]:
    """The finished trials in the order of their numbers, without those in `skip`.

    Raises:
        ValueError: a file is damaged, not a trial's record, that of a trial with another number
            than its name, or that of a setting which needs a plugin that is missing.
    """
    with plugins_of(storage):
        names = [name for name in storage.names(TRIALS) if not _is_in(name, skip)]
        records = in_parallel(partial(_read_trial, storage), [f"{TRIALS}/{name}" for name in names])
        return sorted(records, key=lambda record: record.number)


def _is_in(name: str, numbers: Container[int]) -> bool:
    stem = name.removesuffix(".json")
    return stem.isdigit() and int(stem) in numbers


def _read_trial(storage: Storage, name: str) -> TrialRecord:
    """A trial's record. Raises ValueError as `read_trials`; only a file that is damaged is to be
    removed.
    """
    data = storage.read(name)
    where = storage.locate(name)
    try:
        record = TrialRecord.from_json(data)
    except ConfigError as error:
        raise ConfigError(error.path, error.problem, where) from error
    except OtherVersionError as error:
        raise ValueError(f"{where}: {error}; use that version") from error
    except ValueError as error:
        raise ValueError(f"{where}: {error}; {_RUN_AGAIN}") from error
    if (own := trial_file(record.number)) != name:
        fix = _RUN_AGAIN if storage.exists(own) else "rename it"
        raise ValueError(
            f"{where}: holds the record of trial {record.number}, whose file is {own}; {fix}"
        )
    return record
