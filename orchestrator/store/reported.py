"""The trials of earlier sweeps that a sweep's search was told (`launch --from`)."""

from __future__ import annotations

from typing import Any

from orchestrator.store.files import EARLIER
from orchestrator.store.identity import plugins_of
from orchestrator.store.records import TrialRecord
from search_spaces.params import expect_mapping
from search_spaces.plain_data import fit_entries
from workers.data.checked_json import parse_checked
from workers.data.storage import Storage


def read_reported(storage: Storage) -> list[TrialRecord]:
    """These trials in the order in which they were told; none for a sweep that took over nothing.

    Raises:
        ValueError: the file is damaged, or another version of specfrontier wrote it.
    """
    if not storage.exists(EARLIER):
        return []

    def parse(entries: dict[str, Any]) -> list[str]:
        types = {"records": tuple[str, ...]}
        sources = [fit_entries(types, expect_mapping(source)) for source in entries["sources"]]
        return [record for source in sources for record in source["records"]]

    try:
        with plugins_of(storage):
            return [
                TrialRecord.from_json(record.encode())
                for record in parse_checked(storage.read(EARLIER), parse)
            ]
    except ValueError as error:
        raise ValueError(f"{storage.locate(EARLIER)}: {error}; restore the file") from error
