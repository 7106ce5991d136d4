"""Training of a target (or any AR model) on tokens and captions: cross-entropy, some captions dropped for guidance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.training.evaluate import evaluate_target
from workers.training.loop import Figures, LossFunction, Progress, TrainConfig, train
from workers.training.parts import ARModel, TokenSet, save_model

DROPPED = 0.1  # share of examples that see the null prompt (Ho & Salimans 2022)


def target_loss(model: ARModel, data: TokenSet, *, compiled: bool = False) -> LossFunction:
    """Mean cross-entropy in nats per token; each example loses its caption with probability `DROPPED`."""

    def cross_entropy(tokens: Tensor, codes: Tensor, dropped: Tensor) -> Tensor:
        prompt = torch.where(dropped[:, None, None], model.conditioner.nothing, model.conditioner.embed(codes))
        predicting = model.features(prompt, tokens)[:, prompt.shape[1] - 1 :]
        return F.cross_entropy(model.head(predicting).float().flatten(0, 1), tokens.flatten())

    run = torch.compile(cross_entropy, dynamic=False) if compiled else cross_entropy

    def loss(indices: Tensor, generator: torch.Generator) -> Tensor:
        tokens, codes = data.pick(indices)
        dropped = torch.rand(len(indices), generator=generator) < DROPPED
        out: Tensor = run(tokens, codes, dropped.to(tokens.device))
        return out

    return loss


def train_target(
    model: ARModel,
    data: TokenSet,
    held_out: TokenSet,
    config: TrainConfig,
    out: Path,
    *,
    name: str,
    piece: str = "target",
    resume: bool = False,
    log: Callable[[str], None] = print,
) -> tuple[ARModel, Progress]:
    """Trains `model` in place; writes its averaged weights to out/<piece>.safetensors at every save and at the end."""

    def on_save(average: nn.Module) -> Figures:
        assert isinstance(average, ARModel)
        save_model(average, out / f"{piece}.safetensors", name=name)
        return evaluate_target(average, held_out, scales=())

    out.mkdir(parents=True, exist_ok=True)
    loss = target_loss(model, data, compiled=config.compile)
    average, progress = train(
        model, loss, len(data), config, name=piece, checkpoint=out / f"{piece}.checkpoint.pt", resume=resume,
        on_save=on_save, log=log,
    )  # fmt: skip
    assert isinstance(average, ARModel)
    return average, progress
