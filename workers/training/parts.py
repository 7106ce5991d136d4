"""What the training code trains: an AR model (transformer and conditioner), its examples, and files of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workers.models.families.conditioners import CodedConditioner, build_conditioner
from workers.models.transformer import Transformer, TransformerConfig
from workers.models.weights import Row, WeightsError, load_into, load_tensors, read_config, save
from workers.training.forward import features


@dataclass(frozen=True, slots=True, eq=False)
class TokenSet:
    """Examples: tokens [n, N] of images in raster order (any integer type), and their captions' codes [n, P]."""

    tokens: Tensor
    codes: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def pick(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [B, N] and codes [B, P] of the examples `indices`, int64."""
        chosen = indices.to(self.tokens.device)
        return self.tokens[chosen].long(), self.codes[chosen].long()

    def to(self, device: torch.device | str) -> TokenSet:
        return TokenSet(self.tokens.to(device), self.codes.to(device))


class ARModel(nn.Module):
    """Transformer and conditioner: the trained part of a target, or an independent drafter."""

    def __init__(self, transformer: Transformer, conditioner: CodedConditioner) -> None:
        super().__init__()
        assert transformer.embed is not None
        assert transformer.head is not None
        assert transformer.config.prompt_len == conditioner.prompt_len
        self.transformer, self.conditioner = transformer, conditioner

    @property
    def embed(self) -> nn.Embedding:
        assert self.transformer.embed is not None
        return self.transformer.embed

    @property
    def head(self) -> nn.Linear:
        assert self.transformer.head is not None
        return self.transformer.head

    def features(self, prompt: Tensor, tokens: Tensor) -> Tensor:
        """Features [R, P + N - 1, D] of the prompt [R, P, D] and all but the last of the tokens [R, N]."""
        x = torch.cat([prompt, self.embed(tokens[:, :-1])], dim=1)
        return features(self.transformer, x, torch.arange(x.shape[1], device=x.device))

    def streams(self, tokens: Tensor, codes: Tensor) -> Tensor:
        """Features [2B, P + N - 1, D] of the conditional rows, then of the same tokens under the null prompt."""
        prompt = self.conditioner.embed(codes)
        both = torch.cat([prompt, self.conditioner.nothing.expand_as(prompt)])
        return self.features(both, torch.cat([tokens, tokens]))


def build_model(config: TransformerConfig, conditioner: Mapping[str, Any], seed: int) -> ARModel:
    """An untrained model: normal weights of scale 1/sqrt(fan in), output projections scaled down by the depth."""
    torch.manual_seed(seed)
    model = ARModel(Transformer(config), build_conditioner(conditioner, config.dim))
    for name, p in model.transformer.named_parameters():
        if p.dim() == 2:
            residual = name.endswith(("wo.weight", "w2.weight"))
            nn.init.normal_(p, std=p.shape[1] ** -0.5 * ((2 * config.n_layers) ** -0.5 if residual else 1.0))
    nn.init.normal_(model.embed.weight, std=1.0)
    nn.init.zeros_(model.head.weight)
    return model


def save_model(model: ARModel, path: Path, **extra: Any) -> None:
    """fp16 safetensors; the header's config holds the transformer's, the conditioner's settings and `extra`."""
    config = {"transformer": asdict(model.transformer.config), "conditioner": model.conditioner.settings(), **extra}
    save(path, model.state_dict(), config)


def load_model(path: Path) -> ARModel:
    """A model that `save_model` wrote, in fp32.

    Raises:
        WeightsError: the file is missing, damaged or of another kind.
    """
    config = read_config(path)
    if "conditioner" not in config:
        raise WeightsError(f"{path}: no AR model with captions; is it another piece's file?")
    model = build_model(TransformerConfig(**config["transformer"]), config["conditioner"], 0)
    load_into(model, load_tensors(path), [Row("{...}", "{...}")], where=path)
    return model
