"""Published models without their files: the true shapes, and weights with which everything is
finite.
"""

from __future__ import annotations

import pytest
import torch

from benchmarks.random_models import NAMES, published_shape, randomise
from workers.models.transformer import rotation_table

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", NAMES)
def test_targets_have_the_published_shapes(name: str) -> None:
    """A randomised one is finite, its rotations true, its norms 1."""
    whole, tiny = (
        published_shape(name, torch.bfloat16),
        published_shape(name, torch.bfloat16, tiny=True),
    )
    assert whole.embed.weight.is_meta
    assert whole.codec is not None
    assert (tiny.grid, tiny.prompt_len, tiny.sampling) == (
        whole.grid,
        whole.prompt_len,
        whole.sampling,
    )
    target = randomise(tiny, CPU)
    assert all(bool(value.isfinite().all()) for value in target.state_dict().values())
    body = target.transformer
    assert torch.equal(body.get_buffer("rotations"), rotation_table(body.config))
    assert torch.equal(body.get_parameter("norm.weight"), torch.ones(64, dtype=torch.bfloat16))
    assert 0.019 < float(target.embed.weight.float().std()) < 0.021
    prompt = target.encode(["0"], guided=True)
    assert prompt.embeds.shape == (2, target.prompt_len, 64)


def test_a_shrunk_target_draws_images_of_any_grid() -> None:
    target = randomise(
        published_shape("llamagen-xl-stage1", torch.float32, tiny=True, rows=3, cols=5), CPU
    )
    assert target.grid.tokens == 15
    image = target.decode(torch.arange(15)[None])
    assert image.shape == (1, 3, 6, 10)
    assert bool(image.isfinite().all())
