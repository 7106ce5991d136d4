"""Several sweeps as one self-contained HTML page: a report of all their trials with the comparison of their fronts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.report.page import page_data, render
from orchestrator.report.thumbnails import Note, ignore
from orchestrator.results.comparison import Comparison
from orchestrator.results.redaction import redact_values
from orchestrator.results.sweep import Sweep


def compare_page(
    sweeps: Sequence[Sweep],
    objectives: Sequence[str],
    comparison: Comparison,
    warnings: Sequence[str],
    note: Note = ignore,
) -> str:
    """The page as HTML. objectives: of the comparison. warnings: on how far the sweeps can be compared.

    Raises:
        QueryError: the sweeps cannot be compared. ValueError: a file of theirs is damaged. OSError: a storage fails.
    """
    data = page_data(sweeps, note, objectives)
    return render(data | {"comparison": redact_values(_comparison_entry(comparison, objectives, warnings))})


def _comparison_entry(found: Comparison, objectives: Sequence[str], warnings: Sequence[str]) -> dict[str, Any]:
    """Plain data for the page's tables."""
    fronts = [
        {
            "name": name,
            "trials": found.sizes[name][0],
            "members": found.sizes[name][1],
            "volume": volume,
            "error": found.hypervolume_errors[name],
        }
        for name, volume in sorted(found.hypervolumes.items(), key=lambda entry: -entry[1])
    ]
    pairs = [
        {
            "first": (pair.first, pair.second)[i],
            "second": (pair.second, pair.first)[i],
            "more": (1, -1)[i] * pair.difference[0],
            "error": pair.difference[1],
            "epsilon": pair.epsilon[i],
            "covers": pair.coverage[i],
        }
        for pair in found.pairs
        for i in (0, 1)
    ]
    reference = list(zip(objectives, found.reference, strict=True))
    return {"reference": reference, "fronts": fronts, "pairs": pairs, "notes": [f"{text}." for text in warnings]}
