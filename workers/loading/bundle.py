"""What decoding needs of a model, loaded: its target and the drafters for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workers.decoding.drafter import Drafter
from workers.models.target import Target


@dataclass(frozen=True, slots=True)
class Models:
    """A target, its drafters by kind, and each weight file's hash (16 digits of its SHA-256) by name."""

    target: Target
    drafters: Mapping[str, Drafter]
    hashes: Mapping[str, str]
