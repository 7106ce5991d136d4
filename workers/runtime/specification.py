"""A worker's configuration as plain data: the store, the models to load, captions, reference, seed and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from search_spaces.params import unknown_key


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """The start of a worker.

    store: the sweep's folder or URI. models: an entry of models.yaml as plain data (`Entry.to_mapping`); None: the
    built-in model. device: "auto", "cpu", "cuda" or "cuda:N". threads: of torch. captions, reference: those sections of
    the sweep (None: no reference). seed: of all images. metrics: requested names; None: all. worker: its name in
    results. token: content of the store's file store.id, if the driver wrote one.
    """

    store: str
    token: str | None = None
    models: Mapping[str, Any] | None = None
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
        if self.models is None:
            return "builtin"
        name, where = self.models["name"], self.models["where"]
        return f"{name} ({where})" if where else name

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
