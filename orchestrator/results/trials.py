"""What a sweep leaves behind for every trial: one immutable JSON file, and all of them as one table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from search_spaces.trial import DecodingConfig
from workers.data.storage import Storage

if TYPE_CHECKING:
    import pyarrow

State = Literal["complete", "failed"]
COMPLETE: Final = "complete"
FAILED: Final = "failed"
FOLDER = "trials"


@dataclass(frozen=True, slots=True)
class Measured:
    """A metric of a trial: its value, one standard error of it (None where there is none to give), over `n` images."""

    value: float
    error: float | None
    n: int


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One finished trial.

    label: a preset's or the user's name for the setting, "" if the search proposed it. config: the complete setting,
    sampling included. params: what the study suggested. cause: why it failed. constraints: feasible where at most 0.
    history: metrics after the first so many images. duplicate_of: the earlier trial with the same config,
    whose images this one uses. seconds: worker time spent on it. started, finished: ISO 8601, UTC.
    """

    number: int
    label: str
    state: State
    config: Mapping[str, Any]
    params: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Measured] = field(default_factory=dict)
    constraints: Mapping[str, float] = field(default_factory=dict)
    history: tuple[tuple[int, Mapping[str, float]], ...] = ()
    shards: tuple[str, ...] = ()
    images: int = 0
    seconds: float = 0.0
    cause: str | None = None
    duplicate_of: int | None = None
    started: str = ""
    finished: str = ""

    @property
    def setting(self) -> DecodingConfig | None:
        """The setting; None if the search proposed what cannot be (`cause` says why)."""
        return DecodingConfig.from_mapping(self.config) if self.config else None

    @property
    def digest(self) -> str:
        """Names the setting, and with it the trial's pictures."""
        return self.setting.digest() if self.setting else ""

    @property
    def feasible(self) -> bool:
        return self.state == COMPLETE and all(value <= 0 for value in self.constraints.values())

    @property
    def file(self) -> str:
        return trial_file(self.number)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False, allow_nan=False).encode()

    @classmethod
    def from_json(cls, data: bytes) -> TrialRecord:
        """Raises ValueError when the bytes are not a trial's record."""
        try:
            fields = json.loads(data)
            fields["metrics"] = {name: Measured(**entry) for name, entry in fields["metrics"].items()}
            fields["history"] = tuple((int(images), values) for images, values in fields["history"])
            fields["shards"] = tuple(fields["shards"])
            return cls(**fields)
        except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"not the record of a trial: {error}") from error


def trial_file(number: int) -> str:
    return f"{FOLDER}/{number:05d}.json"


def write_trial(storage: Storage, record: TrialRecord) -> None:
    storage.write(record.file, record.to_json())


def read_trials(storage: Storage) -> list[TrialRecord]:
    """All finished trials by number.

    Raises:
        ValueError: a file that is no trial's record; it is named.
    """
    records = []
    for name in storage.names(FOLDER):
        try:
            records.append(TrialRecord.from_json(storage.read(f"{FOLDER}/{name}")))
        except ValueError as error:
            where = f"{storage.shown}/{FOLDER}/{name}"
            raise ValueError(f"{where}: {error}; remove it, and --resume runs it again") from error
    return sorted(records, key=lambda record: record.number)


def trial_table(records: Iterable[TrialRecord]) -> pyarrow.Table:
    """One row per trial: its facts, its setting one column per knob (null where it has none), its metrics.

    A metric `fid` has the columns `fid` and `fid_error`. Columns stand in the order in which they first occur.
    """
    import pyarrow as pa

    rows = [_row(record) for record in records]
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if any(isinstance(value, float) for value in values) and not any(isinstance(value, str) for value in values):
            values = [None if value is None else float(value) for value in values]
        columns[name] = pa.array([None if v is None else str(v) for v in values] if _mixed(values) else values)
    return pa.table(columns)


def _mixed(values: list[Any]) -> bool:
    """Whether a column holds words beside numbers; it is written as words then."""
    kinds = {isinstance(value, str) for value in values if value is not None}
    return len(kinds) > 1


def _row(record: TrialRecord) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "number": record.number,
        "label": record.label,
        "state": record.state,
        "cause": record.cause,
        "feasible": record.feasible,
        "digest": record.digest,
        "images": record.images,
        "seconds": float(record.seconds),
        "duplicate_of": record.duplicate_of,
        "started": record.started,
        "finished": record.finished,
    }
    measured: dict[str, Any] = {}
    for name, entry in record.metrics.items():
        measured[name] = float(entry.value)
        measured[f"{name}_error"] = None if entry.error is None else float(entry.error)
    return facts | (record.setting.flat() if record.setting else {}) | measured
