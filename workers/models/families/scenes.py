"""The built-in family, and every model that the recipes make: a folder with one weight file per
part.

A folder holds `tokenizer`, `target` and any of the drafters `eagle`, `eagle3`, `medusa`,
`independent` and `vertical` as safetensors. Each file's header carries its config, so sizes,
captions and grid come from the folder. The built-in model generates procedural scenes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import nn

from search_spaces.params import PathField
from search_spaces.trial import Sampling
from workers.models.checkpoint_files import WeightsError
from workers.models.families.catalogue import FAMILIES, Family
from workers.models.families.conditioners import CodedConditioner, build_conditioner
from workers.models.own_files import read_module
from workers.models.target import Target
from workers.models.transformer import Transformer, TransformerConfig
from workers.models.vq import load_vq

BUILTIN = Path(__file__).parents[1] / "builtin" / "scenes"
BUILTIN_PARTS = ("tokenizer", "target", "eagle", "eagle3", "medusa", "independent", "vertical")

# Where vanilla decoding of the built-in model is best (`python -m benchmarks.sampling` measures
# it).
SAMPLING = Sampling(temperature=1.0, cfg=1.5)


class ARModel(nn.Module):
    """Transformer and conditioner: the trained part of a target, or an independent drafter."""

    def __init__(self, transformer: Transformer, conditioner: CodedConditioner) -> None:
        super().__init__()
        assert transformer.embed is not None
        assert transformer.head is not None
        self.transformer = transformer
        self.conditioner = conditioner

    @property
    def embed(self) -> nn.Embedding:
        assert self.transformer.embed is not None
        return self.transformer.embed

    @property
    def head(self) -> nn.Linear:
        assert self.transformer.head is not None
        return self.transformer.head

    def settings(self) -> dict[str, Any]:
        """The config in its file's header, from which `build_ar_model` makes it again."""
        return {
            "transformer": asdict(self.transformer.config),
            "conditioner": self.conditioner.settings(),
        }

    def as_target(self) -> Target:
        """A target without a codec that shares these weights."""
        return Target("training", self.transformer, self.conditioner, None, SAMPLING)


def build_ar_model(config: Mapping[str, Any]) -> ARModel:
    """An AR model without weights, from its `settings`."""
    body = TransformerConfig(**config["transformer"])
    if not body.vocab_size:
        raise TypeError("vocab_size is 0: this is not a complete AR model")
    return ARModel(Transformer(body), build_conditioner(config["conditioner"], body.dim))


@FAMILIES.register
@dataclass(frozen=True, slots=True)
class Scenes(Family):
    """The built-in model, or one that the recipes made."""

    kind: ClassVar[str] = "scenes"
    folder: Annotated[str, "folder of its weight files", PathField()]

    def load(self, device: torch.device, dtype: torch.dtype) -> Target:
        """The target of the folder. The codec stays in fp32.

        Raises:
            WeightsError: the tokenizer or the target is missing, damaged or of another kind; or the
                two do not match.
        """
        folder = Path(self.folder)
        codec = load_vq(folder / "tokenizer.safetensors")
        model, config = read_module(folder / "target.safetensors", "an AR model", build_ar_model)
        body = model.to(dtype).transformer
        if codec.config.codebook_size != body.config.vocab_size:
            raise WeightsError(
                f"{folder}: the tokenizer has {codec.config.codebook_size} codes, the target "
                f"{body.config.vocab_size}; train the target on this tokenizer's tokens"
            )
        sampling = SAMPLING
        if "sampling" in config:
            sampling = Sampling.from_mapping(config["sampling"])
        target = Target(config.get("name", folder.name), body, model.conditioner, codec, sampling)
        return target.to(device).eval().requires_grad_(False)

    @property
    def target_files(self) -> dict[str, str]:
        return {
            part: str(Path(self.folder) / f"{part}.safetensors") for part in ("tokenizer", "target")
        }

    def drafter_file(self, kind: str) -> Path:
        return Path(self.folder) / f"{kind}.safetensors"
