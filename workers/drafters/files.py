"""Drafters by kind: which kinds have weight files, and loading one."""

from __future__ import annotations

from pathlib import Path

from search_spaces.params import ConfigError
from search_spaces.trial import DRAFTERS
from workers.decoding.build import drafter_class
from workers.decoding.drafter import Drafter
from workers.models.target import Target


def kinds_with_weights() -> tuple[str, ...]:
    """The registered drafters that have weight files."""
    return tuple(kind for kind, choice in DRAFTERS.items() if drafter_class(choice) is not None)


def load_drafter(target: Target, kind: str, path: Path) -> Drafter:
    """A drafter of a kind from its file, ready to decode on the target's device in the target's dtype.

    Raises:
        WeightsError: the file is missing, damaged, of another kind, or made for another target.
        ValueError: its sizes do not fit the target; an unknown kind, or one without weights.
    """
    implementation = drafter_class(DRAFTERS.lookup(kind))
    if implementation is None:
        known = ", ".join(kinds_with_weights())
        raise ConfigError(("drafter",), f"the {kind} drafter has no weights; drafters with weights: {known}")
    drafter = implementation.load(path, target)
    return drafter.to(target.device, target.dtype).eval().requires_grad_(False)
