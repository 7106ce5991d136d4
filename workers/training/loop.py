"""The training loop: deterministic batches, averaged weights, checkpoints that resume exactly.

With several processes, each computes the loss of its share of every batch, and gradients are
averaged. Only the main process writes files and logs. This module starts no process: the launcher
(Ray Train, torchrun) sets up `torch.distributed`.
"""

from __future__ import annotations

import copy
import json
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from workers.runtime.device import training_dtype

# The loss of the examples `indices` [batch]; all its random numbers (caption dropout, noise) come
# from the generator.
LossFunction = Callable[[Tensor, torch.Generator], Tensor]
Figures = dict[str, float]
Model = TypeVar("Model", bound=nn.Module)

# Fields of `TrainConfig` that a resumed run may change.
_FREE_FIELDS = ("bf16", "compile", "save_every", "log_every")
FIRST_LINE_S = 5.0  # time until the first line of the log
LINE_INTERVAL_S = 60.0  # longest time between two lines


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Hyperparameters of a training by AdamW; a subclass may have other optimisers or another
    schedule.

    The learning rate warms up linearly over `warmup` steps to its peak `rate`, stays there, and
    decays linearly to zero over the last fraction `decay` of the steps.
    """

    steps: int
    batch: int = 32
    rate: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.01
    warmup: int = 60
    decay: float = 0.3
    clip: float = 1.0  # bound of the norm of all gradients; 0: none
    clip_value: float = 0.0  # bound of each entry of the gradients; 0: none
    ema: float = 0.995  # decay of the averaged weights; 0: the average is the current weights
    seed: int = 0
    bf16: bool | None = None  # mixed precision; None: where the device has instructions for it
    compile: bool = False
    save_every: int = 200  # steps
    log_every: int = 50  # steps

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 1:
            raise ValueError(
                f"training needs at least 1 step and 1 example per batch, got steps={self.steps}, "
                f"batch={self.batch}"
            )
        if not 0 <= self.decay <= 1 or not 0 <= self.ema < 1:
            raise ValueError(
                f"decay must lie in [0, 1] and ema in [0, 1), got decay={self.decay}, "
                f"ema={self.ema}"
            )

    def optimisers(self, model: nn.Module, dtype: torch.dtype) -> list[torch.optim.Optimizer]:
        """The optimisers of all parameters that need gradients. Products are computed in
        `dtype`.
        """
        trainable = [p for p in model.parameters() if p.requires_grad]
        return [torch.optim.AdamW(trainable, self.rate, self.betas, weight_decay=self.weight_decay)]

    def learning_rate(self, step: int) -> float:
        """The fraction of the peak learning rate at 0-based `step`."""
        rise = (step + 1) / max(1, self.warmup)
        fall = (self.steps - step) / max(1.0, self.decay * self.steps)
        return min(1.0, rise, fall)

    def first_beta(self, step: int) -> float | None:
        """The first beta of AdamW at 0-based `step`; None: the first of `betas` at all steps."""
        return None


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """`rank` of `size` processes. The main process (rank 0) writes files and logs."""

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> ProcessGroup:
        """The group that torch.distributed has set up, or a single process."""
        if not dist.is_available() or not dist.is_initialized():
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def share(self, batch: int) -> slice:
        """This process's part of a batch.

        Raises:
            ValueError: the batch is not a multiple of `size`, so the mean over shares would differ
                from the batch's.
        """
        if batch % self.size:
            raise ValueError(
                f"a batch of {batch} cannot be shared evenly by {self.size} workers; make it a "
                "multiple"
            )
        own = batch // self.size
        return slice(self.rank * own, (self.rank + 1) * own)

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replaces each tensor by its mean over all processes; one transfer for all tensors of a
        dtype.
        """
        if self.size == 1:
            return
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        for members in by_dtype.values():
            flat: Tensor = _flatten_dense_tensors(members)  # type: ignore[no-untyped-call]
            dist.all_reduce(flat)
            flat.div_(self.size)
            means = _unflatten_dense_tensors(flat, members)  # type: ignore[no-untyped-call]
            torch._foreach_copy_(members, list(means))

    def barrier(self) -> None:
        """Waits for all processes."""
        if self.size > 1:
            dist.barrier()


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, size: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


def batch_indices(seed: int, step: int, batch: int, size: int) -> Tensor:
    """The example indices [batch] of a step, determined by the arguments; every epoch is one
    permutation of `size`.
    """
    positions = torch.arange(step * batch, (step + 1) * batch)
    epochs = positions // size
    within = positions % size
    parts = [
        _permutation(seed, epoch, size)[within[epochs == epoch]]
        for epoch in sorted(set(epochs.tolist()))
    ]
    return torch.cat(parts)


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
) -> tuple[Model, list[Figures]]:
    """Trains the parameters of `model` that need gradients on `size` examples; returns the averaged
    model and the journal's entries.

    `on_save` gets the averaged model every `save_every` steps and at the end (to evaluate and
    export it) and returns held-out metrics. At the same steps the state is saved to
    out/<name>.checkpoint.pt; `resume` continues from it if it exists, with the same losses as an
    uninterrupted run. out/<name>.journal.jsonl has one line per step with the loss, and one per
    save with the held-out metrics; a resumed run first removes the lines after its checkpoint. In a
    process group, `loss_of` gets the whole batch and selects its share, so that its random numbers
    do not depend on the number of processes.

    Raises:
        ValueError: no examples; a checkpoint of another config; a loss that is not finite.
    """
    if size < 1:
        raise ValueError(f"{name}: no training examples")
    out.mkdir(parents=True, exist_ok=True)
    group = ProcessGroup.current()
    run = _Run(model, config, name, out / f"{name}.journal.jsonl" if group.is_main else None)
    checkpoint = out / f"{name}.checkpoint.pt"
    if resume and checkpoint.exists():
        run.restore(checkpoint)
    if run.journal is not None:
        run.journal.write_text(
            "".join(json.dumps(entry) + "\n" for entry in run.entries), encoding="utf-8"
        )
        log(f"{name}: computing in {str(run.dtype).removeprefix('torch.')} ({run.dtype_reason})")
    pace = Pace(run.steps, config.log_every)
    losses: list[Tensor] = []  # on the device: a copy to the host waits for it, so it is rare
    for step in range(run.steps, config.steps):
        losses.append(run.backward(loss_of, size, step))
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
                log(f"{name} step {step + 1} held out: {_figures_text(figures)}")
                run.record([{"step": step + 1, **figures}])
            run.store(checkpoint)
    return run.average, run.entries


def _figures_text(figures: Figures) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in figures.items())


class Pace:
    """Times the steps of a run from step `first` on.

    A line is due at the end of the first step that ends `FIRST_LINE_S` after the start, then every
    `log_every` steps and every `LINE_INTERVAL_S` seconds. The first step, which may compile the
    model, does not count once there are others.
    """

    def __init__(
        self, first: int, log_every: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._first = first
        self._log_every = log_every
        self._clock = clock
        self._start = self._last_line = clock()
        self._first_end = self._start  # end of the first step
        self._interval = FIRST_LINE_S

    def line_is_due(self, done: int) -> bool:
        """Whether to log after `done` steps. Call it once, at the end of every step."""
        now = self._clock()
        if done == self._first + 1:
            self._first_end = now
        due = done % self._log_every == 0 or now - self._last_line >= self._interval
        if due:
            self._last_line = now
            self._interval = LINE_INTERVAL_S
        return due

    def describe(self, done: int, steps: int) -> str:
        """The mean time of a step after `done` steps, and the time that the rest of all `steps`
        takes.
        """
        count = done - self._first
        since, timed = self._start, count
        if count > 1:
            since, timed = self._first_end, count - 1
        seconds = (self._clock() - since) / timed
        return f"{1e3 * seconds:.0f} ms/step, {(steps - done) * seconds / 60:.1f} min left"


def _common_dtype(dtype: torch.dtype, reason: str, device: torch.device) -> tuple[torch.dtype, str]:
    """The dtype of all processes: replicas that compute in different ones would drift apart."""
    share = torch.tensor([float(dtype == torch.bfloat16)], device=device)
    ProcessGroup.current().average([share])
    if dtype == torch.bfloat16 and float(share) < 1:
        return torch.float32, "another process cannot compute in bfloat16"
    return dtype, reason


class _Run(Generic[Model]):
    """The state of a run: model, average, optimisers, and the journal's entries of the steps that
    are done.
    """

    def __init__(self, model: Model, config: TrainConfig, name: str, journal: Path | None) -> None:
        self.model = model
        self.average = copy.deepcopy(model)
        self.config = config
        self.name = name
        self.journal = journal
        self.steps = 0
        self.entries: list[Figures] = []
        self.trainable: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self.device = self.trainable[0].device
        self.dtype, self.dtype_reason = _common_dtype(
            *training_dtype(self.device, config.bf16), self.device
        )
        self.optimisers = config.optimisers(model, self.dtype)
        for group in (group for optimiser in self.optimisers for group in optimiser.param_groups):
            group["peak_lr"] = group["lr"]
        self.averaged: list[Tensor] = [p for p in self.average.parameters() if p.requires_grad]

    def backward(self, loss_of: LossFunction, size: int, step: int) -> Tensor:
        """The loss of a step on `size` examples, whose gradients are added to the parameters'."""
        config = self.config
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        is_mixed = self.dtype == torch.bfloat16
        with torch.autocast(self.device.type, torch.bfloat16, enabled=is_mixed):
            loss = loss_of(batch_indices(config.seed, step, config.batch, size), generator)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def update(self, step: int) -> None:
        """One step of the optimisers and of the averaged weights, from the parameters'
        gradients.
        """
        config = self.config
        rate = config.learning_rate(step)
        beta = config.first_beta(step)
        if config.clip:
            nn.utils.clip_grad_norm_(self.trainable, config.clip)
        if config.clip_value:
            nn.utils.clip_grad_value_(self.trainable, config.clip_value)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["peak_lr"] * rate
                if beta is not None and "betas" in group:
                    group["betas"] = (beta, group["betas"][1])
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        # A smaller decay in the first steps, so that the average forgets the initial weights
        # quickly.
        with torch.no_grad():
            torch._foreach_lerp_(
                self.averaged, self.trainable, 1 - min(config.ema, (step + 1) / (step + 10))
            )

    def copy_untrained(self) -> None:
        """Copies the model's buffers and frozen parameters to the averaged model."""
        trained = {name for name, p in self.model.named_parameters() if p.requires_grad}
        current = self.model.state_dict()
        average = self.average.state_dict()
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
                raise ValueError(
                    f"{self.name}: the loss is {value} at step {step}; lower the learning rate"
                )
        self.record(
            [
                {"step": step, "loss": value}
                for step, value in enumerate(values, start=self.steps + 1)
            ]
        )
        self.steps += len(values)

    def status(self, pace: Pace) -> str:
        """The line for the log."""
        config = self.config
        step = self.steps
        recent = [
            entry["loss"] for entry in self.entries[-2 * config.log_every :] if "loss" in entry
        ]
        recent = recent[-config.log_every :]
        return (
            f"{self.name} step {step}/{config.steps} loss {sum(recent) / len(recent):.4f} "
            f"rate x{config.learning_rate(step - 1):.2f}, {pace.describe(step, config.steps)}"
        )

    def store(self, path: Path) -> None:
        """Writes the checkpoint under another name and renames it, so that a killed run leaves no
        partial file.
        """
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
        earlier = state.get("config", {})
        settings = self.fixed_settings()
        if earlier.keys() != settings.keys():
            raise ValueError(
                f"{path}: written by another version of specfrontier; start without --resume"
            )
        for key, value in settings.items():
            if earlier[key] != value:
                raise ValueError(
                    f"{path}: this training was started with another {key} ({earlier[key]}, now "
                    f"{value}); use the same, or start again"
                )
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.steps = state["steps"]
        self.entries = state["journal"]

    def fixed_settings(self) -> dict[str, Any]:
        """The settings that the losses depend on; a resumed run must not change them."""
        return {key: value for key, value in asdict(self.config).items() if key not in _FREE_FIELDS}
