"""Studies of sweeps that only exist in a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from orchestrator.run.racing import as_told
from orchestrator.store.identity import Identity
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from orchestrator.views.follower import Views
from orchestrator.views.study import StudyView
from search_spaces.sweep import SweepConfig
from tests.fakes.synthetic_sweeps import identity
from workers.data.storage import Storage
from workers.metrics.estimate import Estimate

DIRECTIONS = ("maximize", "minimize")


def study_view(config: SweepConfig, url: str | Path, *, is_own: bool = True) -> StudyView:
    """The study of a sweep at a file or URL."""
    return StudyView(config, str(url), partial(as_told, config), is_own=is_own)


def study_identity(config: SweepConfig, **changed: object) -> Identity:
    """An identity with the objectives of a sweep, whose directions are `DIRECTIONS`."""
    pairs = zip(config.objectives, DIRECTIONS, strict=True)
    objectives = [
        {"metric": objective.metric, "direction": direction} for objective, direction in pairs
    ]
    return identity(config.name, objectives=objectives, **changed)


def write_study(config: SweepConfig, url: str | Path, records: Sequence[TrialRecord]) -> StudyView:
    """Write these records to a study, once."""
    view = study_view(config, url, is_own=False)
    view.update(Sweep(Storage("."), study_identity(config), tuple(records)))
    return view


def started_views(config: SweepConfig, url: str | Path, **changed: object) -> Views:
    """The study of a sweep, which is written while records come."""
    views = Views(Storage("."), [study_view(config, url, is_own=False)])
    views.start(study_identity(config, **changed))
    return views


def named_config(name: str) -> SweepConfig:
    """A sweep of speedup and fid with this name."""
    return replace(
        SweepConfig.read("quickstart", {"objectives": ["speedup", "fid"], "racing": None}),
        name=name,
    )


def plain_record(number: int) -> TrialRecord:
    """A complete trial whose objectives are its number plus one."""
    metrics = {name: Estimate(number + 1.0, 0.1, 8) for name in ("speedup", "fid")}
    return TrialRecord(number, f"trial {number}", "complete", None, metrics=metrics, images=8)
