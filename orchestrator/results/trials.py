"""What a sweep leaves behind for every trial: one immutable JSON file, and all of them as one table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from search_spaces.trial import DecodingConfig

if TYPE_CHECKING:
    import pyarrow

State = Literal["complete", "failed"]
COMPLETE: Final = "complete"
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True)
class Measured:
    """A metric of a trial: its value, one standard error of it (None where there is none to give), over `n` images."""

    value: float
    error: float | None
    n: int


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One finished trial.

    label: the name of a preset or the user's own, "" if the search proposed the config. config: sampling included; None
    if the search proposed an invalid one. params: what the study suggested. cause: why it failed. constraints: excess
    over each, feasible at 0 or less. history: metrics after so many images. duplicate_of: the earlier trial with this
    config, whose images it shares. seconds: worker time spent on it. started, finished: ISO 8601, UTC.
    """

    number: int
    label: str
    state: State
    config: DecodingConfig | None
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
    def digest(self) -> str:
        """Names the config, and with it the trial's image grid and heat map; "" without one."""
        return "" if self.config is None else self.config.digest()

    @property
    def feasible(self) -> bool:
        return self.state == COMPLETE and all(value <= 0 for value in self.constraints.values())

    def to_json(self) -> bytes:
        plain = asdict(replace(self, config=None)) | {"config": self.config.to_mapping() if self.config else {}}
        return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False).encode()

    @classmethod
    def from_json(cls, data: bytes) -> TrialRecord:
        """Raises ValueError when the bytes are not a trial's record."""
        try:
            fields = json.loads(data)
            fields["metrics"] = {name: Measured(**entry) for name, entry in fields["metrics"].items()}
            fields["history"] = tuple((int(images), values) for images, values in fields["history"])
            fields["shards"] = tuple(fields["shards"])
            fields["config"] = DecodingConfig.from_mapping(fields["config"]) if fields["config"] else None
            return cls(**fields)
        except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"not the record of a trial: {error}") from error


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
    return facts | (record.config.flat() if record.config else {}) | measured
