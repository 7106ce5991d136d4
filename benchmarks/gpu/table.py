"""The rows of a file of results as Markdown tables: those of a part that have the same numbers are
one table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_NOT_SHOWN = {"case", "case_s", "error", "skipped"}
_UNITS = {  # and their factors, by the end of a name
    "_s": ("ms", 1e3),
    "_bytes": ("GiB", 2.0**-30),
    "_share": ("%", 1e2),
    "bandwidth": ("GB/s", 1e-9),
    "compute": ("TFLOP/s", 1e-12),
}


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """The tables of all runs, with what was measured on what; then what failed or was skipped."""
    return "\n".join(line for run in runs for line in _run(run))


def _run(run: Mapping[str, Any]) -> Iterator[str]:
    machine = run["machine"]
    facts = [
        f"{name} {machine[name]}"
        for name in ("driver", "torch", "triton", "commit", "code")
        if machine[name]
    ]
    scale = ", at reduced size" if machine["scale"] == "tiny" else ""
    yield f"{machine['device']}, {', '.join(facts)}{scale}\n"
    for part, found in run["parts"].items():
        yield f"### {part}{'' if found['complete'] else ' (not complete)'}\n"
        groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
        for row in found["rows"]:
            if keys := tuple(key for key in row if key not in _NOT_SHOWN):
                groups.setdefault(keys, []).append(row)
        for keys, rows in groups.items():
            yield _line(["case", *map(_head, keys)])
            yield _line(["---"] * (1 + len(keys)))
            yield from (
                _line([row["case"], *(_cell(key, row[key]) for key in keys)]) for row in rows
            )
            yield ""
        yield from _reasons(found["rows"])


def _reasons(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Why cases have no numbers, once for all of the same reason."""
    cases: dict[str, list[str]] = {}
    for row in rows:
        for kind in ("skipped", "error"):
            if kind in row:
                cases.setdefault(f"{kind}: {row[kind]}", []).append(row["case"])
    yield from (f"- {reason} ({'; '.join(names)})" for reason, names in cases.items())
    yield ""


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _unit(key: str) -> tuple[str, float]:
    """The unit that a number is shown in, and its factor; an empty one for numbers as they are."""
    return next((unit for end, unit in _UNITS.items() if key.endswith(end)), ("", 1.0))


def _head(key: str) -> str:
    """The name without the end that its unit says."""
    unit, _ = _unit(key)
    name = (
        key.rpartition("_")[0] if any(key.endswith(end) for end in _UNITS if end[0] == "_") else key
    )
    return name.replace("_", " ") + (f", {unit}" if unit else "")


def _cell(key: str, value: Any) -> str:
    """A value in the unit of its key. A name may have a bar, which would end the cell."""
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return (
            ", ".join(f"{_cell(key, name)} {_cell(key, part)}" for name, part in value.items())
            or "-"
        )
    if isinstance(value, list | tuple):
        return ", ".join(_cell(key, part) for part in value) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value.replace("|", "\\|")
    unit, factor = _unit(key)
    return f"{value * factor:.4g}" if unit or isinstance(value, float) else str(value)
