"""The built-in family, and every model that `specfrontier train` makes: a folder of one small weight file per piece.

A folder holds `tokenizer`, `target` and any of the drafters `eagle`, `medusa`, `independent` as safetensors; each
file's header carries its config, so sizes, captions and grid are the folder's own. The built-in folder draws
procedural scenes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch

from search_spaces.params import Params
from search_spaces.trial import Sampling
from workers.data.scenes import caption, sample_attributes
from workers.decoding.drafter import Drafter
from workers.drafters.eagle import build_eagle
from workers.drafters.files import kinds_with_weights, load_drafter
from workers.drafters.medusa import build_medusa
from workers.models.families.catalogue import Family
from workers.models.families.conditioners import SceneConditioner
from workers.models.pieces import build_ar_model, read_piece, read_with_config
from workers.models.target import Target
from workers.models.transformer import Transformer, TransformerConfig
from workers.models.vq import VQConfig, VQModel
from workers.models.weights import WeightsError

__all__ = [
    "BUILTIN",
    "DRAFTERS",
    "FILES",
    "INDEPENDENT",
    "SAMPLING",
    "TARGET",
    "ScenesModels",
    "build_eagle",
    "build_medusa",
    "load_drafter",
    "load_scenes",
    "read_piece",
]

BUILTIN = Path(__file__).parents[1] / "builtin" / "scenes"
DRAFTERS = kinds_with_weights()
FILES = tuple(f"{piece}.safetensors" for piece in ("tokenizer", "target", *DRAFTERS))

#: Where vanilla decoding of the built-in model is at its own best (`python -m benchmarks.sampling` measures it).
SAMPLING = Sampling(temperature=1.0, cfg=1.5)

_VOCABULARY, _GRID = 1024, 12
_HEADS = {"head_dim": 32, "rope": "grid", "prompt_rope": "identity", "prompt_len": 12, "rows": _GRID, "cols": _GRID}
#: The built-in target: deep and narrow, because on a CPU at batch 1 a layer costs the same whatever its width.
TARGET = TransformerConfig(dim=160, n_layers=14, n_heads=5, ffn_dim=448, vocab_size=_VOCABULARY, **_HEADS)  # type: ignore[arg-type]
INDEPENDENT = TransformerConfig(dim=128, n_layers=2, n_heads=4, ffn_dim=352, vocab_size=_VOCABULARY, **_HEADS)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class ScenesModels:
    """A target and the drafters that its folder holds."""

    target: Target
    drafters: Mapping[str, Drafter]
    folder: Path

    def drafter(self, kind: str) -> Drafter | None:
        """The loaded drafter of a kind; None for the kinds that need none.

        Raises:
            WeightsError: the folder has no such drafter.
        """
        if kind in DRAFTERS and kind not in self.drafters:
            raise WeightsError(f"{self.folder / kind}.safetensors: no such file; train it: specfrontier train {kind}")
        return self.drafters.get(kind)

    def held_out_captions(self, count: int, seed: int = 1) -> list[str]:
        """Captions of scenes 0..count-1 of a seed; training used seed 0.

        Raises:
            ValueError: not a model of procedural scenes.
        """
        if not isinstance(self.target.conditioner, SceneConditioner):
            raise ValueError(f"{self.folder}: {self.target.name} does not draw procedural scenes, so give it captions")
        return [caption(row) for row in sample_attributes(seed, range(count)).tolist()]


def load_scenes(folder: Path = BUILTIN, drafters: Sequence[str] = DRAFTERS) -> ScenesModels:
    """Target, codec and those of the drafters that a folder holds, in fp32 on the CPU, ready to decode.

    Raises:
        WeightsError: the tokenizer or the target is missing; a file is damaged or of another kind; sizes do not fit.
    """
    codec = read_piece(folder / "tokenizer.safetensors", "a VQ tokenizer", lambda config: VQModel(VQConfig(**config)))
    path = folder / "target.safetensors"
    parts, config = read_with_config(path, "an AR model", build_ar_model)
    body, conditioner = parts["transformer"], parts["conditioner"]
    assert isinstance(body, Transformer)
    if codec.config.codebook_size != body.config.vocab_size:
        raise WeightsError(
            f"{folder}: the tokenizer has {codec.config.codebook_size} codes, the target {body.config.vocab_size}; "
            "train the target on this tokenizer's tokens"
        )
    sampling = Sampling(**config["sampling"]) if "sampling" in config else SAMPLING
    target = Target(config.get("name", folder.name), body, conditioner, codec, sampling)
    target.eval().requires_grad_(False)
    present = [kind for kind in drafters if (folder / f"{kind}.safetensors").exists()]
    loaded = {kind: load_drafter(target, kind, folder / f"{kind}.safetensors") for kind in present}
    return ScenesModels(target, loaded, folder)


@dataclass(frozen=True, slots=True)
class ScenesFolder(Params):
    """The built-in model, or one that `specfrontier train` made."""

    folder: Annotated[str, "folder of its weight files"]


def load_entry(entry: ScenesFolder, device: torch.device, dtype: torch.dtype) -> Target:
    """The target of an entry. The codec stays in fp32 whatever `dtype` says.

    Raises:
        WeightsError: see `load_scenes`.
    """
    target = load_scenes(Path(entry.folder), drafters=()).target
    for part in (target.transformer, target.conditioner):
        part.to(dtype)
    return target.to(device)


def own_drafters(entry: ScenesFolder) -> dict[str, str]:
    """The drafters that lie in the folder."""
    files = {kind: Path(entry.folder) / f"{kind}.safetensors" for kind in DRAFTERS}
    return {kind: str(path) for kind, path in files.items() if path.exists()}


FAMILY = Family(name="scenes", entry=ScenesFolder, load=load_entry, beside=own_drafters)
