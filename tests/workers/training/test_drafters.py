"""The drafters' loss: what the layer reads, terms against formulas, unrolling, shares of a batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from recipes.optimisers import MuonConfig
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
    Drafter,
    Slots,
    combine,
    draft_levels,
    drafter_loss,
    encode_pairs,
    feature_noise,
    head_logits,
    new_eagle,
    new_medusa,
    prompt_filler,
    slots,
    soft_loss,
    unroll,
)
from workers.training.evaluate import evaluate_drafter
from workers.training.examples import Examples
from workers.training.job import train_drafter
from workers.training.process_group import ProcessGroup

CONFIGS: dict[str, TransformerConfig] = {
    "LlamaGen": replace(BASE, prompt_rope="zero"),
    "Chameleon": replace(BASE, rope="line", qk_norm=True),
    "Lumina": replace(ROW_ENDS, qk_norm=True),
}
PLAIN = Distillation(noise=0.0, caption_dropout=0.0)
GUIDED = Distillation(cross_entropy=0.5, variation=1.0, feature=0.1, levels=3, noise=0.0, guidance=(1.0, 4.0))


def random_examples(target: Target, count: int = 12) -> Examples:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(target.vocab_size, (count, target.grid.tokens), generator=generator)
    return Examples([CAPTIONS[i % len(CAPTIONS)] for i in range(count)], tokens.int())


@pytest.mark.parametrize("name", CONFIGS)
def test_a_teacher_forced_pass_gives_the_features_of_decoding(name: str) -> None:
    """At temperature 0 each token is the likeliest under the features of the tokens before it, padding or not."""
    target = toy_target(config=CONFIGS[name], sampling=Sampling(temperature=0.0, cfg=1.0))
    requests = [Request(i, caption) for i, caption in enumerate(CAPTIONS)]
    drawn = {result.request: result.tokens for result in Engine(target, DecodingConfig(), batch_size=3).run(requests)}
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
        ((trained, _),) = draft_levels(target, layer, encode_pairs(target, captions, tokens), 1)  # [R, N - 1, V]
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
        drafter.commit(batch, tokens[:, start:stop], features[:, last + start : last + stop], emitted)
        batch.commit(tokens[:, start:stop], emitted, tokens[:, stop - 1])
        batch.max_emitted = stop
        torch.testing.assert_close(drafter.root_logits(batch), trained[:, stop - 1], atol=1e-4, rtol=1e-4)


def published_loss(target: Target, data: Examples, layer: EagleLayer, *, null: bool) -> float:
    """SmoothL1 + 0.1 CE over all examples, without noise, slot by slot."""
    captions, tokens = data.pick(torch.arange(len(data)), target.device)
    prompt = target.encode(captions, guided=True)
    rows = slice(len(data), None) if null else slice(0, len(data))
    inputs = slots(target, Prompt(prompt.embeds[rows], prompt.valid[rows]), tokens)
    total, count = 0.0, 0
    with torch.no_grad():
        out = layer(inputs.embeddings, inputs.features, inputs.positions, inputs.mask)[:, -inputs.labels.shape[1] :]
        for predicted, true in zip(out.flatten(0, 1).double(), inputs.labels.flatten(0, 1).double(), strict=True):
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


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_the_guided_loss_compares_the_combined_probabilities_of_each_level(kind: str) -> None:
    target, low = toy_target(), 2.5
    drafter: Drafter = new_eagle(target, 0) if kind == "eagle" else new_medusa(target, 2)
    data, config = random_examples(target, 3), replace(GUIDED, levels=2, guidance=(low, low))
    inputs = encode_pairs(target, *data.pick(torch.arange(3), target.device))
    with torch.no_grad():
        loss = drafter_loss(target, drafter, data, config)(torch.arange(3), torch.Generator())
        teacher, expected = head_logits(target, inputs.labels), 0.0
        for j, (logits, predicted) in enumerate(draft_levels(target, drafter, inputs, 2)):
            p, q = ((1 - low) * x[3:] + low * x[:3] for x in (logits, teacher[:, j:]))
            p, q = p.softmax(-1), q.softmax(-1)
            term = -0.5 * (q * p.log()).sum(-1).mean() + (p - q).abs().sum(-1).mean() / 2
            if predicted is not None:
                term = term + 0.1 * nn.functional.smooth_l1_loss(predicted, inputs.labels[:, j:])
            expected += 0.8**j * float(term)
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_the_soft_loss_is_least_at_the_targets_own_probabilities() -> None:
    torch.manual_seed(0)
    teacher, scales = torch.randn(4, 5, 12), torch.tensor([1.0, 3.0])[:, None, None]
    probs = combine(teacher, scales).softmax(-1)
    assert torch.allclose(combine(teacher, scales)[0], teacher[0]), "scale 1 is the conditional stream alone"
    best = soft_loss(combine(teacher, scales), probs, GUIDED)
    for _ in range(20):
        noisy = teacher + 0.3 * torch.randn_like(teacher)
        assert soft_loss(combine(noisy, scales), probs, GUIDED) > best


def test_unrolled_levels_equal_drafting_step_by_step() -> None:
    torch.manual_seed(0)
    layer = EagleLayer(replace(BASE, n_layers=1, vocab_size=0, input_norm=False, final_norm=False)).eval()
    hidden = torch.zeros(9, dtype=torch.bool)
    hidden[:2] = True  # padding at the prompt's start
    mask = (torch.ones(9, 9, dtype=torch.bool).tril() & ~hidden | torch.eye(9, dtype=torch.bool)).expand(2, 1, 9, 9)
    inputs = Slots(torch.randn(2, 9, 32), torch.randn(2, 9, 32), mask, torch.zeros(0))
    embeddings, features, positions = inputs.embeddings, inputs.features, inputs.positions
    with torch.no_grad():
        outputs = unroll(layer, inputs, 4)
        torch.testing.assert_close(outputs[0], layer(embeddings, features, positions, mask), atol=1e-5, rtol=1e-4)
        for slot in range(6, 9):
            for level in range(2, 5):
                read = features[:, : slot + 1].clone()
                for t in range(slot - level + 2, slot + 1):  # drafted slots read the prediction of the slot before
                    read[:, t] = layer(embeddings[:, :t], read[:, :t], positions[:t], mask[..., :t, :t])[:, -1]
                end = slot + 1
                expected = layer(embeddings[:, :end], read, positions[:end], mask[..., :end, :end])[:, slot]
                torch.testing.assert_close(outputs[level - 1][:, slot], expected, atol=1e-5, rtol=1e-4)


def test_medusa_starts_as_the_targets_head() -> None:
    target = toy_target()
    captions, tokens = random_examples(target, 2).pick(torch.arange(2), target.device)
    inputs = encode_pairs(target, captions, tokens)
    features = inputs.features[:, target.prompt_len - 1 :]
    for shared in (True, False):
        rows = [logits for logits, _ in draft_levels(target, new_medusa(target, 3, shared_head=shared), inputs, 1)]
        assert [row.shape[1] for row in rows] == [15, 14, 13]
        torch.testing.assert_close(rows[2], target.head(features[:, :13]))


def test_shares_of_a_batch_come_to_the_whole_batch() -> None:
    target = toy_target()
    data, indices = random_examples(target), torch.tensor([7, 0, 3, 11])

    def gradient(group: ProcessGroup, config: Distillation) -> tuple[float, Tensor]:
        layer = new_eagle(target, 0)
        value = drafter_loss(target, layer, data, config, group=group)(indices, torch.Generator().manual_seed(9))
        value.backward()  # type: ignore[no-untyped-call]
        assert layer.fc.weight.grad is not None
        return value.item(), layer.fc.weight.grad

    for config in (Distillation(caption_dropout=0.5), GUIDED):
        whole, one, two = (
            gradient(group, config) for group in (ProcessGroup(), ProcessGroup(0, 2), ProcessGroup(1, 2))
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
    assert set(figures) == {f"{name}{suffix}" for name in ("top-1", "top-3", "TV") for suffix in ("", " cfg 3")}
    inputs = encode_pairs(target, *data.pick(torch.arange(6), target.device))
    with torch.no_grad():
        ((logits, _),) = draft_levels(target, layer, inputs, 1)
        pair = [rows.view(2, -1, target.vocab_size) for rows in (logits, head_logits(target, inputs.labels))]
    for suffix, scale in (("", 1.0), (" cfg 3", 3.0)):
        p, q = (rows[1] + scale * (rows[0] - rows[1]) for rows in pair)
        ranks = (p > p.gather(1, q.argmax(1, keepdim=True))).sum(1)
        assert figures[f"top-1{suffix}"] == pytest.approx(float((ranks == 0).float().mean()))
        assert figures[f"top-3{suffix}"] == pytest.approx(float((ranks < 3).float().mean()))
        variation = (p.softmax(1) - q.softmax(1)).abs().sum(1).mean() / 2
        assert figures[f"TV{suffix}"] == pytest.approx(float(variation), rel=1e-4)


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_training_brings_every_level_nearer_to_the_target(kind: str, tmp_path: Path) -> None:
    target = toy_target()
    data = random_examples(target, 32)
    drafter: Drafter = new_eagle(target, 0) if kind == "eagle" else new_medusa(target, 2)
    config = MuonConfig(steps=50, batch=8, warmup=5, save_every=25, log_every=25, bf16=False, ema=0.9)
    before = evaluate_drafter(target, drafter, data, levels=3)
    average = train_drafter(target, drafter, (data, data), config, GUIDED, tmp_path, log=lambda line: None)
    assert isinstance(average, type(drafter))
    after = evaluate_drafter(target, average, data, levels=3)
    assert (tmp_path / f"{kind}.safetensors").exists()
    for name in (name for name in before if name.startswith("TV")):
        assert after[name] < before[name]
