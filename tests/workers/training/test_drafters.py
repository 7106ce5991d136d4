"""The drafters' loss: what the layer reads, terms against formulas, shares of a batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recipes.distillation import GuidedDistillation, guided_loss
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.toys import BASE, ROW_ENDS, toy_target
from tests.oracles.drafter_rounds import CAPTIONS, CFG, open_batch
from workers.decoding.engine import Engine
from workers.decoding.row_ends import teacher_forced
from workers.decoding.sampling import apply_cfg
from workers.decoding.state import Request
from workers.drafters.eagle import EagleDrafter, EagleLayer
from workers.models.target import Prompt, Target
from workers.models.transformer import TransformerConfig
from workers.training.drafters import (
    Distillation,
    draft_levels,
    drafter_loss,
    encode_pairs,
    evaluate_drafter,
    feature_noise,
    head_logits,
    new_eagle,
    new_medusa,
    prompt_filler,
    slots,
)
from workers.training.examples import Examples
from workers.training.loop import ProcessGroup

CONFIGS: dict[str, TransformerConfig] = {
    "LlamaGen": replace(BASE, prompt_rope="zero"),
    "Chameleon": replace(BASE, rope="line", qk_norm=True),
    "Lumina": replace(ROW_ENDS, qk_norm=True),
}
PLAIN = Distillation(noise=0.0, caption_dropout=0.0)


def random_examples(target: Target, count: int = 12) -> Examples:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(target.vocab_size, (count, target.grid.tokens), generator=generator)
    return Examples([CAPTIONS[i % len(CAPTIONS)] for i in range(count)], tokens.int())


@pytest.mark.parametrize("name", CONFIGS)
def test_a_teacher_forced_pass_gives_the_features_of_decoding(name: str) -> None:
    """At temperature 0 each token is the likeliest under the features of the tokens before it,
    padding or not.
    """
    target = toy_target(config=CONFIGS[name], sampling=Sampling(temperature=0.0, cfg=1.0))
    requests = [Request(i, caption) for i, caption in enumerate(CAPTIONS)]
    drawn = {
        result.request: result.tokens
        for result in Engine(target, DecodingConfig(), batch_size=3).run(requests)
    }
    tokens = torch.stack([drawn[request] for request in requests]).clone()
    features = teacher_forced(target, target.encode(CAPTIONS, guided=False), tokens[:, :-1])
    assert torch.equal(target.head(features[:, target.prompt_len - 1 :]).argmax(-1), tokens)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_layer_is_trained_on_what_it_drafts_from(name: str) -> None:
    """The logits after any number of tokens are those of the drafter that has committed as many."""
    target = toy_target(config=CONFIGS[name])
    layer, data = new_eagle(target, 0), random_examples(target, len(CAPTIONS))
    captions, tokens = data.pick(torch.arange(len(data)), target.device)
    prompt = target.encode(captions, guided=True)
    with torch.no_grad():
        # [R, N - 1, V]
        ((trained, _),) = draft_levels(target, layer, encode_pairs(target, captions, tokens))
    trained = apply_cfg(trained, CFG)
    drafter = EagleDrafter(target, layer, filler=prompt_filler(target)).eval().requires_grad_(False)
    features = teacher_forced(target, prompt, tokens[:, :-1].repeat(2, 1))
    first, last = target.prompt_len, target.prompt_len - 1
    batch = open_batch(target, streams=2)
    drafter.prepare(batch, 2, 4)
    everyone = torch.arange(len(CAPTIONS))
    batch.admit(everyone, everyone, tokens[:, 0], prompt.valid)
    drafter.admit(everyone, prompt, CAPTIONS, features[:, :first], tokens[:, 0])
    torch.testing.assert_close(drafter.root_logits(batch), trained[:, 0], atol=1e-4, rtol=1e-4)
    for start, stop in ((1, 4), (4, 9)):
        emitted = torch.full((len(CAPTIONS),), stop - start)
        drafter.commit(
            batch, tokens[:, start:stop], features[:, last + start : last + stop], emitted
        )
        batch.commit(tokens[:, start:stop], emitted, tokens[:, stop - 1])
        batch.max_emitted = stop
        torch.testing.assert_close(
            drafter.root_logits(batch), trained[:, stop - 1], atol=1e-4, rtol=1e-4
        )


def published_loss(target: Target, data: Examples, layer: EagleLayer, *, null: bool) -> float:
    """SmoothL1 + 0.1 CE over all examples, without noise, slot by slot."""
    captions, tokens = data.pick(torch.arange(len(data)), target.device)
    prompt = target.encode(captions, guided=True)
    rows = slice(len(data), None) if null else slice(0, len(data))
    inputs = slots(target, Prompt(prompt.embeds[rows], prompt.valid[rows]), tokens)
    total, count = 0.0, 0
    with torch.no_grad():
        out = layer(inputs.embeddings, inputs.features, inputs.positions, inputs.mask)[
            :, -inputs.labels.shape[1] :
        ]
        for predicted, true in zip(
            out.flatten(0, 1).double(), inputs.labels.flatten(0, 1).double(), strict=True
        ):
            gap = (predicted - true).abs()
            distance = torch.where(gap < 1, gap.square() / 2, gap - 0.5).mean()
            weight = target.head.weight.double()
            q, p = (weight @ true).softmax(0), (weight @ predicted).softmax(0)
            total += float(distance - 0.1 * (q * p.log()).sum())
            count += 1
    return total / count


@pytest.mark.parametrize("null", [False, True])
def test_the_default_loss_is_the_published_one(null: bool) -> None:
    target = toy_target()
    layer, data = new_eagle(target, 0), random_examples(target, 5)
    loss = drafter_loss(target, layer, data, replace(PLAIN, caption_dropout=float(null)))
    expected = published_loss(target, data, layer, null=null)
    assert loss(torch.arange(5), torch.Generator()).item() == pytest.approx(expected, rel=1e-5)


def test_medusa_starts_as_the_targets_head() -> None:
    target = toy_target()
    captions, tokens = random_examples(target, 2).pick(torch.arange(2), target.device)
    inputs = encode_pairs(target, captions, tokens)
    features = inputs.features[:, target.prompt_len - 1 :]
    for shared in (True, False):
        rows = [
            logits
            for logits, _ in draft_levels(target, new_medusa(target, 3, shared_head=shared), inputs)
        ]
        assert [row.shape[1] for row in rows] == [15, 14, 13]
        torch.testing.assert_close(rows[2], target.head(features[:, :13]))


def test_shares_of_a_batch_come_to_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    target = toy_target()
    data, indices = random_examples(target), torch.tensor([7, 0, 3, 11])

    def gradient(
        group: ProcessGroup, config: Distillation | GuidedDistillation
    ) -> tuple[float, Tensor]:
        monkeypatch.setattr(ProcessGroup, "current", lambda: group)
        layer, generator = new_eagle(target, 0), torch.Generator().manual_seed(9)
        if isinstance(config, GuidedDistillation):
            value = guided_loss(target, layer, data, config)(indices, generator)
        else:
            value = drafter_loss(target, layer, data, config)(indices, generator)
        value.backward()  # type: ignore[no-untyped-call]
        assert layer.fc.weight.grad is not None
        return value.item(), layer.fc.weight.grad

    for config in (Distillation(caption_dropout=0.5), GuidedDistillation()):
        whole, one, two = (
            gradient(group, config)
            for group in (ProcessGroup(), ProcessGroup(0, 2), ProcessGroup(1, 2))
        )
        assert one[0] != pytest.approx(two[0], rel=1e-3)
        assert (one[0] + two[0]) / 2 == pytest.approx(whole[0], rel=1e-6)
        torch.testing.assert_close((one[1] + two[1]) / 2, whole[1], atol=1e-6, rtol=1e-4)


def test_noise_is_uniform_and_each_example_has_its_own() -> None:
    like = torch.zeros(20, 3000)
    noise = feature_noise(like, 5, 0.2)
    bound = 0.1 * 512 / 20
    assert float(noise.abs().max()) == pytest.approx(bound, rel=1e-2)
    assert float(noise.var()) == pytest.approx((2 * bound) ** 2 / 12, rel=2e-2)
    assert torch.equal(noise, feature_noise(like, 5, 0.2))
    assert not torch.equal(noise, feature_noise(like, 6, 0.2))


def test_figures_count_hits_under_the_guided_probabilities() -> None:
    target = toy_target(sampling=Sampling(cfg=3.0))
    data, layer = random_examples(target, 6), new_eagle(target, 0)
    figures = evaluate_drafter(target, layer, data, scales=(1.0, 3.0), batch=4)
    assert set(figures) == {
        f"{name}{suffix}" for name in ("top-1", "top-3", "TV") for suffix in ("", " cfg 3")
    }
    inputs = encode_pairs(target, *data.pick(torch.arange(6), target.device))
    with torch.no_grad():
        ((logits, _),) = draft_levels(target, layer, inputs)
        pair = [
            rows.view(2, -1, target.vocab_size)
            for rows in (logits, head_logits(target, inputs.labels))
        ]
    for suffix, scale in (("", 1.0), (" cfg 3", 3.0)):
        p, q = (rows[1] + scale * (rows[0] - rows[1]) for rows in pair)
        ranks = (p > p.gather(1, q.argmax(1, keepdim=True))).sum(1)
        assert figures[f"top-1{suffix}"] == pytest.approx(float((ranks == 0).float().mean()))
        assert figures[f"top-3{suffix}"] == pytest.approx(float((ranks < 3).float().mean()))
        variation = (p.softmax(1) - q.softmax(1)).abs().sum(1).mean() / 2
        assert figures[f"TV{suffix}"] == pytest.approx(float(variation), rel=1e-4)
