"""Training of the built-in target, and of its independent drafter, a smaller model of the same
kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch

from recipes.evaluate import evaluate_target
from workers.models.families.scenes import ARModel, build_ar_model
from workers.models.own_files import read_config, read_module, save
from workers.training.drafters import ar_loss
from workers.training.examples import Examples
from workers.training.forward import features
from workers.training.loop import Figures, TrainConfig, train

_BEST = "cross-entropy cond"  # the held-out metric that decides which weights are kept


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
    """Trains `model` in place; returns the averaged model and the journal's entries.

    The averaged weights with the lowest held-out cross-entropy are written to
    out/<component>.safetensors (fp16), unless the file's own is lower: a model of a few hundred
    images soon knows them by heart.
    """
    path = out / f"{component}.safetensors"

    def on_save(average: ARModel) -> Figures:
        figures = evaluate_target(average.as_target(), held_out, scales=())
        best = math.inf
        if path.exists():
            best = read_config(path).get("held_out", {}).get(_BEST, best)
        if figures[_BEST] <= best:
            save(path, average, {**average.settings(), "name": name, "held_out": figures})
        return figures

    forward = torch.compile(features, dynamic=False) if config.compile else features
    loss = ar_loss(model, data, forward=forward)
    average, journal = train(
        model, loss, len(data), config, out, name=component, on_save=on_save, resume=resume, log=log
    )
    if not path.exists():  # resumed when it had finished
        on_save(average)
    return average, journal
