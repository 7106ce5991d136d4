"""Finished and running sweeps: their records, tables and images. Tables are pyarrow tables.

No file is written. Neither torch nor the model's files are needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from orchestrator.errors import QueryError
from orchestrator.store.acceptance import acceptance_table
from orchestrator.store.files import command, find_sweep, read_sweep_yaml, read_table
from orchestrator.store.identity import Identity
from orchestrator.store.launches import load_identity
from orchestrator.store.lossless import QualityGroups
from orchestrator.store.names import SettingNames
from orchestrator.store.prices import (
    Machine,
    identity_on,
    price_on,
    read_prices,
    with_violations,
)
from orchestrator.store.records import TrialRecord, read_trials, trial_file, trial_table
from orchestrator.store.reported import read_reported
from orchestrator.store.scores import with_scores
from search_spaces.params import unknown_key
from search_spaces.sweep_sections import BUILTIN
from search_spaces.trial import DecodingConfig
from workers.data.storage import Storage
from workers.metrics.definition import Metric
from workers.metrics.timings import PriceList

if TYPE_CHECKING:
    import pyarrow

    from workers.data.captions import Caption


@dataclass(frozen=True)
class Sweep:
    """One sweep."""

    storage: Storage
    identity: Identity
    # the finished trials by number, with speeds at `prices`, and with one quality for lossless
    # settings (see `orchestrator.store.lossless`)
    records: tuple[TrialRecord, ...]
    prices: PriceList = field(default_factory=PriceList)  # the costs that the sweep has measured
    # The device and batch size that all these speeds are of. None if no timing session of the sweep
    # can be used, so that the speeds are those that its records have.
    machine: Machine | None = None

    @classmethod
    def open(
        cls, location: str | Path | Storage, device: str | None = None, batch: int | None = None
    ) -> Self:
        """Read a sweep. Without a device and a batch size its speeds are those of its own device at
        its own batch size; the sweep or `specfrontier time` has measured the costs of others.

        Args:
            location: a folder, a URI, or the name of a sweep in ./sweeps.
            device: a part of the name of the device that speeds are of (see `Machine.find`).
            batch: the batch size that speeds are of.

        Raises:
            NoSweepError: there is no sweep, or it has no results yet.
            QueryError: it was not timed on such a device, or at that batch size.
            ValueError: one of its files is damaged.
        """
        storage = location if isinstance(location, Storage) else find_sweep(location)
        sweep = cls.of(storage, load_identity(storage), read_trials(storage))
        if device is None and batch is None:
            return sweep.priced()
        sweep = replace(sweep, prices=read_prices(storage))
        time = command(storage, "time")
        try:
            machine = Machine.find(sweep.prices, device, batch, sweep.identity.timing_batch, time)
        except QueryError as error:
            raise QueryError(f"sweep {sweep.name}: {error}") from None
        return sweep.priced_on(machine)

    @classmethod
    def of(cls, storage: Storage, identity: Identity, records: Sequence[TrialRecord]) -> Self:
        """A sweep with these records, at the costs that they have: lossless settings have one
        quality, and constraints are evaluated with it. Scores of images in the store are metrics of
        their trials.

        Raises:
            ValueError: a file of scores is damaged.
        """
        identity, records = with_scores(storage, identity, records)
        pooled = QualityGroups.of(identity).pooled(records)
        return cls(storage, identity, with_violations(pooled, identity))

    def priced_on(self, machine: Machine) -> Self:
        """This sweep with the speeds of one device at one batch size, and an identity that says
        so.
        """
        records = price_on(machine, self.records, self.prices, self.identity, self.storage)
        return replace(
            self, records=records, identity=identity_on(machine, self.identity), machine=machine
        )

    def priced(self, sessions: Sequence[str] | None = None) -> Self:
        """This sweep with the speeds of its own device at its own batch size, at the costs from
        timing sessions of its store, by default all.
        """
        sweep = replace(self, prices=read_prices(self.storage, sessions))
        machine = Machine.own(sweep.prices, self.identity.timing_batch)
        return sweep if machine is None else sweep.priced_on(machine)

    @property
    def price_options(self) -> list[str]:
        """The options of commands that show these speeds: none for those of the sweep's own device
        and batch size.
        """
        own = Machine.own(self.prices, load_identity(self.storage).timing_batch)
        return [] if self.machine in (None, own) else self.machine.options

    @property
    def name(self) -> str:
        return self.identity.name

    @cached_property
    def table(self) -> pyarrow.Table:
        """One row per finished trial (see `trial_table`)."""
        return trial_table(self.records, self.identity)

    @cached_property
    def names(self) -> SettingNames:
        """The names of the trials' settings."""
        return SettingNames(self.identity.sampling)

    @cached_property
    def told_groups(self) -> QualityGroups:
        """The groups of lossless settings as its search knew them, those of earlier sweeps
        included. Raises ValueError if the file of these is damaged.
        """
        return QualityGroups.of(self.identity, read_reported(self.storage))

    @cached_property
    def baseline(self) -> TrialRecord | None:
        """Vanilla: the trial with the baseline's config, or else the one with the label
        `vanilla`.
        """
        return self.find(self.identity.baseline, "vanilla")

    @cached_property
    def models(self) -> str:
        """The sweep's models, as --models takes them: builtin, a folder, a models.yaml, or
        FILE#ENTRY.
        """
        given = read_sweep_yaml(self.storage).get("models") or {}
        if not isinstance(given, Mapping):
            return str(given)
        file = str(given.get("file") or BUILTIN)
        entry = given.get("name")
        return f"{file}#{entry}" if entry else file

    def find(self, config: DecodingConfig | None, label: str) -> TrialRecord | None:
        """The first complete trial with this config, else the first one with this label."""
        complete = [record for record in self.records if record.is_complete]
        same = [record for record in complete if record.config == config]
        labelled = [record for record in complete if record.label == label]
        return next(iter([*same, *labelled]), None)

    def metric(self, name: str) -> Metric:
        """A metric of the sweep.

        Raises:
            QueryError: it has no such metric.
        """
        if name not in self.identity.metrics:
            raise QueryError(
                f"sweep {self.name}, {name!r}: {unknown_key(name, self.identity.metrics, 'metric')}"
            )
        return self.identity.metrics[name]

    def check_columns(self, columns: Sequence[str], known: Sequence[str]) -> None:
        """Raise QueryError for a column that is not known, or for a single text."""
        if isinstance(columns, str):
            raise QueryError(f"columns: give a list, such as columns=[{columns!r}]")
        for name in columns:
            if name not in known:
                raise QueryError(
                    f"sweep {self.name}, {name!r}: {unknown_key(name, known, 'column')}"
                )

    def captions(self) -> list[Caption]:
        """The sweep's captions in their order, as vanilla's shards have them.

        Raises:
            QueryError: vanilla has not finished.
            ValueError: a shard is missing or damaged.
        """
        from workers.data.captions import Caption

        if self.baseline is None:
            raise QueryError(f"sweep {self.name}: vanilla has not finished")
        rows = self.images(self.baseline.number, ["caption_id", "caption"]).to_pylist()
        return [
            Caption(id, text)
            for id, text in {row["caption_id"]: row["caption"] for row in rows}.items()
        ]

    def acceptance(self, number: int | None = None) -> pyarrow.Table:
        """How many drafts the verifications of a trial, or of all trials, accepted: one row per
        trial, group of captions and number of drafts (columns: see `acceptance_table`).

        Raises:
            QueryError: there is no such trial.
            ValueError: a file is damaged.
        """
        records = [record for record in self.records if number is None or record.number == number]
        if number is not None and not records:
            raise QueryError(f"sweep {self.name}: no finished trial {number}")
        return acceptance_table(self.storage, records)

    def images(
        self, number: int | None = None, columns: Sequence[str] | None = None
    ) -> pyarrow.Table:
        """One row per image of a trial, or of all trials, with the trial's `number` as first
        column.

        Trials with the same config share their images; their rows have the requested number, or
        else the first trial's. Without images the table has the columns of every shard, which are
        all but features and scores.

        Raises:
            QueryError: there is no such trial, or no such column.
            ValueError: a shard is missing or damaged.
        """
        import pyarrow as pa

        from workers.data.records import FEATURES, IMAGE_SCHEMA, SCORES, ColumnError

        records = [record for record in self.records if number is None or record.number == number]
        if number is not None and not records:
            raise QueryError(f"sweep {self.name}: no finished trial {number}")
        owners: dict[str, int] = {}
        for record in records:
            for shard in record.image_shards:
                owners.setdefault(shard, record.number)
        if not owners:
            own = [name for name in columns or () if name.startswith((FEATURES, SCORES))]
            self.check_columns(columns or (), [*IMAGE_SCHEMA.names, *own])
        tables = []
        for shard, owner in owners.items():
            fix = (
                f"to generate it again, move it and {trial_file(owner)} elsewhere, then launch "
                "with --resume"
            )
            try:
                table = read_table(self.storage, shard, columns, fix=fix)
            except ColumnError as error:
                self.check_columns(columns or (), error.known)
                raise
            tables.append(
                table.add_column(0, "number", pa.array([owner] * table.num_rows, pa.int64()))
            )
        if tables:
            return pa.concat_tables(tables, promote_options="default")
        kept = [field for field in IMAGE_SCHEMA if columns is None or field.name in columns]
        return pa.schema([pa.field("number", pa.int64()), *kept]).empty_table()
