"""What a worker is told when it starts, as plain data: where the store is, what to load, what the sweep is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from search_spaces.params import unknown_key


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """The start of a worker.

    store: the sweep's folder or URI. weights: a folder, or "builtin". models: instead of weights, an entry of
    models.yaml as plain data (`Entry.to_mapping`). metric_weights: files of nets that metrics need, by name. device:
    "auto", "cpu", "cuda" or "cuda:N". threads: of torch. captions, reference: those sections of the sweep (no
    reference: None). seed: of all images. metrics: names that are asked for; None: all. worker: its name in results.
    token: what the store's file store.id says, if the store is the driver's.
    """

    store: str
    token: str | None = None
    weights: str = "builtin"
    models: Mapping[str, Any] | None = None
    metric_weights: Mapping[str, str] | None = None
    device: str = "auto"
    threads: int = 1
    captions: Mapping[str, Any] = field(default_factory=lambda: {"source": "scenes", "count": 192, "seed": 1})
    reference: Mapping[str, Any] | None = None
    seed: int = 0
    metrics: tuple[str, ...] | None = None
    worker: str = "worker"

    @property
    def what(self) -> str:
        """What is loaded, for people."""
        return self.weights if self.models is None else f"{self.models['name']} ({self.models['where']})"

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ValueError(f"threads: a worker needs at least 1, got {self.threads}")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Read plain data.

        Raises:
            ValueError: no store, or an unknown key.
        """
        given, known = dict(mapping), [entry.name for entry in fields(cls)]
        for key in given:
            if key not in known:
                raise ValueError(f"{key}: {unknown_key(key, known)}")
        if not given.get("store"):
            raise ValueError("store: give the sweep's folder or URI")
        if given.get("metrics") is not None:
            given["metrics"] = tuple(given["metrics"])
        return cls(**given)
