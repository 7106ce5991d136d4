"""Accepted lengths over the image, for heat maps of several trials on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.report.thumbnails import Note, OwnedTrial
from orchestrator.results.store import read_table
from workers.data.pictures import accepted_by_cell

_MAX_CELLS = 60_000  # of all heat maps together


def heat_data(trials: Sequence[OwnedTrial], note: Note) -> dict[str, Any]:
    """Mean accepted length of the rounds that emitted each token, by trial, as far as they fit.

    Skips trials whose shards are missing or damaged; `note` is called with a sentence about each.

    Returns:
        rows, columns: of the first trial's token grid; trials of another grid are skipped. low, high: ends of the
        scale that all trials share. cells: {key: values in raster order, None where no round emitted a token}. means:
        {key: mean accepted length, over rounds}; the mean of the cells is larger, because a round counts there once for
        each of its tokens. Empty without any trial.
    """
    grid = trials[0].sweep.identity.grid if trials else None
    if grid is None:
        return {}
    cells: dict[str, list[float | None]] = {}
    means: dict[str, float] = {}
    alike = [trial for trial in trials if trial.sweep.identity.grid == grid]
    for trial in alike[: _MAX_CELLS // (grid[0] * grid[1])]:
        lengths: list[list[int]] = []
        try:
            for shard in trial.record.image_shards:
                table = read_table(trial.sweep.storage, shard, ["emitted"], fix="the report lacks its heat map")
                lengths += table["emitted"].to_pylist()
        except ValueError as error:
            note(str(error))
            continue
        if lengths:
            values = [value for row in accepted_by_cell(lengths, *grid) for value in row]
            cells[trial.key] = [None if value is None else round(value, 3) for value in values]
            means[trial.key] = round(sum(map(sum, lengths)) / max(1, sum(map(len, lengths))), 4)
    found = [value for values in cells.values() for value in values if value is not None]
    if not found:
        return {}
    ends = {"low": min(found), "high": max(found)}
    return {"rows": grid[0], "columns": grid[1], **ends, "cells": cells, "means": means}
