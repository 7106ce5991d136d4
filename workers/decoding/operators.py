"""Operators of torch that Python functions compute on a CPU.

As an operator a call is seen by the modes that trace or repeat a pass. `torch.library.custom_op`
does more, and a call takes three times as long: 110 us after a pass of the built-in model, whose
weights have displaced its code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

import torch
from torch import Tensor

_Arguments = ParamSpec("_Arguments")
_LIBRARY = torch.library.Library("specfrontier", "FRAGMENT")  # type: ignore[no-untyped-call]


def cpu_operator(
    schema: str,
) -> Callable[[Callable[_Arguments, Tensor]], Callable[_Arguments, Tensor]]:
    """Makes the decorated function the CPU's implementation of a new operator, which replaces
    it.
    """

    def define(function: Callable[_Arguments, Tensor]) -> Callable[_Arguments, Tensor]:
        name: str = _LIBRARY.define(schema)  # type: ignore[no-untyped-call]
        _LIBRARY.impl(name, function, "CPU")  # type: ignore[no-untyped-call]
        operator: Callable[_Arguments, Tensor] = getattr(
            torch.ops.specfrontier, name.split("(")[0]
        ).default
        return operator

    return define
