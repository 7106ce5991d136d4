"""A worker's configuration as plain data: the store, the models to load, captions, reference, seed
and metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """The start of a worker."""

    store: str  # the sweep's folder or URI
    token: str | None = None  # content of the store's file store.id, if the driver wrote one
    # An entry of models.yaml as plain data (`Entry.to_mapping`); None: the built-in model.
    models: Mapping[str, Any] | None = None
    device: str = "auto"  # "auto", "cpu", "cuda" or "cuda:N"
    # The section `captions` of the sweep.
    captions: Mapping[str, Any] = field(
        default_factory=lambda: {"source": "scenes", "count": 192, "seed": 1}
    )
    reference: Mapping[str, Any] | None = None  # the section `reference`; None: no real images
    seed: int = 0  # seed of all images
    metrics: Sequence[str] | None = None  # names of the requested metrics; None: all
    batch_metrics: Sequence[str] = ()  # metrics of speed at other batch sizes than the first
    # The sweep's own metrics by name (`library_metrics`).
    torchmetrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    worker: str = "worker"  # name of the worker in results
    call: str = ""  # the launch: its timing sessions on one machine are a sitting
    gpu_share: float = 1.0  # share of the GPU's memory
    # The whole sweep (`SweepConfig.to_mapping`), whose peak must fit that share; None: it is not
    # checked.
    sweep: Mapping[str, Any] | None = None
    # Sweeps whose images are taken over, each as `EarlierImages.open` reads it.
    earlier: Sequence[Mapping[str, Any]] = ()

    @property
    def what(self) -> str:
        """What is loaded, for people."""
        if self.models is None:
            return "builtin"
        name = self.models["name"]
        where = self.models["where"]
        if not where:
            return str(name)
        return f"{name} ({where})"
