"""Models on the meta device for plans: from their files' headers if the files exist, else from the architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from search_spaces.trial import DecodingConfig
from workers.decoding.build import drafter_class, load_drafter
from workers.loading.models import Models
from workers.loading.models_yaml import Entry, load_on_meta, published_entries
from workers.models.checkpoint_files import WeightsError, shapes_only


@dataclass(frozen=True, slots=True)
class ShapeOnlyModels:
    """Models on the meta device. assumptions: sentences on what their files did not say.

    metric_bytes: size of the existing weight files of metric networks, by key.
    """

    models: Models
    assumptions: tuple[str, ...] = ()
    metric_bytes: Mapping[str, int] = field(default_factory=dict)


def shape_only_models(entry: Entry, dtype: torch.dtype) -> ShapeOnlyModels:
    """An entry's models: checked against its files if all exist, else the published architecture that it names.

    Raises:
        WeightsError: a file is damaged or of another family; or files are missing and the entry does not determine the
            architecture.
    """
    missing = [key for key, path in entry.files.items() if not Path(path).exists()]
    if not missing:
        return ShapeOnlyModels(load_on_meta(entry, dtype), metric_bytes=metric_bytes(entry))
    try:
        target = entry.family.build_on_meta(dtype)
    except ValueError as error:
        files = ", ".join(f"{key} ({entry.files[key]})" for key in missing)
        raise WeightsError(f"{entry.where}: {entry.name}: no such file: {files}, and {error}") from error
    with shapes_only():
        drafters = {
            kind: load_drafter(target, kind, Path(path)).to("meta", dtype)
            for kind, path in entry.drafters.items()
            if Path(path).exists()
        }
    assumption = f"{target.name} by its published architecture; missing files: {', '.join(missing)}"
    return ShapeOnlyModels(Models(target, drafters, {}), (assumption,), metric_bytes(entry))


def metric_bytes(entry: Entry) -> dict[str, int]:
    """Size of the entry's metric networks by key, as stored (mostly fp32); of a folder, its weight files only."""
    sizes = {}
    for key, path in ((key, Path(path)) for key, path in entry.metrics.items()):
        weights = [*path.glob("*.safetensors")] or [*path.glob("*.bin")] or [*path.glob("*.pt")]
        sizes[key] = sum(file.stat().st_size for file in (weights if path.is_dir() else [path]) if file.is_file())
    return sizes


def published_models(name: str, dtype: torch.dtype) -> ShapeOnlyModels:
    """A published model by the name that sweeps use, without files.

    Raises:
        ValueError: no published model has that name.
    """
    entries = published_entries()
    if name not in entries:
        raise ValueError(
            f"{name} is not a published model, so give its models.yaml (--models FILE); published: {', '.join(entries)}"
        )
    return shape_only_models(entries[name], dtype)


def add_drafter(shapes: ShapeOnlyModels, config: DecodingConfig) -> ShapeOnlyModels | None:
    """The models with the drafter that a setting needs; a missing one gets the usual size for its target.

    None if drafters of that kind have no usual size.
    """
    kind, target, implementation = config.drafter.kind, shapes.models.target, drafter_class(config.drafter)
    if implementation is None or kind in shapes.models.drafters:
        return shapes
    usual = implementation.usual(target, config.policy.bounds.depth)
    if usual is None:
        return None
    drafter, assumption = usual
    models = replace(shapes.models, drafters={**shapes.models.drafters, kind: drafter})
    return replace(shapes, models=models, assumptions=(*shapes.assumptions, assumption))
