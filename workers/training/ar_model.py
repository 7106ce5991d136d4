"""Training of an AR model (a target, or an independent drafter) on captions and image tokens.

The loss is cross-entropy. Some captions are replaced by the null prompt, which classifier-free guidance needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.models.checkpoint_files import WeightsError, load_tensors
from workers.models.families.conditioners import CodedConditioner, build_conditioner
from workers.models.families.scenes import SAMPLING
from workers.models.own_files import read_config, save
from workers.models.target import Target
from workers.models.transformer import Transformer, TransformerConfig
from workers.models.weights import KeyMapping, load_weights
from workers.training.evaluate import evaluate_target
from workers.training.examples import Examples
from workers.training.forward import features
from workers.training.loop import Figures, LossFunction, TrainConfig, train

_CAPTION_DROPOUT = 0.1  # fraction of examples with the null prompt (Ho & Salimans 2022)


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

    def as_target(self, name: str = "training") -> Target:
        """A target without a codec that shares these weights."""
        return Target(name, self.transformer, self.conditioner, None, SAMPLING)


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
        raise WeightsError(f"{path}: no AR model with captions; is it another component's file?")
    model = build_model(TransformerConfig(**config["transformer"]), config["conditioner"], 0)
    load_weights(model, load_tensors(path, model.state_dict()), [KeyMapping("{...}", "{...}")], where=path)
    return model


def target_loss(model: ARModel, data: Examples, *, compiled: bool = False) -> LossFunction:
    """Mean cross-entropy in nats per token; the null prompt replaces a caption with probability `_CAPTION_DROPOUT`."""

    def cross_entropy(tokens: Tensor, codes: Tensor, dropped: Tensor) -> Tensor:
        prompt = torch.where(dropped[:, None, None], model.conditioner.nothing, model.conditioner.embed(codes))
        x = torch.cat([prompt, model.embed(tokens[:, :-1])], dim=1)
        hidden = features(model.transformer, x, torch.arange(x.shape[1], device=x.device))
        logits = model.head(hidden[:, prompt.shape[1] - 1 :])
        return F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())

    run = torch.compile(cross_entropy, dynamic=False) if compiled else cross_entropy

    def loss(indices: Tensor, generator: torch.Generator) -> Tensor:
        captions, tokens = data.pick(indices, model.head.weight.device)
        codes = model.conditioner.codes(captions).to(tokens.device)
        dropped = torch.rand(len(indices), generator=generator) < _CAPTION_DROPOUT
        out: Tensor = run(tokens, codes, dropped.to(tokens.device))
        return out

    return loss


def train_target(
    model: ARModel,
    data: Examples,
    held_out: Examples,
    config: TrainConfig,
    out: Path,
    *,
    name: str,
    component: str = "target",
    resume: bool = False,
    log: Callable[[str], None] = print,
) -> tuple[ARModel, list[Figures]]:
    """Trains `model` in place; writes its averaged weights to out/<component>.safetensors at every save."""
    path = out / f"{component}.safetensors"

    def on_save(average: ARModel) -> Figures:
        save_model(average, path, name=name)
        return evaluate_target(average.as_target(), held_out, scales=())

    loss = target_loss(model, data, compiled=config.compile)
    average, journal = train(
        model, loss, len(data), config, out, name=component, on_save=on_save, resume=resume, log=log
    )
    if not path.exists():  # resumed when it had finished
        save_model(average, path, name=name)
    return average, journal
