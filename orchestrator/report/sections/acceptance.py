"""How many drafts verifications accept, and how often the draft at each position is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.report.section import SECTIONS, Section, Subject
from orchestrator.report.trials import PageTrial
from orchestrator.store.acceptance import read_acceptance
from workers.data.storage import in_parallel
from workers.metrics.acceptance import AcceptanceCounts
from workers.metrics.estimate import Estimate

_MAX_POSITIONS = 16  # of a chart
_MAX_GROUPS = 8
_ROUNDING = 1e-12
_LEAD = (
    "Bars: the share of verifications that accepted so many drafts. Dots: how often the draft at a "
    "position is accepted, of the verifications that tested one there (those before it were "
    f"accepted), with its error over captions, of at most {_MAX_POSITIONS} drafts. Vanilla drafts "
    "nothing, and has no chart."
)


def acceptance(subject: Subject) -> dict[str, Any] | None:
    """The counts of trials that draft, by key; trials whose file is missing are left out, and those
    whose file is damaged are noted.

    Returns:
        `trials`: by key, `mean` accepted drafts, `shares` from 0 drafts on and `rates` from
        position 1 on, each as value and error, null where nothing was tested; `groups`: `mean` of
        each group of captions. `groups`: the names of the first of them, `more_groups`: the number
        of the others. None without any trial.
    """
    found: dict[str, AcceptanceCounts] = {}
    names: set[str] = set()
    for trial, counts in zip(subject.trials, in_parallel(_read, subject.trials), strict=True):
        if isinstance(counts, ValueError):
            subject.note(f"{counts}; the report lacks its acceptance")
        elif counts is not None and counts.tested.shape[2] > 1:
            found[trial.key] = counts
            if len(counts.groups) > 1:
                names.update(counts.groups)
    if not found:
        return None
    groups = sorted(names)[:_MAX_GROUPS]
    return {
        "trials": {key: _entry(counts, groups) for key, counts in found.items()},
        "groups": groups,
        "more_groups": len(names) - len(groups),
    }


def _read(trial: PageTrial) -> AcceptanceCounts | ValueError | None:
    try:
        return read_acceptance(trial.sweep.storage, trial.record)
    except ValueError as error:
        return error


def _entry(counts: AcceptanceCounts, groups: Sequence[str]) -> dict[str, Any]:
    """What the page has of a trial, of some of the groups."""
    positions = counts.positions()[: _MAX_POSITIONS + 1]
    return {
        "mean": _measured(counts.mean_accepted()),
        "shares": [_measured(each.share) for each in positions],
        "rates": [each.rate and _measured(each.rate) for each in positions[1:]],
        "groups": {
            group: _measured(counts.mean_accepted(group))
            for group in groups
            if group in counts.groups
        },
    }


def _measured(entry: Estimate) -> list[float | None]:
    """Value and error; an error at the level of rounding is 0."""
    error = entry.known_error
    if error is not None:
        error = float(f"{error:.3g}") if error > _ROUNDING else 0.0
    return [float(f"{entry.value:.5g}"), error]


SECTIONS.add("acceptance", Section("Acceptance by draft position", 32, acceptance, lead=_LEAD))
