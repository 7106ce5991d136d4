"""Images of two grids: whole images of a lossless chain and window follow the target's
distribution.

The target is a tiny GLM-Image: a preview of one code, then 2 x 2 codes, each of three, so there are
243 images. Their probabilities come from one causal pass of the model over all of them; 4,000 drawn
images of each setting are compared with them by chi-square. A test fails at p < 1e-5, so a correct
engine would fail for one seed in 30,000, and the seed is fixed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import nn

from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.tiny_foreign import glm_image
from tests.fakes.toys import toy_drafter
from tests.oracles import tabular
from workers.data.grid import Grid
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.models.families import glm_image as family
from workers.models.masks import causal_padding_mask
from workers.models.target import Prompt, Target

CODES, DRAWS, ALARM = 3, 4_000, 1e-5
CAPTION = "a cat"
SAMPLING = Sampling(temperature=2.0, top_p=0.95, cfg=1.0)
SETTINGS = {
    "vanilla": {"drafter": "none"},
    "chain": {"drafter": "eagle", "tree": {"policy": "chain", "length": 3}},
    "window": {"drafter": "jacobi", "tree": {"policy": "chain", "length": 3}},
}


class OnePrompt(nn.Module):
    """A conditioner that reads one caption once."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.prompt: Prompt = inner([CAPTION])

    def forward(self, captions: Sequence[str]) -> Prompt:
        count = len(captions)
        return Prompt(self.prompt.embeds.expand(count, -1, -1), self.prompt.valid.expand(count, -1))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder = tmp_path_factory.mktemp("two_grids")
    torch.manual_seed(0)
    glm_image(folder, CODES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(family, "_PREVIEW_SIDE", 1)
        processor = str(folder / "processor")
        made = family.GlmImage(
            str(folder), processor=processor, width=64, height=64, prompt_tokens=20
        )
        target = made.load(torch.device("cpu"), torch.float32)
    assert target.grid == Grid(2, 2, (1, 1))
    with torch.inference_mode():
        target.conditioner = OnePrompt(target.conditioner)
    return target


@torch.inference_mode()
def distribution(target: Target) -> np.ndarray:
    """The probability of each image, by one causal pass over all of them."""
    length = target.grid.tokens
    images = torch.cartesian_prod(*[torch.arange(CODES)] * length)
    prompt = target.encode([CAPTION] * len(images), guided=False)
    x = torch.cat([prompt.embeds, target.embed(images)], dim=1)
    seen = torch.nn.functional.pad(prompt.valid, (0, length), value=True)
    order = torch.arange(x.shape[1])
    logits = target.head(target.transformer(x, order, mask=causal_padding_mask(seen)))
    logits = logits[:, target.prompt_len - 1 : -1].double().numpy()
    joint = np.ones(len(images))
    for place in range(length):
        probs = tabular.processed(logits[:, place], SAMPLING)
        joint *= probs[np.arange(len(images)), images[:, place].numpy()]
    return joint


@pytest.mark.parametrize("name", SETTINGS)
def test_images_follow_the_targets_distribution(target: Target, name: str) -> None:
    config = DecodingConfig.from_mapping(SETTINGS[name]).with_sampling(SAMPLING)
    drafter = toy_drafter("eagle", target) if name == "chain" else None
    engine = Engine(target, config, drafter, batch_size=DRAWS)
    results = list(engine.run(Request(number, CAPTION) for number in range(DRAWS)))
    weights = CODES ** torch.arange(target.grid.tokens - 1, -1, -1)
    cells = torch.stack([result.tokens for result in results]) @ weights
    counts = torch.bincount(cells, minlength=CODES**target.grid.tokens).numpy().astype(float)
    probs = distribution(target)
    assert (probs > 0.002).sum() > 30, "many images must be likely"
    assert tabular.p_value(counts, probs) > ALARM
    if name != "vanilla":
        passes = sum(result.statistics.passes for result in results)
        assert passes < 0.9 * DRAWS * (target.grid.tokens - 1), "drafts must be accepted"
