"""`specfrontier compare --by position` and `--by group`: which drafts the trials on fronts accept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from orchestrator.cli.text import shown_table
from orchestrator.errors import QueryError
from orchestrator.store.acceptance import read_acceptance
from workers.data.storage import in_parallel
from workers.metrics.acceptance import AcceptanceCounts

if TYPE_CHECKING:
    from orchestrator.front.front import Front
    from orchestrator.front.trial import Candidate

_GROUP = "group"
_MAX_COLUMNS = 8  # of a table: positions or groups
_RATES = (
    "accepted: drafts that a verification accepts; 1, 2, ...: the share of verifications that "
    "accepted a draft at this position, of those that tested one there"
)
_MEANS = "drafts that a verification accepts, of all captions and of each group"


def compare_acceptance(front: Front, by: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The trials on a front of one sweep or several as plain data, and as lines of text.

    Args:
        front: of the sweeps.
        by: "position", or "group" of captions.

    Raises:
        QueryError: no trial on it has counts, or the captions have no groups.
        ValueError: a file is damaged.
    """
    members = list(front.members)
    read = in_parallel(partial(_read), members)
    found = {
        trial: counts for trial, counts in zip(members, read, strict=True) if counts is not None
    }
    if not found:
        raise QueryError(
            f"--by {by}: no trial on the front has counts of accepted drafts; sweeps have them of "
            "images that this version has generated"
        )
    lines = _group_lines(found) if by == _GROUP else _position_lines(found)
    facts = [
        {"sweep": trial.origin, "number": trial.number, "setting": trial.setting}
        | counts.to_mapping()
        for trial, counts in found.items()
    ]
    without = [trial.name for trial in members if trial not in found]
    if without:
        lines.append(f"without counts: {', '.join(without)}")
    return facts, lines


def _read(trial: Candidate) -> AcceptanceCounts | None:
    return read_acceptance(trial.sweep.storage, trial.record)


def _position_lines(found: Mapping[Candidate, AcceptanceCounts]) -> list[str]:
    positions = {trial: counts.positions()[1:] for trial, counts in found.items()}
    deepest = max(map(len, positions.values()))
    shown = min(deepest, _MAX_COLUMNS)
    rows = []
    for trial, counts in found.items():
        rates = [str(each.rate or "-") for each in positions[trial][:shown]]
        cells = [trial.name, trial.setting, str(counts.mean_accepted()), *rates]
        rows.append(cells + ["-"] * (shown - len(rates)))
    head = ["trial", "setting", "accepted", *map(str, range(1, shown + 1))]
    lines = [shown_table(head, rows, right=range(2, len(head))), _RATES]
    if deepest > shown:
        lines.append(f"positions {shown + 1} to {deepest}: --json")
    return lines


def _group_lines(found: Mapping[Candidate, AcceptanceCounts]) -> list[str]:
    grouped = [counts.groups for counts in found.values() if len(counts.groups) > 1]
    groups: Sequence[str] = sorted({group for names in grouped for group in names})
    if not groups:
        raise QueryError(
            f"--by {_GROUP}: the captions have no groups; a captions file gives them in a column "
            "group, category or tag"
        )
    shown = groups[:_MAX_COLUMNS]
    rows = []
    for trial, counts in found.items():
        means = [
            str(counts.mean_accepted(group)) if group in counts.groups else "-" for group in shown
        ]
        rows.append([trial.name, trial.setting, str(counts.mean_accepted()), *means])
    head = ["trial", "setting", "all", *shown]
    lines = [shown_table(head, rows, right=range(2, len(head))), _MEANS]
    if len(groups) > len(shown):
        lines.append(f"{len(groups) - len(shown)} more groups: --json")
    return lines
