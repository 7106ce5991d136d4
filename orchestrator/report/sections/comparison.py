"""The fronts of several sweeps compared."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from orchestrator.report.section import SECTIONS, Section, Subject


def comparison(subject: Subject) -> dict[str, Any] | None:
    """The comparison as plain data (see `Comparison`), its metrics and notes; None without one."""
    if subject.comparison is None:
        return None
    notes = [f"{text}." for text in subject.warnings]
    return asdict(subject.comparison) | {
        "metrics": [metric.name for metric in subject.axes],
        "notes": notes,
    }


SECTIONS.add("comparison", Section("The fronts compared", 10, comparison))
