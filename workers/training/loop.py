"""The training loop: deterministic batches, two optimisers, averaged weights, checkpoints that resume exactly.

With several processes, each computes the loss of its share of every batch, and gradients are averaged. Only the main
process writes files and logs.
"""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from workers.runtime.device import training_dtype
from workers.training.optim import Muon
from workers.training.pace import Pace
from workers.training.process_group import SINGLE_PROCESS, ProcessGroup, common_dtype

#: Loss of the examples `indices` [batch]; the generator gives all its random numbers (caption dropout, noise).
LossFunction = Callable[[Tensor, torch.Generator], Tensor]
Figures = dict[str, float]
Model = TypeVar("Model", bound=nn.Module)

#: Fields of `TrainConfig` that a resumed run may change.
_FREE_FIELDS = ("bf16", "compile", "save_every", "log_every")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Hyperparameters of a training. Learning rates are peaks.

    optimiser: Muon for matrices at `matrix_lr` and AdamW for the rest at `other_lr`; or AdamW for all, at `other_lr`
    with `betas`. schedule: "trapezoid" and "cosine" warm up linearly over `warmup` steps; then the first is constant
    and decays linearly to zero over the last fraction `decay` of the steps, and the second decays to 2 % over all that
    are left. "one-cycle" (Smith & Topin 2018) rises over the fraction `rise` of the steps and cycles AdamW's first beta
    inversely, as torch's `OneCycleLR` does. clip bounds the norm of all gradients, clip_value each of their entries; 0
    is no bound. ema: decay of the averaged weights; 0: the average is the current weights. bf16: mixed precision, and
    Muon's iteration in bfloat16; None: where the device has instructions for it.
    """

    steps: int
    batch: int = 32
    matrix_lr: float = 3e-3
    other_lr: float = 3e-3
    weight_decay: float = 0.01
    schedule: Literal["trapezoid", "cosine", "one-cycle"] = "trapezoid"
    warmup: int = 60
    decay: float = 0.3
    rise: float = 0.1
    clip: float = 1.0
    clip_value: float = 0.0
    optimiser: Literal["muon", "adamw"] = "muon"
    betas: tuple[float, float] = (0.9, 0.95)
    ema: float = 0.995
    seed: int = 0
    bf16: bool | None = None
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
        if not 0 <= self.rise < 1:
            raise ValueError(f"rise must lie in [0, 1), got {self.rise}")


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, size: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


def batch_indices(seed: int, step: int, batch: int, size: int) -> Tensor:
    """The example indices [batch] of a step, determined by the arguments; every epoch is one permutation of `size`."""
    positions = torch.arange(step * batch, (step + 1) * batch)
    epochs, within = positions // size, positions % size
    parts = [_permutation(seed, epoch, size)[within[epochs == epoch]] for epoch in sorted(set(epochs.tolist()))]
    return torch.cat(parts)


def build_optimisers(model: nn.Module, config: TrainConfig, dtype: torch.dtype) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of linear layers and AdamW for embeddings, output heads ("head"), norms and biases; or
    AdamW for all. Parameters that need no gradient are left out. dtype: of Muon's iteration.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    if config.optimiser == "adamw":
        return [torch.optim.AdamW(trainable, config.other_lr, config.betas, weight_decay=config.weight_decay)]
    linear = {name: m.weight for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    hidden = {id(weight) for name, weight in linear.items() if name.split(".")[-1] != "head"}
    matrices = [p for p in trainable if id(p) in hidden]
    others = [p for p in trainable if id(p) not in hidden]
    optimisers: list[torch.optim.Optimizer] = []
    if matrices:
        optimisers.append(Muon(matrices, config.matrix_lr, dtype, weight_decay=config.weight_decay))
    if others:
        optimisers.append(torch.optim.AdamW(others, config.other_lr, betas=(0.9, 0.98), weight_decay=0.0))
    return optimisers


def learning_rate(step: int, config: TrainConfig) -> float:
    """Fraction of the peak learning rate at 0-based `step`; see `TrainConfig.schedule`."""
    if config.schedule == "one-cycle":
        low = 1 / 25 if step < _one_cycle_peak(config) else 1 / 25e4
        return low + (1 - low) * _one_cycle(step, config)
    rise = (step + 1) / max(1, config.warmup)
    if config.schedule == "cosine":
        done = max(0, step - config.warmup) / max(1, config.steps - config.warmup)
        fall = 0.02 + 0.49 * (1 + math.cos(math.pi * done))
    else:
        fall = (config.steps - step) / max(1.0, config.decay * config.steps)
    return min(1.0, rise, fall)


def _one_cycle_peak(config: TrainConfig) -> float:
    return config.rise * config.steps - 1


def _one_cycle(step: int, config: TrainConfig) -> float:
    """A half cosine from 0 at the first step to 1 at the peak, then to 0 at the last (`OneCycleLR`)."""
    peak = _one_cycle_peak(config)
    distance = (peak - step) / peak if step < peak else (step - peak) / (config.steps - 1 - peak)
    return (1 + math.cos(math.pi * distance)) / 2


def train(
    model: Model,
    loss_of: LossFunction,
    size: int,
    config: TrainConfig,
    out: Path,
    *,
    name: str,
    on_save: Callable[[Model], Figures] | None = None,
    resume: bool = False,
    log: Callable[[str], None] = print,
    group: ProcessGroup = SINGLE_PROCESS,
) -> tuple[Model, list[Figures]]:
    """Trains the parameters of `model` that need gradients on `size` examples; returns the averaged model and the
    journal's entries.

    `on_save` gets the averaged model every `save_every` steps and at the end (to evaluate and export it) and returns
    held-out metrics. At the same steps the state is saved to out/<name>.checkpoint.pt; `resume` continues from it if it
    exists, with the same losses as an uninterrupted run. out/<name>.journal.jsonl has one line per step with the loss,
    and one per save with the held-out metrics; a resumed run first removes the lines after its checkpoint. In a process
    group, `loss_of` gets the whole batch and selects its share, so that its random numbers do not depend on the number
    of processes.

    Raises:
        ValueError: no examples; a checkpoint of another config; a loss that is not finite.
    """
    if size < 1:
        raise ValueError(f"{name}: no training examples")
    out.mkdir(parents=True, exist_ok=True)
    run = _Run(model, config, name, out / f"{name}.journal.jsonl" if group.is_main else None)
    checkpoint = out / f"{name}.checkpoint.pt"
    if resume and checkpoint.exists():
        run.restore(checkpoint)
    if run.journal is not None:
        run.journal.write_text("".join(json.dumps(entry) + "\n" for entry in run.entries), encoding="utf-8")
        log(f"{name}: computing in {str(run.dtype).removeprefix('torch.')} ({run.dtype_reason})")
    pace = Pace(run.steps, config.log_every)
    losses: list[Tensor] = []  # on the device; copied to the host rarely, because a copy waits for the device
    for step in range(run.steps, config.steps):
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        with torch.autocast(run.device.type, torch.bfloat16, enabled=run.dtype == torch.bfloat16):
            loss = loss_of(batch_indices(config.seed, step, config.batch, size), generator)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
        group.average([losses[-1], *(p.grad for p in run.trainable if p.grad is not None)])
        run.update(step)
        saving = (step + 1) % config.save_every == 0 or step + 1 == config.steps
        if pace.line_is_due(step + 1) or saving:
            run.record_losses(losses)
            if group.is_main:
                log(run.status(pace))
        if saving and group.is_main:
            run.copy_untrained()
            if on_save is not None:
                figures = on_save(run.average)
                log(f"{name} step {step + 1} held out: " + ", ".join(f"{k} {v:.4f}" for k, v in figures.items()))
                run.record([{"step": step + 1, **figures}])
            run.store(checkpoint)
    return run.average, run.entries


class _Run(Generic[Model]):
    """The state of a run: model, average, optimisers, and the journal's entries of the steps that are done."""

    def __init__(self, model: Model, config: TrainConfig, name: str, journal: Path | None) -> None:
        self.model, self.average, self.config = model, copy.deepcopy(model), config
        self.name, self.journal, self.steps = name, journal, 0
        self.entries: list[Figures] = []
        self.trainable: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self.device = self.trainable[0].device
        self.dtype, self.dtype_reason = common_dtype(*training_dtype(self.device, config.bf16), self.device)
        self.optimisers = build_optimisers(model, config, self.dtype)
        for group in (group for optimiser in self.optimisers for group in optimiser.param_groups):
            group["peak_lr"] = group["lr"]
        self.averaged: list[Tensor] = [p for p in self.average.parameters() if p.requires_grad]

    def update(self, step: int) -> None:
        """One step of the optimisers and of the averaged weights, from the parameters' gradients."""
        config, rate = self.config, learning_rate(step, self.config)
        if config.clip:
            nn.utils.clip_grad_norm_(self.trainable, config.clip)
        if config.clip_value:
            nn.utils.clip_grad_value_(self.trainable, config.clip_value)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["peak_lr"] * rate
                if config.schedule == "one-cycle" and "betas" in group:
                    group["betas"] = (0.95 - 0.1 * _one_cycle(step, config), group["betas"][1])
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        # a smaller decay in the first steps, so that the average forgets the initial weights quickly
        with torch.no_grad():
            torch._foreach_lerp_(self.averaged, self.trainable, 1 - min(config.ema, (step + 1) / (step + 10)))

    def copy_untrained(self) -> None:
        """Copies the model's buffers and frozen parameters to the averaged model."""
        trained = {name for name, p in self.model.named_parameters() if p.requires_grad}
        current, average = self.model.state_dict(), self.average.state_dict()
        for name in current.keys() - trained:
            average[name].copy_(current[name])

    def record(self, entries: list[Figures]) -> None:
        """Adds entries to the journal."""
        self.entries += entries
        if self.journal is not None:
            with self.journal.open("a", encoding="utf-8") as lines:
                lines.writelines(json.dumps(entry) + "\n" for entry in entries)

    def record_losses(self, losses: list[Tensor]) -> None:
        """Moves the losses of the last steps from the device into the journal."""
        values = torch.stack(losses).tolist()
        losses.clear()
        for step, value in enumerate(values, start=self.steps):
            if not math.isfinite(value):
                raise ValueError(f"{self.name}: the loss is {value} at step {step}; lower matrix_lr and other_lr")
        self.record([{"step": step, "loss": value} for step, value in enumerate(values, start=self.steps + 1)])
        self.steps += len(values)

    def status(self, pace: Pace) -> str:
        """The line for the log."""
        config, step = self.config, self.steps
        recent = [entry["loss"] for entry in self.entries[-2 * config.log_every :] if "loss" in entry]
        recent = recent[-config.log_every :]
        return (
            f"{self.name} step {step}/{config.steps} loss {sum(recent) / len(recent):.4f} "
            f"rate x{learning_rate(step - 1, config):.2f}, {pace.describe(step, config.steps)}"
        )

    def store(self, path: Path) -> None:
        """Writes the checkpoint under another name and renames it, so that a killed run leaves no partial file."""
        state = {
            "config": self.fixed_settings(),
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "steps": self.steps,
            "journal": self.entries,
        }
        partial = path.with_name(path.name + ".part")
        torch.save(state, partial)
        os.replace(partial, path)

    def restore(self, path: Path) -> None:
        state = torch.load(path, weights_only=True, map_location="cpu")
        earlier, settings = state.get("config", {}), self.fixed_settings()
        if earlier.keys() != settings.keys():
            raise ValueError(f"{path} is of an earlier version; start without --resume")
        for key, value in settings.items():
            if earlier[key] != value:
                raise ValueError(
                    f"{path}: this training was started with another {key} ({earlier[key]}, now {value}); "
                    "use the same, or start again"
                )
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.steps, self.entries = state["steps"], state["journal"]

    def fixed_settings(self) -> dict[str, Any]:
        """The settings that the losses depend on; a resumed run must not change them."""
        return {key: value for key, value in asdict(self.config).items() if key not in _FREE_FIELDS}
