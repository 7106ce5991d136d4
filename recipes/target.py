"""Training of the built-in target, and of its independent drafter, a smaller model of the same
kind.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from recipes.evaluate import evaluate_target
from workers.models.families.scenes import ARModel, build_ar_model
from workers.models.own_files import read_module, save
from workers.training.drafters import ar_loss
from workers.training.examples import Examples
from workers.training.forward import features
from workers.training.loop import Figures, TrainConfig, train


def load_model(path: Path) -> ARModel:
    """The AR model in a weight file, in fp32.

    Raises:
        WeightsError: the file is missing, damaged or of another kind.
    """
    return read_module(path, "an AR model", build_ar_model)[0]


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
    """Trains `model` in place; writes its averaged weights to out/<component>.safetensors (fp16) at
    every save.
    """
    path = out / f"{component}.safetensors"

    def on_save(average: ARModel) -> Figures:
        save(path, average, {**average.settings(), "name": name})
        return evaluate_target(average.as_target(), held_out, scales=())

    forward = torch.compile(features, dynamic=False) if config.compile else features
    loss = ar_loss(model, data, forward=forward)
    average, journal = train(
        model, loss, len(data), config, out, name=component, on_save=on_save, resume=resume, log=log
    )
    if not path.exists():  # resumed when it had finished
        save(path, average, {**average.settings(), "name": name})
    return average, journal
