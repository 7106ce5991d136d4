"""`launch --revive`: which stopped trials to run to the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.errors import WRONG_USAGE, CommandError, ends_with

if TYPE_CHECKING:
    from workers.data.storage import Storage

Revive = Annotated[
    str | None, typer.Option(metavar="N,M", help="With --resume: run these trials, which racing stopped, to the end.")
]


def stopped_trials(storage: Storage, numbers: str | None) -> tuple[int, ...]:
    """The trials that --revive names (`3,12`). Revived ones are allowed, so a command can be repeated.

    Raises:
        CommandError: not numbers, or trials that racing did not stop.
    """
    if numbers is None:
        return ()
    from orchestrator.results.store import read_trials

    with ends_with(WRONG_USAGE):
        records = read_trials(storage)
    stopped = {str(record.number) for record in records if record.stop and record.duplicate_of is None}
    chosen = {number.strip() for number in numbers.split(",")}
    if unknown := sorted(chosen - stopped):
        found = ", ".join(sorted(stopped, key=int))
        problem = f"choose among the trials that racing stopped: {found}" if found else "racing stopped no trial here"
        raise CommandError(f"--revive {', '.join(unknown)}: {problem}", WRONG_USAGE)
    return tuple(sorted(map(int, chosen)))
