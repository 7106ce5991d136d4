"""`specfrontier list`: the sweeps under ./sweeps."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli import query_options as o
from orchestrator.cli.text import show, shown_table
from orchestrator.errors import QueryError, explain
from orchestrator.options import AsJson
from orchestrator.text import describe_duration

if TYPE_CHECKING:
    from orchestrator.front.choice import Choice
    from workers.data.storage import Storage

EPILOG = """\b
Examples:
  specfrontier list
  specfrontier list --json
"""
_HEAD = ("sweep", "trials", "recommended", "finished", "launch")


@o.query_errors()
def list_sweeps(as_json: AsJson = False) -> None:
    """List the sweeps under ./sweeps: how many trials have finished, which setting each recommends,
    how long ago its last trial finished, and what became of its last launch.
    """
    from orchestrator.store import files, launches
    from workers.data.storage import Storage

    facts = list[dict[str, Any]]()
    rows = list[list[str]]()
    for folder in sorted(Path(files.SWEEPS).glob("*/")):
        storage = Storage(folder)
        named = {"name": folder.name, "place": storage.display_name}
        try:
            is_sweep = storage.exists(files.IDENTITY) or storage.names(files.TRIALS)
            if not (is_sweep or launches.is_preparing(storage)):
                continue
            found, row = _describe(storage)
        except (ValueError, OSError) as error:
            facts.append(named | {"problem": explain(error)})
            rows.append([folder.name, "", "", "", explain(error)])
            continue
        facts.append(named | found)
        rows.append([folder.name, *row])
    text = f"no sweep under ./{files.SWEEPS}; `specfrontier launch SPACE` starts one"
    if rows:
        text = shown_table(_HEAD, rows)
    show({"sweeps": facts}, [text], as_json=as_json)


def _describe(storage: Storage) -> tuple[dict[str, Any], list[str]]:
    """A sweep as data, and as a row of the table without its name. Raises what reading raises."""
    from orchestrator.store import files, launches

    launch = launches.find_launch(storage)
    names = storage.names(files.TRIALS)
    planned = files.planned_trials(storage)
    facts = {"launch": asdict(launch), "finished": len(names), "planned": planned}
    trials = f"{len(names)}" if planned is None else f"{len(names)} of {planned}"
    try:
        best, age_s = _best(storage) if names else (None, None)
    except (ValueError, OSError) as error:
        problem = explain(error)
        return facts | {"problem": problem}, [trials, problem, "", launch.text]
    facts |= {"recommended": None if best is None else best.to_mapping(), "age_s": age_s}
    age = "" if age_s is None else f"{describe_duration(age_s)} ago"
    return facts, [trials, _values(best), age, launch.text]


def _best(storage: Storage) -> tuple[Choice | None, float | None]:
    """What a sweep recommends: the best within the default bar, else the best lossless setting; and
    the seconds since its last trial finished.
    """
    from datetime import datetime

    from orchestrator.front.choice import recommend
    from orchestrator.front.front import front_of
    from orchestrator.store.sweep import Sweep

    sweep = Sweep.open(storage)
    finished = [record.finished for record in sweep.records if record.finished]
    age_s = None
    if finished:
        age_s = max(0.0, time.time() - datetime.fromisoformat(max(finished)).timestamp())
    try:
        choices = recommend(front_of([sweep])).choices
    except QueryError:  # such as fewer than two objectives
        return None, age_s
    return choices.get("best") or choices.get("best_lossless"), age_s


def _values(best: Choice | None) -> str:
    """The recommended trial, with its values: `5: speedup 2.495 ± 0.098, fid 4.05 ± 0.40`."""
    if best is None:
        return "-"
    values = ", ".join(f"{name} {best.metrics[name]}" for name in best.objectives)
    return f"trial {best.number}: {values}"
