"""Models without numbers for plans: from their files' headers where the files are there, else by architecture alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from search_spaces.trial import DecodingConfig
from workers.decoding.drafter import Drafter
from workers.drafters.eagle import EagleDrafter, EagleLayer
from workers.drafters.medusa import MedusaDrafter, MedusaHeads
from workers.loading.bundle import Models
from workers.loading.manifest import Entry, published_entries, sketch_entry
from workers.models.checkpoint_files import shapes_only
from workers.models.families import chameleon_outline
from workers.models.families.scenes import load_drafter
from workers.models.target import Target
from workers.models.weights import WeightsError, unfilled


@dataclass(frozen=True, slots=True)
class Outline:
    """Models on the meta device, and in words what of them is assumed. nets: by key, bytes of the files of the metric
    nets that may stand beside them on a device, as far as they are there."""

    models: Models
    assumed: tuple[str, ...] = ()
    nets: Mapping[str, int] = field(default_factory=dict)


def outline_of(entry: Entry, dtype: torch.dtype) -> Outline:
    """An entry's models: held against its files if they are all there, else by the size that it names.

    Raises:
        WeightsError: a file is damaged or of another family; or files are missing and the family does not know the
            architecture without them.
    """
    missing = [key for key, path in entry.files.items() if not Path(path).exists()]
    if not missing:
        return Outline(sketch_entry(entry, dtype), nets=net_bytes(entry))
    if entry.family.outline is None:
        raise WeightsError(
            f"{entry.where}: {entry.name}: {missing[0]} is not there ({entry.files[missing[0]]}), and the family "
            f"{entry.family.name} cannot be outlined without its files"
        )
    try:
        target = entry.family.outline(entry.settings, dtype)
    except ValueError as error:
        raise WeightsError(f"{entry.where}: {entry.name}: {missing[0]} is not there, and {error}") from error
    drafters: dict[str, Drafter] = {}
    with shapes_only():
        for kind, path in entry.drafters.items():
            if Path(path).exists():
                drafters[kind] = load_drafter(target, kind, Path(path)).to("meta", dtype)
    words = f"{target.name} by its architecture: {', '.join(missing)} not there"
    return Outline(Models(target, drafters, {}), (words,), net_bytes(entry))


def net_bytes(entry: Entry) -> dict[str, int]:
    """Bytes of the entry's metric nets by key, as their files have them, mostly in fp32; of a folder, its weights."""
    found = {}
    for key, path in ((key, Path(path)) for key, path in entry.metrics.items()):
        inside = [*path.glob("*.safetensors")] or [*path.glob("*.bin")] or [*path.glob("*.pt")]
        found[key] = sum(file.stat().st_size for file in (inside if path.is_dir() else [path]) if file.is_file())
    return found


def published_outline(name: str, dtype: torch.dtype) -> Outline:
    """A published model by the name that sweeps use, without files.

    Raises:
        ValueError: no published model has that name.
    """
    entries = published_entries()
    if name in entries:
        return outline_of(entries[name], dtype)
    if name not in chameleon_outline.SIZES:
        known = ", ".join([*entries, *chameleon_outline.SIZES])
        raise ValueError(
            f"{name} is no published model, so say where it lies: --models models.yaml; published: {known}"
        )
    target = chameleon_outline.outline(name, dtype)
    return Outline(Models(target, {}, {}), (f"{name} by its architecture alone",))


def with_drafter(outline: Outline, config: DecodingConfig) -> Outline | None:
    """The outline with the drafter that a setting needs: as it is, or of the usual size for the target; None if there
    is no usual size.
    """
    kind, target = config.drafter.kind, outline.models.target
    if kind in ("none", "jacobi") or kind in outline.models.drafters:
        return outline
    drafter: Drafter
    if kind == EagleDrafter.kind:
        drafter, words = _usual_eagle(target), "the EAGLE drafter is one layer of the target's width"
    elif kind == MedusaDrafter.kind:
        drafter, words = _usual_medusa(target, config.policy.max_depth), "Medusa's heads share the target's own head"
    else:
        return None
    drafters: Mapping[str, Drafter] = {**outline.models.drafters, kind: drafter}
    return replace(outline, models=replace(outline.models, drafters=drafters), assumed=(*outline.assumed, words))


def _usual_eagle(target: Target) -> EagleDrafter:
    config = replace(target.transformer.config, n_layers=1, vocab_size=0, input_norm=False, final_norm=False)
    layer = unfilled(lambda: EagleLayer(config)).to("meta", target.dtype)
    return EagleDrafter(target, layer).eval().requires_grad_(False)


def _usual_medusa(target: Target, heads: int) -> MedusaDrafter:
    width = target.transformer.config.dim
    with torch.device("meta"):
        made = MedusaHeads(width, target.vocab_size, heads, shared_head=True).to(target.dtype)
    return MedusaDrafter(target, made).eval().requires_grad_(False)
