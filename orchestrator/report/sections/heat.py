"""Accepted lengths over the image, for heat maps of several trials on one scale."""

from __future__ import annotations

from itertools import chain
from typing import Any

from orchestrator.report.section import SECTIONS, Section, Subject
from orchestrator.report.trials import PageTrial
from orchestrator.store import files
from workers.data.pictures import RAMP, accepted_by_cell
from workers.data.storage import in_parallel

_MAX_CELLS = 60_000  # of all heat maps together


_LEAD = (
    "How many tokens the pass of the target emitted that decided each position of the image. All "
    "maps share one scale. Below a map: tokens per pass, over all passes (`mean_accepted_length`). "
    "A pass with many tokens colours many positions, so most of a map is above that number."
)


def heat(subject: Subject) -> dict[str, Any] | None:
    """Mean accepted length of the passes that emitted each token, by trial, as far as they fit.

    Skips trials whose shards are missing or damaged; `note` of the subject is called with a
    sentence about each.

    Returns:
        `rows`, `columns`: of the map of the first trial's token grid, with its preview above it
            (see `accepted_by_cell`); trials of another grid are skipped.
        `low`, `high`: ends of the scale that all trials share. `cells`: by key, values in raster
        order, None where no pass emitted a token. `means`: by key, the mean accepted length over
        passes; the mean of the cells is larger, because a pass counts there once for each of its
        tokens. `ramp`: colours of the scale. None without any trial.
    """
    trials = subject.trials
    if not trials:
        return None
    grid = trials[0].sweep.identity.token_grid
    empty = accepted_by_cell([], grid)
    rows, columns = len(empty), len(empty[0])
    cells: dict[str, list[float | None]] = {}
    means: dict[str, float] = {}
    same_grid = [trial for trial in trials if trial.sweep.identity.token_grid == grid]
    shown = same_grid[: _MAX_CELLS // (rows * columns)]
    for trial, lengths in zip(shown, in_parallel(_lengths, shown), strict=True):
        if isinstance(lengths, ValueError):
            subject.note(str(lengths))
        elif lengths:
            values = [value for row in accepted_by_cell(lengths, grid) for value in row]
            cells[trial.key] = [None if value is None else round(value, 3) for value in values]
            means[trial.key] = round(sum(map(sum, lengths)) / max(1, sum(map(len, lengths))), 4)
    found = [value for value in chain.from_iterable(cells.values()) if value is not None]
    if not found:
        return None
    return {
        "rows": rows,
        "columns": columns,
        "low": min(found),
        "high": max(found),
        "cells": cells,
        "means": means,
        "ramp": RAMP,
    }


def _lengths(trial: PageTrial) -> list[list[int]] | ValueError:
    """The accepted lengths of each of a trial's images; the error of a damaged or missing shard."""
    lengths: list[list[int]] = []
    try:
        for shard in trial.record.image_shards:
            table = files.read_table(
                trial.sweep.storage, shard, ["emitted"], fix="the report lacks its heat map"
            )
            lengths += table["emitted"].to_pylist()
    except ValueError as error:
        return error
    return lengths


SECTIONS.add("heat", Section("Accepted length by position", 30, heat, lead=_LEAD))
