"""The fronts of several sweeps compared."""

from __future__ import annotations

from typing import Any

from orchestrator.report.section import SECTIONS, Section, Subject


def comparison(subject: Subject) -> dict[str, Any] | None:
    """Plain data for the section's tables; None without a comparison."""
    found = subject.comparison
    if found is None:
        return None
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
    reference = list(zip([axis.name for axis in subject.axes], found.reference, strict=True))
    return {
        "reference": reference,
        "fronts": fronts,
        "pairs": pairs,
        "notes": [f"{text}." for text in subject.warnings],
    }


SECTIONS.add("comparison", Section("The fronts compared", 10, comparison))
