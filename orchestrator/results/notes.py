"""What to know about a sweep's results beyond their errors: speeds, drafters that do not help, and no results yet."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator.results.launches import find_launch
from orchestrator.results.speed_check import speed_warnings
from orchestrator.results.store import Identity
from orchestrator.results.trials import TrialRecord

if TYPE_CHECKING:
    from orchestrator.results.sweep import Sweep

MIN_PASSES = 100  # of the target, below which nothing is said about a drafter
MAX_ACCEPTED = 0.05  # drafted tokens per pass that are "hardly any"


def sweep_notes(sweep: Sweep) -> list[str]:
    """Sentences on the sweep's speeds and drafters (see `speed_warnings` and `drafter_warnings`)."""
    return [*speed_warnings(sweep.records, sweep.identity.timing), *drafter_warnings(sweep.records, sweep.identity)]


def waiting_note(sweep: Sweep) -> list[str]:
    """A sentence on what the launch does, if no trial has finished."""
    return [] if sweep.records else [f"no trial has finished; {find_launch(sweep.storage).text}"]


def drafter_warnings(records: Iterable[TrialRecord], identity: Identity) -> list[str]:
    """A sentence for each drafter with weights of which hardly anything is accepted in any of its trials."""
    counts: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        if record.config is not None and (count := _tokens_and_passes(record, identity)) is not None:
            counts.setdefault(record.config.drafter.kind, []).append(count)
    found = []
    for kind, trials in counts.items():
        enough = [(tokens, passes) for tokens, passes in trials if passes >= MIN_PASSES]
        if f"drafters.{kind}" in identity.models and enough and all(is_hardly_accepted(*count) for count in enough):
            tokens, passes = max(enough, key=lambda count: count[0] / count[1])
            found.append(drafter_warning(kind, identity.files.get(f"drafters.{kind}"), tokens, passes))
    return found


def is_hardly_accepted(tokens: float, passes: float) -> bool:
    """Whether fewer drafted tokens than `MAX_ACCEPTED` per pass were accepted, by a 95 % upper limit of their number
    (Poisson), over at least `MIN_PASSES`.

    tokens: emitted in these passes, each of which emits one that was not drafted.
    """
    accepted = max(0.0, tokens - passes)
    return passes >= MIN_PASSES and accepted + 2 * math.sqrt(accepted) + 3 < MAX_ACCEPTED * passes


def drafter_warning(kind: str, file: str | None, tokens: float, passes: float) -> str:
    """The sentence on a drafter of which hardly anything is accepted. file: its weights, if their place is known."""
    return (
        f"hardly anything that the {kind} drafter proposes is accepted ({tokens / passes:.2f} tokens per target pass "
        f"over {passes:,.0f} passes): its weights{f', {file},' if file else ''} probably do not belong to this target"
    )


def _tokens_and_passes(record: TrialRecord, identity: Identity) -> tuple[float, float] | None:
    """The tokens of all images of a trial and the passes that emitted them, without prefills; None if unknown."""
    length, compression = (record.metrics.get(name) for name in ("mean_accepted_length", "step_compression"))
    if identity.grid is None or not record.images:
        return None
    tokens = record.images * (math.prod(identity.grid) - 1)
    if length is not None:
        return tokens, tokens / length.value
    if compression is not None:  # of the image's tokens over its passes, the prefill's among both
        return tokens, (tokens + record.images) / compression.value - record.images
    return None
