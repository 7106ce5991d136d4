"""A worker's configuration as plain data: the store, the models to load, captions, reference, seed
and metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """The start of a worker.

    store: the sweep's folder or URI. models: an entry of models.yaml as plain data
    (`Entry.to_mapping`); None: the built-in model. device: "auto", "cpu", "cuda" or "cuda:N".
    captions, reference: those sections of the sweep (None: no reference). seed: the seed of all
    images. metrics: requested names; None: all. batch_metrics: those of speed at other batch sizes
    than the first. torchmetrics: the sweep's own metrics by name (`library_metrics`). worker: its
    name in results. token: content of the store's file store.id, if the driver wrote one.
    gpu_share: share of the GPU's memory. sweep: the whole sweep (`SweepConfig.to_mapping`), whose
    peak must fit that share; None: it is not checked. earlier: sweeps whose images are taken over,
    each as `EarlierImages.open` reads it.
    """

    store: str
    token: str | None = None
    models: Mapping[str, Any] | None = None
    device: str = "auto"
    captions: Mapping[str, Any] = field(
        default_factory=lambda: {"source": "scenes", "count": 192, "seed": 1}
    )
    reference: Mapping[str, Any] | None = None
    seed: int = 0
    metrics: Sequence[str] | None = None
    batch_metrics: Sequence[str] = ()
    torchmetrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    worker: str = "worker"
    gpu_share: float = 1.0
    sweep: Mapping[str, Any] | None = None
    earlier: Sequence[Mapping[str, Any]] = ()

    @property
    def what(self) -> str:
        """What is loaded, for people."""
        if self.models is None:
            return "builtin"
        name = self.models["name"]
        where = self.models["where"]
        return f"{name} ({where})" if where else name
