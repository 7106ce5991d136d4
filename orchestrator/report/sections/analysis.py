"""The search behind a report: importances of what it searched, and the hypervolume over the images
spent.
"""

from __future__ import annotations

from typing import Any

from orchestrator.front.compare import hypervolume
from orchestrator.front.front import Front
from orchestrator.front.importance import importances
from orchestrator.front.joint import directions, values_of
from orchestrator.report.section import SECTIONS, Section, Subject


def analysis(subject: Subject) -> dict[str, Any]:
    """The importances of a single sweep, and the hypervolumes of all."""
    sweeps = list(subject.sweeps.values())
    front = subject.front
    found: dict[str, Any] = {"importances": {}, "hypervolumes": []}
    if len(sweeps) == 1:
        found["importances"] = importances(sweeps[0], subject.axes).to_mapping()
    if front is not None and front.candidates:
        found["hypervolumes"] = hypervolumes(front)
    return found


def hypervolumes(front: Front) -> list[dict[str, Any]]:
    """The hypervolume of each sweep's front after each of its trials, in the order in which they
    finished, up to the reference point of all: `name`, `images` spent and `volume`.
    """
    reference = front.reference_point()
    metrics = front.metrics
    found = []
    for name, sweep in front.sweeps.items():
        images = 0
        rows = []
        curve: dict[str, Any] = {"name": name, "images": [], "volume": []}
        candidates = {trial.number for trial in front.candidates if trial.origin == name}
        for record in sorted(sweep.records, key=lambda record: (record.finished, record.number)):
            if record.duplicate_of is None:
                images += record.images
            if record.number in candidates:
                rows.append(values_of([record], metrics)[0])
            volume = 0.0
            if rows:
                volume = float(f"{hypervolume(rows, reference, directions(metrics)):.6g}")
            curve["images"].append(images)
            curve["volume"].append(volume)
        found.append(curve)
    return found


SECTIONS.add("analysis", Section("What the search found", 40, analysis, link="Analysis"))
