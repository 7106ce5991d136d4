"""Packed weights give the products of the layer's own, and follow them."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workers.models import linear
from workers.models.linear import PackedLinear
from workers.models.transformer import RMSNorm, Transformer, TransformerConfig

pytestmark = pytest.mark.filterwarnings("error")


TYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def layer(
    outputs: int = 96,
    inputs: int = 40,
    *,
    bias: bool = False,
    seed: int = 0,
    dtype: torch.dtype = torch.float16,
) -> PackedLinear:
    """A layer whose weight has values of a type: float16, as the project's own files do, or
    bfloat16, two of them too small for float16.
    """
    torch.manual_seed(seed)
    made = PackedLinear(inputs, outputs, bias=bias)
    if dtype is torch.bfloat16:
        made.weight.data[0, :2] = torch.tensor([1.5e-9, -7.6e-6])
    made.weight.data.copy_(made.weight.data.to(dtype))
    return made


def plain(module: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, module.weight, module.bias)


def has_packed_copy(module: PackedLinear) -> bool:
    with torch.no_grad():
        module(torch.zeros(1, module.in_features))
    return module._packed is not None


def factor_of(module: PackedLinear) -> float:
    """What x is multiplied by before the packed product."""
    assert module._packed is not None
    return module._packed.factor


needs_kernel = pytest.mark.skipif(
    not has_packed_copy(layer()), reason="no FBGEMM on this processor"
)


@needs_kernel
@TYPES
@pytest.mark.parametrize("bias", [False, True])
def test_the_packed_product_is_the_plain_one_up_to_rounding(bias: bool, dtype: torch.dtype) -> None:
    module = layer(bias=bias, dtype=dtype)
    inputs = [torch.randn(shape) for shape in ((40,), (1, 40), (2, 1, 40), (3, 70, 40))]
    for x in (*inputs, torch.randn(6, 5, 80)[::2, :, ::2]):
        with torch.no_grad():
            torch.testing.assert_close(module(x), plain(module, x))
    assert module._packed is not None


@needs_kernel
@TYPES
def test_a_row_has_the_same_product_in_every_batch(dtype: torch.dtype) -> None:
    module, x = layer(300, 170, dtype=dtype), torch.randn(64, 170)
    with torch.inference_mode():
        products = module(x)
        for start, rows in ((0, 1), (7, 2), (20, 13), (1, 63)):
            assert torch.equal(module(x[start : start + rows]), products[start : start + rows])


@needs_kernel
def test_changed_weights_are_packed_again() -> None:
    module, x = layer(), torch.randn(2, 40)
    other = layer(seed=1)

    def check() -> None:
        with torch.inference_mode():
            torch.testing.assert_close(module(x), plain(module, x))

    check()
    with torch.no_grad():
        module.weight.mul_(2)
    check()
    module.load_state_dict(other.state_dict())
    check()
    module.weight = nn.Parameter(layer(seed=2).weight.detach())
    check()
    assert factor_of(module) == 1
    with torch.no_grad():
        module.weight.copy_(layer(seed=3, dtype=torch.bfloat16).weight)
    check()
    assert factor_of(module) == 2.0**-18
    with torch.no_grad():
        module.weight.mul_(2.0**-8)
    check()
    assert factor_of(module) == 2.0**-26
    module.load_state_dict(other.state_dict())
    check()
    assert factor_of(module) == 1
    with torch.no_grad():
        module.weight.add_(1e-6)
    check()
    assert module._packed is None


HALF_LARGEST, HALF_NORMAL, HALF_SUBNORMAL = 65504.0, 2.0**-14, 2.0**-24
BFLOAT_NORMAL, BFLOAT_SUBNORMAL = 2.0**-126, 2.0**-133


@needs_kernel
@pytest.mark.parametrize(
    ("values", "exponent"),
    [
        ((0.0, -0.0), 0),
        ((HALF_LARGEST, HALF_NORMAL, -HALF_SUBNORMAL), 0),
        ((1.0, HALF_SUBNORMAL / 2), 15),
        ((1.9921875, 255 * 2.0**-39), 15),
        ((-32752.0, HALF_SUBNORMAL / 2), 1),
        ((1.0, 2.0**-39), 15),
        ((HALF_SUBNORMAL / 2, 0.0), 40),
        ((BFLOAT_NORMAL, -BFLOAT_SUBNORMAL), 126),
        ((BFLOAT_SUBNORMAL, 0.0), 126),
    ],
)
def test_weights_are_multiplied_by_a_power_of_two_if_they_must(
    values: tuple[float, ...], exponent: int
) -> None:
    """Each product with a row of the identity is the weight itself, to the last bit."""
    module = PackedLinear(8, 5, bias=False)
    weight = torch.tensor(values * 20)[:40].view(5, 8)
    module.weight.data.copy_(weight)
    with torch.inference_mode():
        found = module(torch.eye(8))
    assert factor_of(module) == 2.0**-exponent
    assert torch.equal(found, weight.T)
    assert torch.equal(module.weight, weight)


@pytest.mark.parametrize(
    "values",
    [
        (1 / 3,),
        (1.0, 2.0**-40),
        (1.0, BFLOAT_NORMAL),
        (1.0, BFLOAT_SUBNORMAL),
        (HALF_LARGEST, HALF_SUBNORMAL / 2),
        (65536.0,),
        (torch.finfo(torch.bfloat16).max,),
        (2.0**-127, 2.0**-149),
        (float("inf"),),
        (-float("inf"), 2.0**-30),
        (float("nan"),),
    ],
)
def test_weights_that_float16_cannot_hold_are_not_packed(values: tuple[float, ...]) -> None:
    module = layer()
    module.weight.data[3, : len(values)] = torch.tensor(values)
    weight = module.weight.clone()
    assert not has_packed_copy(module)
    torch.testing.assert_close(module.weight, weight, rtol=0, atol=0, equal_nan=True)
    x = torch.randn(2, 40)
    with torch.inference_mode():
        torch.testing.assert_close(module(x), plain(module, x), rtol=0, atol=0, equal_nan=True)


@needs_kernel
@pytest.mark.parametrize("scale", [1e-44, 1e-36, 1e36, 3e38, float("inf"), float("nan")])
def test_a_power_of_two_costs_no_range(scale: float) -> None:
    """A sum overflows only where the plain one does, and products of x's that become subnormal
    change by less than the smallest normal number.
    """
    module, x = layer(bias=True, dtype=torch.bfloat16), scale * torch.eye(40)
    with torch.inference_mode():
        found = module(x)
        expected = plain(module, x)
    assert factor_of(module) == 2.0**-18
    torch.testing.assert_close(found, expected, atol=2.0**-126, rtol=1e-6, equal_nan=True)


def test_large_matrices_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "MAX_PACKED", 96 * 40 - 1)
    assert not has_packed_copy(layer())


def test_gradients_and_other_types_take_the_plain_product() -> None:
    module, x = layer(), torch.randn(2, 40, requires_grad=True)
    has_packed_copy(module)
    out = module(x)
    assert torch.equal(out, plain(module, x))
    out.sum().backward()
    assert x.grad is not None
    assert module.weight.grad is not None
    with torch.inference_mode():
        half = module.to(torch.bfloat16)
        assert half(x.bfloat16()).dtype == torch.bfloat16
        assert module.to("meta")(x.to("meta")).is_meta


@TYPES
def test_copies_and_files_hold_no_packed_weights(dtype: torch.dtype) -> None:
    module = layer(dtype=dtype)
    has_packed_copy(module)
    assert list(module.state_dict()) == ["weight"]
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    for other in (copy.deepcopy(module), torch.load(file, weights_only=False)):
        assert other._packed is None
        assert torch.equal(other.weight, module.weight)
        with torch.inference_mode():
            torch.testing.assert_close(other(torch.ones(1, 40)), plain(module, torch.ones(1, 40)))


def test_a_torch_without_the_kernel_takes_the_plain_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    linear._has_kernel.cache_clear()
    monkeypatch.delattr(torch, "fbgemm_linear_fp16_weight_fp32_activation", raising=False)
    try:
        assert not has_packed_copy(layer())
    finally:
        linear._has_kernel.cache_clear()


def test_weights_made_in_inference_mode_take_the_plain_product() -> None:
    """They have no version that would tell of a change."""
    module = layer()
    has_packed_copy(module)
    with torch.inference_mode():
        module.weight = layer(seed=1).weight
    assert not has_packed_copy(module)


def test_training_and_decoding_agree_on_a_transformer() -> None:
    """With gradients, products are plain; without them, packed."""
    torch.manual_seed(0)
    model = Transformer(
        TransformerConfig(dim=32, n_layers=2, n_heads=4, ffn_dim=48, vocab_size=50, rows=4, cols=4)
    )
    model.half().float()
    x, positions = torch.randn(2, 9, 32), torch.arange(9)
    trained = model(x, positions)
    with torch.inference_mode():
        torch.testing.assert_close(model(x, positions), trained)


@pytest.mark.parametrize("scale", [0.0, 1e-4, 1.0, 1e4])
def test_the_norm_of_a_cpu_pass_is_torchs_up_to_rounding(scale: float) -> None:
    torch.manual_seed(0)
    norm, x = RMSNorm(160, 1e-5), scale * torch.randn(2, 5, 160)
    nn.init.uniform_(norm.weight)
    expected = norm(x)
    assert expected.requires_grad
    with torch.inference_mode():
        torch.testing.assert_close(norm(x), expected)
        half = norm.to(torch.bfloat16)(x.bfloat16())
    assert half.dtype == torch.bfloat16


@needs_kernel
def test_mixed_precision_multiplies_in_bfloat16() -> None:
    module, x = layer(), torch.randn(5, 40)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert module(x).dtype is torch.bfloat16
    assert module._packed is None
