"""The training loop: deterministic batches, two optimisers, averaged weights, checkpoints that resume exactly.

It is the same loop for one process and for a team of them: then each gets a share of every batch (the loss sees to it),
gradients are averaged, and the first process alone writes and reports.
"""

from __future__ import annotations

import copy
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from workers.training.optim import build_optimisers, trapezoid
from workers.training.process_group import SINGLE_PROCESS, ProcessGroup

#: Loss of the examples `indices` [batch]; the generator serves every random choice inside (dropped captions, noise).
LossFunction = Callable[[Tensor, torch.Generator], Tensor]
Figures = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How long and how fast to train. Rates are peaks; over the last share `decay` of the steps they fall to zero.

    optimiser: Muon for matrices at `matrix_lr` and AdamW for the rest at `other_lr`, or AdamW for all at `other_lr`.
    clip bounds the norm of all gradients, clip_value each entry of them; 0 is no bound. ema 0: no average is kept.
    """

    steps: int
    batch: int = 32
    matrix_lr: float = 3e-3
    other_lr: float = 3e-3
    weight_decay: float = 0.01
    warmup: int = 60
    decay: float = 0.3
    clip: float = 1.0
    clip_value: float = 0.0
    optimiser: Literal["muon", "adamw"] = "muon"
    ema: float = 0.995
    seed: int = 0
    bf16: bool = True
    compile: bool = False
    save_every: int = 200
    log_every: int = 50

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 1:
            raise ValueError(
                f"training needs at least 1 step and 1 example per batch, got steps={self.steps}, batch={self.batch}"
            )
        if not 0 <= self.decay <= 1 or not 0 <= self.ema < 1:
            raise ValueError(f"decay must lie in [0, 1] and ema in [0, 1), got decay={self.decay}, ema={self.ema}")


@dataclass(slots=True)
class Progress:
    """What a run has done so far: one loss per step, and held-out figures by step."""

    losses: list[float] = field(default_factory=list)
    held_out: dict[int, Figures] = field(default_factory=dict)


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, size: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


def batch_indices(seed: int, step: int, batch: int, size: int) -> Tensor:
    """The examples [batch] of a step, by its arguments alone; every epoch is one permutation of all `size`."""
    places = torch.arange(step * batch, (step + 1) * batch)
    epochs, within = places // size, places % size
    picked = [_order(seed, int(e), size)[within[epochs == e]] for e in epochs.unique()]  # type: ignore[no-untyped-call]
    return torch.cat(picked)


def train(
    model: nn.Module,
    loss_of: LossFunction,
    size: int,
    config: TrainConfig,
    *,
    name: str,
    checkpoint: Path | None = None,
    resume: bool = False,
    on_save: Callable[[nn.Module], Figures] | None = None,
    log: Callable[[str], None] = print,
    journal: Path | None = None,
    group: ProcessGroup = SINGLE_PROCESS,
) -> tuple[nn.Module, Progress]:
    """Trains the parameters of `model` that need gradients on `size` examples; returns the averaged model too.

    `on_save` gets the averaged model every `save_every` steps and at the end (to evaluate and export it) and returns
    held-out figures. With `checkpoint`, the state is stored there as often; `resume` goes on from it, on the same curve
    as an undisturbed run. `journal` gets a JSON line for every step with its loss and for every save with its held-out
    figures; a resumed run first cuts it back to its checkpoint. In a `team`, `loss_of` is given the whole batch and
    takes its share, so that its random numbers do not depend on the team's size.

    Raises:
        ValueError: no examples; `resume` without a checkpoint file; a loss that is not finite.
    """
    if size < 1:
        raise ValueError(f"{name}: no training examples")
    optimisers = build_optimisers(
        model, config.matrix_lr, config.other_lr, config.weight_decay, only_adamw=config.optimiser == "adamw"
    )
    average, progress = copy.deepcopy(model), Progress()
    if resume:
        progress = _restore(checkpoint, name, model, average, optimisers)
    noted = journal if group.is_main else None
    if noted is not None:
        _rewrite(noted, progress)
    start, began = len(progress.losses), time.monotonic()
    trainable: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    averaged: list[Tensor] = [p for p in average.parameters() if p.requires_grad]
    device, waiting = trainable[0].device, list[Tensor]()
    for step in range(start, config.steps):
        rate = trapezoid(step, config.steps, config.warmup, config.decay)
        for optimiser in optimisers:
            for param_group in optimiser.param_groups:
                param_group["lr"] = param_group["peak_lr"] * rate
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        with torch.autocast(device.type, torch.bfloat16, enabled=config.bf16):
            loss = loss_of(batch_indices(config.seed, step, config.batch, size), generator)
        loss.backward()  # type: ignore[no-untyped-call]
        waiting.append(loss.detach())
        group.average([waiting[-1], *(p.grad for p in trainable if p.grad is not None)])
        _bound(trainable, config)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        # Early on the average must forget the initial weights quickly.
        with torch.no_grad():
            torch._foreach_lerp_(averaged, trainable, 1 - min(config.ema, (step + 1) / (step + 10)))
        saving = (step + 1) % config.save_every == 0 or step + 1 == config.steps
        if saving or (step + 1) % config.log_every == 0:  # losses are read rarely: reading waits for the device
            _collect(name, waiting, progress, noted)
            if group.is_main:
                log(_line(name, progress, config, start, began, rate))
        if saving and group.is_main:
            if on_save is not None:
                _measured(name, step + 1, on_save(average), progress, noted, log)
            if checkpoint is not None:
                _store(checkpoint, model, average, optimisers, progress)
    return average, progress


def _bound(parameters: list[Tensor], config: TrainConfig) -> None:
    if config.clip:
        nn.utils.clip_grad_norm_(parameters, config.clip)
    if config.clip_value:
        nn.utils.clip_grad_value_(parameters, config.clip_value)


def _measured(
    name: str, step: int, figures: Figures, progress: Progress, journal: Path | None, log: Callable[[str], None]
) -> None:
    """Held-out figures into `progress`, the journal and the log."""
    progress.held_out[step] = figures
    if figures:
        log(f"{name} step {step} held out: " + ", ".join(f"{k} {v:.4f}" for k, v in figures.items()))
        _note(journal, [{"step": step, **figures}])


def _collect(name: str, waiting: list[Tensor], progress: Progress, journal: Path | None) -> None:
    """Moves the losses of the last steps from the device into `progress` and the journal."""
    values = torch.stack(waiting).tolist()
    waiting.clear()
    bad = next((i for i, value in enumerate(values) if not math.isfinite(value)), None)
    if bad is not None:
        step = len(progress.losses) + bad
        raise ValueError(f"{name}: the loss is {values[bad]} at step {step}; lower matrix_lr and other_lr")
    _note(journal, [{"step": len(progress.losses) + i, "loss": value} for i, value in enumerate(values, start=1)])
    progress.losses += values


def _note(journal: Path | None, entries: list[dict[str, float]]) -> None:
    if journal is not None:
        with journal.open("a", encoding="utf-8") as lines:
            lines.write("".join(json.dumps(entry) + "\n" for entry in entries))


def _rewrite(journal: Path, progress: Progress) -> None:
    """The journal as it was when `progress` was stored: what a killed run did after that is done again."""
    entries: list[dict[str, float]] = []
    for step, loss in enumerate(progress.losses, start=1):
        entries.append({"step": step, "loss": loss})
        if figures := progress.held_out.get(step):
            entries.append({"step": step, **figures})
    journal.parent.mkdir(parents=True, exist_ok=True)
    journal.write_text("", encoding="utf-8")
    _note(journal, entries)


def _line(name: str, progress: Progress, config: TrainConfig, start: int, began: float, rate: float) -> str:
    step = len(progress.losses)
    seconds = (time.monotonic() - began) / (step - start)
    recent = progress.losses[-config.log_every :]
    left = (config.steps - step) * seconds / 60
    return (
        f"{name} step {step}/{config.steps} loss {sum(recent) / len(recent):.4f} rate x{rate:.2f} "
        f"{config.batch / seconds:.0f} examples/s, {left:.1f} min left"
    )


def _store(
    path: Path, model: nn.Module, average: nn.Module, optimisers: list[torch.optim.Optimizer], progress: Progress
) -> None:
    """Writes the checkpoint beside its place, then moves it there, so that a killed run leaves a whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "model": model.state_dict(),
        "average": average.state_dict(),
        "optimisers": [optimiser.state_dict() for optimiser in optimisers],
        "losses": progress.losses,
        "held_out": progress.held_out,
    }
    beside = path.with_name(path.name + ".part")
    torch.save(state, beside)
    os.replace(beside, path)


def _restore(
    path: Path | None, name: str, model: nn.Module, average: nn.Module, optimisers: list[torch.optim.Optimizer]
) -> Progress:
    if path is None or not path.exists():
        raise ValueError(f"{name}: nothing to resume, there is no checkpoint at {path}; start without --resume")
    state = torch.load(path, weights_only=True, map_location="cpu")
    model.load_state_dict(state["model"])
    average.load_state_dict(state["average"])
    for optimiser, saved in zip(optimisers, state["optimisers"], strict=True):
        optimiser.load_state_dict(saved)
    return Progress(state["losses"], state["held_out"])
