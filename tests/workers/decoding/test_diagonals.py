"""Diagonal decoding: its tokens against FlashAR's formulas spelled out, and whole images against
the product of their tokens' probs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from search_spaces.drafters import Vertical
from search_spaces.params import ConfigError
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.toys import BASE, ROW_ENDS, toy_branch, toy_target
from tests.oracles import diagonals, tabular
from workers.decoding.diagonals import DiagonalBatch
from workers.decoding.engine import Engine
from workers.decoding.rng import CounterRNG, Purpose, image_keys
from workers.decoding.state import Request
from workers.decoding.statistics import Result
from workers.drafters.vertical import VerticalHead
from workers.loading.models import Capabilities, Models
from workers.models.target import Target
from workers.models.transformer import TransformerConfig
from workers.models.vertical import VerticalBranch
from workers.training.vertical import new_vertical

ALARM = 1e-5
GUIDED, PLAIN = Sampling(cfg=2.0, top_k=9, top_p=0.9), Sampling(temperature=0.8)
GREEDY = Sampling(cfg=2.0, temperature=0.0)
CONFIGS = {
    "wide": replace(BASE, rows=3, cols=5),
    "tall": replace(BASE, rows=5, cols=2),  # more rows than are ever open at once
    "one column": replace(BASE, rows=3, cols=1),
    "row ends": replace(ROW_ENDS, rows=3, cols=4),
}
REQUESTS = [
    Request(number, text) for number, text in enumerate(["abc", "defgh", "i", "kk", "lmnop"])
]
Form = Literal["learned", "scalar", "half"]


def random_branch(target: Target, seed: int = 1, rank: int = 2) -> VerticalBranch:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return toy_branch(target, rank).eval().requires_grad_(False)


def decoded(
    target: Target, branch: VerticalBranch, config: DecodingConfig, batch: int = 2
) -> list[Result]:
    engine = Engine(target, config, VerticalHead(target, branch), batch_size=batch)
    return sorted(engine.run(REQUESTS), key=lambda result: result.request.caption_id)


def sampled(probs: Tensor, request: Request, sampling: Sampling) -> Sequence[int]:
    """Tokens [N] of their probs [N, V], with the random numbers of the image."""
    if sampling.temperature == 0:
        return probs.argmax(-1).tolist()
    rng = CounterRNG(image_keys(0, [request.caption_id], [request.sample]), len(probs))
    return rng.sample(Purpose.TARGET, probs[None].float(), torch.arange(len(probs))[None])[
        0
    ].tolist()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    ("sampling", "form"),
    [(GUIDED, "learned"), (PLAIN, "learned"), (GUIDED, "scalar"), (GREEDY, "half")],
    ids=["guided", "plain", "scalar", "greedy half"],
)
def test_tokens_and_passes_are_those_of_the_formulas(
    name: str, sampling: Sampling, form: Form
) -> None:
    """In batches of two of five images, so that later ones take the rows of others."""
    target = toy_target(config=CONFIGS[name])
    branch = random_branch(target)
    rows, cols = target.grid.rows, target.grid.cols
    for result in decoded(target, branch, DecodingConfig(Vertical(form), sampling=sampling)):
        tokens = result.tokens.tolist()
        probs = diagonals.token_probs(
            target, branch, result.request.caption, tokens, sampling, form
        )
        assert sampled(probs, result.request, sampling) == tokens
        assert result.statistics.passes + 1 == rows + cols - 1
        assert int(result.statistics.emitted.sum()) == rows * cols - 1


SMALL: TransformerConfig = replace(BASE, vocab_size=3, rows=2, cols=2)


@pytest.mark.parametrize("same", [False, True], ids=["random", "B = R"])
def test_whole_images_have_the_product_of_the_mixed_probs(same: bool) -> None:
    """Where the branch copies the last layer, norm and head and starts at its input, vertical
    logits are the horizontal ones of the same cell.
    """
    target, sampling = toy_target(config=SMALL, temper=1.0), Sampling(cfg=1.5)
    branch = new_vertical(target, 0, rank=0) if same else random_branch(target)
    if same:
        branch.start = target.transformer.config.n_layers - 1
        right, below = diagonals.predictions(
            target, branch, target.encode(["abcde"], guided=False).embeds[0], [0, 2, 1, 1]
        )
        torch.testing.assert_close(right, below)
    config = DecodingConfig(Vertical(), sampling=sampling)
    engine = Engine(target, config, VerticalHead(target, branch), batch_size=1500)
    weights = 3 ** torch.arange(3, -1, -1)
    images = torch.stack(
        [result.tokens for result in engine.run(Request(n, "ab") for n in range(6000))]
    )
    probs = diagonals.image_probs(target, branch, "ab", sampling)
    assert probs.sum() == pytest.approx(1)
    counts = np.bincount((images @ weights).numpy(), minlength=len(probs)).astype(float)
    assert tabular.p_value(counts, probs) > ALARM


@pytest.mark.parametrize("name", CONFIGS)
def test_an_image_does_not_depend_on_its_batch(name: str) -> None:
    target = toy_target(config=CONFIGS[name])
    config, branch = DecodingConfig(Vertical(), sampling=GUIDED), random_branch(target)
    alone, together = (decoded(target, branch, config, batch) for batch in (1, 3))
    for one, other in zip(alone, together, strict=True):
        assert one.tokens.equal(other.tokens)
        assert one.statistics.emitted.equal(other.statistics.emitted)


def test_other_settings_of_the_target_are_as_before() -> None:
    """The part changes a copy of the target's layers, and shares all other weights."""
    target = toy_target()
    before = {name: value.clone() for name, value in target.state_dict().items()}
    head = VerticalHead(target, random_branch(target))
    engine = Engine(target, DecodingConfig(Vertical(), sampling=GUIDED), head)
    list(engine.run(REQUESTS[:1]))
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())
    own, copied = target.transformer.state_dict(), head.body.state_dict()
    shared = {name for name in own if own[name].data_ptr() == copied[name].data_ptr()}
    assert shared == {name for name in own if "attention.w" not in name and "forward" not in name}
    unchanged = VerticalHead(target, random_branch(target, rank=0))
    assert unchanged.body is target.transformer


def test_without_row_ends_in_the_cache() -> None:
    target = toy_target(config=CONFIGS["row ends"])
    config = DecodingConfig(Vertical(), sampling=GUIDED)
    engine = Engine(target, config, VerticalHead(target, random_branch(target)))
    batch = engine.allocate(1)
    assert isinstance(batch, DiagonalBatch)
    assert batch.row_ends is None
    assert batch.image_column == target.prompt_len


def test_it_is_refused_without_its_head_and_for_images_of_one_row() -> None:
    target = toy_target()
    config = DecodingConfig(Vertical(), sampling=PLAIN)
    with pytest.raises(
        ValueError, match="drafter: this config needs the vertical drafter's weights"
    ):
        Engine(target, config)
    with pytest.raises(ConfigError, match="drafter: the target has no 'vertical' drafter"):
        Capabilities.of(Models(target, {})).check(config)
    flat = toy_target(config=replace(BASE, rows=1, cols=8))
    with pytest.raises(ConfigError, match=r"drafter: .*but the target's images have one"):
        Engine(flat, config, VerticalHead(flat, random_branch(flat)))


def test_it_is_never_lossless() -> None:
    config = DecodingConfig(Vertical())
    for sampling in (PLAIN, GREEDY):
        assert not any(
            config.with_sampling(sampling).is_lossless(sampling, cols) for cols in (None, 1, 12)
        )
