"""Optimisers and the learning-rate schedule: Muon for hidden matrices, AdamW for everything else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

_QUINTIC = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024: pushes singular values to about 1 in five steps


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz towards the nearest semi-orthogonal matrices of a batch [n, rows, cols], in bf16 (Muon)."""
    a, b, c = _QUINTIC
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    out: Tensor = x.mT if tall else x
    return out


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised, scaled to the root mean square of AdamW's (0.2 sqrt(max(rows, cols))).

    Matrices of one shape are stacked and updated together, which keeps the number of small products low.
    """

    def __init__(
        self, matrices: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(list(matrices), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            shapes: dict[tuple[int, ...], list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    shapes.setdefault(tuple(p.shape), []).append(p)
            for (rows, cols), members in shapes.items():
                self._update(members, group, 0.2 * max(rows, cols) ** 0.5)

    def _update(self, members: list[Tensor], group: dict[str, Any], scale: float) -> None:
        grads = [p.grad for p in members if p.grad is not None]
        momenta = [self.state[p].setdefault("momentum", torch.zeros_like(p)) for p in members]
        torch._foreach_lerp_(momenta, grads, 1 - group["momentum"])
        nesterov = torch._foreach_lerp(grads, momenta, group["momentum"])
        updates = orthogonalise(torch.stack(list(nesterov))).to(members[0].dtype).unbind()
        torch._foreach_mul_(members, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(members, list(updates), alpha=-group["lr"] * scale)


def build_optimisers(
    model: nn.Module, matrix_lr: float, other_lr: float, weight_decay: float, *, only_adamw: bool = False
) -> list[torch.optim.Optimizer]:
    """Muon on the matrices of linear layers, AdamW on embeddings, output heads, norms and biases.

    With `only_adamw`, AdamW on everything at `other_lr`, as EAGLE's authors train (betas 0.9 and 0.95). A parameter
    that needs no gradient is left out. Output heads are recognised by their name ("head").
    """
    if only_adamw:
        wanted = [p for p in model.parameters() if p.requires_grad]
        return _with_peaks([torch.optim.AdamW(wanted, other_lr, betas=(0.9, 0.95), weight_decay=weight_decay)])
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    linear = {id(m.weight): name for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    for p in model.parameters():
        if p.requires_grad:
            name = linear.get(id(p))
            (others if name is None or name.split(".")[-1] == "head" else matrices).append(p)
    made: list[torch.optim.Optimizer] = []
    if matrices:
        made.append(Muon(matrices, matrix_lr, weight_decay=weight_decay))
    if others:
        made.append(torch.optim.AdamW(others, other_lr, betas=(0.9, 0.98), weight_decay=0.0))
    return _with_peaks(made)


def _with_peaks(optimisers: list[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
    """The same; each group remembers the rate that schedules scale."""
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["peak_lr"] = group["lr"]
    return optimisers


def trapezoid(step: int, steps: int, warmup: int, decay: float) -> float:
    """Share of the peak rate at 0-based `step`: linear rise over `warmup`, flat, linear fall over `decay`."""
    rise = (step + 1) / max(1, warmup)
    fall = (steps - step) / max(1.0, decay * steps)
    return min(1.0, rise, fall)
