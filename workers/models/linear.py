"""Linear layers that read half as many bytes on a CPU.

A pass of a few rows reads every weight once, and on a CPU its time is that of reading: MKL's
product of two rows takes five times as long as reading the weights once. FBGEMM's kernel reads
weights that were packed for it in float16 and computes in float32. The packed copy has the same
values, so products differ in the order of summation only. A row's product is the same in every
batch.

The weights of this project's own files are stored in float16. Those of bfloat16 have fewer digits
but a wider range: a few are too small for float16. Their copy is of the weight times a power of
two, and x is divided by it. Both are exact, with one exception: an x that becomes subnormal, below
2^-126 times the power, is rounded, which changes its products by 2^-134 at most. Neither the sums
nor the bias see the power, so none overflows because of it.
"""

from __future__ import annotations

import math
import warnings
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Most weights that a matrix may have to get a packed copy: else a large model's memory would grow
# by half.
MAX_PACKED = 2**22
_MAX_EXPONENT = 126  # of the power of two; its inverse is a normal number


class PackedWeight(NamedTuple):
    """A weight that was multiplied by a power of two and packed."""

    values: Tensor
    factor: float  # the inverse of the power, by which x is multiplied


def is_eager_on_cpu(x: Tensor) -> bool:
    """Whether a layer may compute its output of x by code for passes in float32 on a CPU that has
    no gradients, and no mixed precision.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    return x.is_cpu and x.dtype is torch.float32


class PackedLinear(nn.Linear):
    """A linear layer with a packed copy of its weight for passes without gradients in float32 on a
    CPU.

    The copy is made in the first such pass, and again when the weight has changed. There is none
    where float16 cannot hold the weight's values, neither as they are nor all multiplied by one
    power of two, where the matrix has more than `MAX_PACKED` of them, and on processors without
    FBGEMM.
    """

    _packed: PackedWeight | None = None
    _packed_from: tuple[Tensor | None, int] = (None, 0)  # the weight, and its version

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if is_eager_on_cpu(x):
            source, version = self._packed_from
            if source is not weight or weight._version != version:
                self._pack(weight)
            packed = self._packed
            if packed is not None and x.dim() > 1:
                if packed.factor != 1:
                    x = x * packed.factor
                return torch.fbgemm_linear_fp16_weight_fp32_activation(x, packed.values, self.bias)
        return F.linear(x, weight, self.bias)

    def _pack(self, weight: Tensor) -> None:
        """Make the copy. A weight that was made in inference mode gets none: it has no version,
        which shows changes.
        """
        if weight.is_inference():
            self._packed_from = (None, 0)
            self._packed = None
        else:
            self._packed_from = (weight, weight._version)
            self._packed = pack(weight)

    def __getstate__(self) -> dict[str, Any]:
        """What is copied or pickled: packed weights have no bytes of their own."""
        return {**self.__dict__, "_packed": None, "_packed_from": (None, 0)}


def pack(weight: Tensor) -> PackedWeight | None:
    """The packed copy of a weight [out, in]; None if there is none.

    The power of two is 1 if float16 holds the weight's values, and else the largest one with which
    it holds the largest of them. Values above float16's range get none: x times the power's inverse
    could overflow.
    """
    values = weight.detach()
    if (
        not 0 < values.numel() <= MAX_PACKED
        or not values.is_cpu
        or values.dtype is not torch.float32
        or not _has_kernel()
    ):
        return None
    largest = float(values.abs().max())
    if not math.isfinite(largest):
        return None
    exponent = 0
    if not _is_float16(values):
        exponent = min(16 - math.frexp(largest)[1], _MAX_EXPONENT)
        values = values * 2.0**exponent
        if exponent < 0 or not _is_float16(values):
            return None
    return PackedWeight(torch.fbgemm_pack_gemm_matrix_fp16(values), 2.0**-exponent)


def _is_float16(values: Tensor) -> bool:
    """Whether float16 holds these finite numbers."""
    return torch.equal(values.half().float(), values)


@cache
def _has_kernel() -> bool:
    """Whether this torch and this processor multiply by packed weights."""
    one = torch.ones(1, 1)
    try:
        with warnings.catch_warnings():  # torch warns once that it may remove them
            warnings.simplefilter("ignore")
            torch.fbgemm_linear_fp16_weight_fp32_activation(
                one, torch.fbgemm_pack_gemm_matrix_fp16(one), None
            )
    except (AttributeError, RuntimeError, TypeError):
        return False
    return True


def is_linear(head: nn.Module) -> bool:
    """Whether a head is one linear layer. Any other class, also a subclass of these two, may
    compute something else.
    """
    return type(head) is nn.Linear or type(head) is PackedLinear


def fp32_logits(head: nn.Module, features: Tensor) -> Tensor:
    """Logits [..., V] in fp32 of features [..., D] before a head.

    The products of a linear head, or of the last layer of a sequential one, are accumulated and
    kept in fp32: logits of 16 bits would often be equal, which widens top-k and decides an argmax.
    """
    if type(head) is nn.Sequential:
        features = head[:-1](features)
        head = head[-1]
    if features.dtype == torch.float32 or not is_linear(head):
        logits: Tensor = head(features).float()
        return logits
    assert isinstance(head, nn.Linear)
    return _linear_in_fp32(features, head.weight, head.bias)


def _linear_in_fp32(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`nn.functional.linear` in fp32, of x [..., D] and parameters of 16 bits."""
    # a CPU has no such product: each call copies the weight, 4 bytes an entry
    if x.device.type == "cpu":
        return F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    out = torch.mm(x.flatten(0, -2), weight.T, out_dtype=torch.float32).view(
        *x.shape[:-1], len(weight)
    )
    if bias is not None:
        out = out + bias
    return out
