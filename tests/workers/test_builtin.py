"""The built-in model: whole, small, and drawn by the real engine. Statistical checks fix their seed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from search_spaces.presets import PRESETS
from search_spaces.trial import DecodingConfig, Sampling
from workers.data.scenes import render, sample_attributes
from workers.decoding.engine import Engine, Result
from workers.decoding.sampling import guide, to_law
from workers.decoding.state import Job
from workers.metrics.caption_accuracy import caption_accuracy
from workers.metrics.features import load_features
from workers.models.families.scenes import BUILTIN, DRAFTERS, ScenesModels, load_scenes

LOOSE = {"neighbourhood": "additive", "k": 200, "delta": 0.4, "resampling": "paper"}
SMALL_DYNAMIC = {"policy": "dynamic", "depth": 3, "width": 2, "nodes": 5}  # a core has to pay for every node
SMALL_STATIC = {"policy": "static", "paths": [[0], [1], [0, 0], [0, 1]]}


@pytest.fixture(scope="module")
def models() -> ScenesModels:
    return load_scenes()


def chain(length: int, acceptance: object, drafter: str = "eagle") -> DecodingConfig:
    return DecodingConfig.from_mapping(
        {"drafter": drafter, "tree": {"policy": "chain", "length": length}, "acceptance": acceptance}
    )


def exact(tree: object, drafter: str) -> DecodingConfig:
    return DecodingConfig.from_mapping({"drafter": drafter, "tree": tree})


def draw(models: ScenesModels, config: DecodingConfig, jobs: list[Job], batch: int) -> dict[int, Result]:
    engine = Engine(models.target, config, models.drafter(config.drafter.kind), seed=3, batch_size=batch)
    return {result.job.caption_id: result for result in engine.run(jobs)}


def jobs_for(models: ScenesModels, count: int) -> list[Job]:
    return [Job(index, text) for index, text in enumerate(models.held_out_captions(count))]


def tokens_of(results: dict[int, Result]) -> Tensor:
    return torch.stack([results[key].tokens for key in sorted(results)])


def test_all_pieces_are_there_and_small(models: ScenesModels) -> None:
    assert sum(path.stat().st_size for path in BUILTIN.iterdir()) <= 20e6
    assert set(models.drafters) == set(DRAFTERS)
    assert models.target.codebook.shape == (1024, 8)
    assert models.target.grid.tokens == 144


@pytest.fixture(scope="module")
def plain(models: ScenesModels) -> dict[int, Result]:
    """Vanilla's images of 64 captions; several of these tests look at the first of them."""
    return draw(models, PRESETS["vanilla"], jobs_for(models, 64), 32)


def first(results: dict[int, Result], count: int) -> dict[int, Result]:
    return {key: results[key] for key in range(count)}


@pytest.mark.slow(seconds=170)
@pytest.mark.parametrize(
    ("config", "alone"), [(chain(5, LOOSE), 1), (PRESETS["vanilla"], 4)], ids=["relaxed chain", "vanilla"]
)
def test_64_captions_do_not_depend_on_batch_or_order(
    models: ScenesModels, plain: dict[int, Result], config: DecodingConfig, alone: int
) -> None:
    """fp32. A token could differ only where a rounding error of 1e-6 decides a race or an acceptance. Every `alone`-th
    caption is drawn alone as well.
    """
    jobs = jobs_for(models, 64)
    together = plain if config == PRESETS["vanilla"] else draw(models, config, jobs, 32)
    for batch, order in ((7, jobs[::-1]), (1, jobs[::alone])):
        for key, result in draw(models, config, order, batch).items():
            assert torch.equal(result.tokens, together[key].tokens)


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize(
    "config",
    [
        DecodingConfig.from_mapping({"drafter": "eagle", "tree": SMALL_STATIC, "acceptance": LOOSE}),
        DecodingConfig.from_mapping({"drafter": "eagle", "tree": SMALL_DYNAMIC, "acceptance": LOOSE}),
        PRESETS["gsd"],
    ],
    ids=["static tree", "dynamic tree", "grouped window"],
)
def test_trees_and_windows_do_not_depend_on_batch_or_order(models: ScenesModels, config: DecodingConfig) -> None:
    """The same of fewer captions, for what drafts otherwise than a chain."""
    jobs = jobs_for(models, 12)
    together = draw(models, config, jobs, 12)
    for batch, order in ((5, jobs[::-1]), (1, jobs[:2])):
        for key, result in draw(models, config, order, batch).items():
            assert torch.equal(result.tokens, together[key].tokens)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["speculative", "medusa", "eagle1", "eagle2", "adt", "sjd"])
def test_temperature_zero_draws_vanillas_tokens(models: ScenesModels, name: str) -> None:
    greedy = Sampling(temperature=0.0, cfg=3.0)
    jobs = jobs_for(models, 4)
    plain = draw(models, PRESETS["vanilla"].with_sampling(greedy), jobs, 4)
    fast = draw(models, PRESETS[name].with_sampling(greedy), jobs, 4)
    assert torch.equal(tokens_of(plain), tokens_of(fast))


def surprise(models: ScenesModels, tokens: Tensor, captions: list[str]) -> Tensor:
    """Mean -log q(token) of each image [n], in nats: q is the law that decoding samples from."""
    target = models.target
    prompt = target.encode(captions, guided=True)
    inputs = torch.cat([prompt.embeds, target.embed(tokens[:, :-1]).repeat(2, 1, 1)], dim=1)
    features = target.transformer(inputs, torch.arange(inputs.shape[1]))[:, target.prompt_len - 1 :]
    law = to_law(guide(target.head(features), target.sampling.cfg), target.sampling)
    return -law.gather(2, tokens[..., None])[..., 0].log().mean(1)


@pytest.mark.slow
def test_exact_images_are_as_surprising_as_vanillas_and_relaxed_ones_are_not(
    models: ScenesModels, plain: dict[int, Result]
) -> None:
    """Tokens drawn from q have its entropy as their mean surprise; relaxed ones have not. Paired over 32 captions;
    |t| > 4 has a false-alarm rate of 4e-4 per comparison.
    """
    jobs = jobs_for(models, 32)
    captions = [job.caption for job in jobs]
    vanillas = surprise(models, tokens_of(first(plain, 32)), captions)

    def t_value(config: DecodingConfig) -> float:
        gap = surprise(models, tokens_of(draw(models, config, jobs, 32)), captions) - vanillas
        return float(gap.mean() / (gap.std() / len(gap) ** 0.5))

    for policy in (SMALL_DYNAMIC, SMALL_STATIC):
        assert abs(t_value(exact(policy, "eagle"))) < 4
    assert abs(t_value(exact(SMALL_STATIC, "medusa"))) < 4
    assert abs(t_value(PRESETS["sjd"])) < 4
    assert abs(t_value(chain(5, LOOSE))) > 4


@pytest.mark.slow
def test_images_follow_their_captions(models: ScenesModels, plain: dict[int, Result]) -> None:
    """Far from chance: guessing every attribute at its most likely value is right less than half of the time."""
    jobs = jobs_for(models, 32)
    net = load_features()
    images = models.target.decode(tokens_of(first(plain, 32)))
    captions = [job.caption for job in jobs]
    assert caption_accuracy(net, net.extract(images), captions).value > 0.75
    real = render(sample_attributes(1, range(32)), 1, range(32))
    assert caption_accuracy(net, net.extract(real), captions).value > 0.95
