"""The training-time test of EAGLE-3: unrolled levels against drafting with a cache, its loss
against the formula, and a draft vocabulary of the most frequent codes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recipes.distillation import GuidedDistillation, guided_loss
from search_spaces.drafters import Eagle3
from search_spaces.trees import Chain
from search_spaces.trial import DecodingConfig
from tests.fakes.toys import BASE, ROW_ENDS, toy_eagle3, toy_target
from tests.oracles.drafter_rounds import CAPTIONS, CFG, open_batch
from tests.workers.training.test_drafters import random_examples
from tests.workers.training.test_job import QUICK, quiet
from workers.data.captions import Caption
from workers.decoding.build import load_drafter
from workers.decoding.engine import Engine
from workers.decoding.row_ends import teacher_forced
from workers.decoding.sampling import apply_cfg
from workers.decoding.state import Request
from workers.drafters.eagle3 import Eagle3Drafter
from workers.models.transformer import TransformerConfig
from workers.training.drafters import (
    UNROLLED,
    Distillation,
    draft_levels,
    drafted_probs,
    drafter_loss,
    encode_pairs,
    evaluate_drafter,
    frequent_codes,
    head_logits,
    new_eagle3,
    prompt_filler,
)
from workers.training.examples import Examples, sample_images
from workers.training.job import DrafterRecipe, train_by_recipe

SIZES: dict[str, TransformerConfig] = {
    "LlamaGen": replace(BASE, n_layers=7, prompt_rope="zero"),
    "Chameleon": replace(BASE, n_layers=7, rope="line", qk_norm=True),
    "Lumina": replace(ROW_ENDS, n_layers=7),
}


@pytest.mark.parametrize("name", SIZES)
def test_unrolled_levels_equal_drafting_with_a_cache(name: str) -> None:
    """Level j after any number of tokens is what the drafter proposes after a chain of j drafts."""
    target = toy_target(config=SIZES[name])
    layer, data = toy_eagle3(SIZES[name]), random_examples(target, len(CAPTIONS))
    captions, tokens = data.pick(torch.arange(len(data)), target.device)
    with torch.no_grad():
        levels = [
            logits
            for logits, _ in draft_levels(
                target, layer, encode_pairs(target, captions, tokens, layer.taps)
            )
        ]
    assert [logits.shape[1] for logits in levels] == [15 - j for j in range(UNROLLED)]
    drafter = (
        Eagle3Drafter(target, layer, filler=prompt_filler(target)).eval().requires_grad_(False)
    )
    prompt = target.encode(captions, guided=True)
    taps = teacher_forced(target, prompt, tokens[:, :-1].repeat(2, 1), layer.taps)[..., BASE.dim :]
    batch, everyone, last = (
        open_batch(target, streams=2),
        torch.arange(len(CAPTIONS)),
        target.prompt_len - 1,
    )
    drafter.prepare(batch, UNROLLED, UNROLLED)
    batch.admit(everyone, everyone, tokens[:, 0], prompt.valid)
    drafter.admit(everyone, prompt, CAPTIONS, taps[:, : last + 1], tokens[:, 0])
    count = 1
    for stop in (1, 4, 8):
        if stop > count:
            emitted = torch.full((len(CAPTIONS),), stop - count)
            drafter.commit(
                batch, tokens[:, count:stop], taps[:, last + count : last + stop], emitted
            )
            batch.commit(tokens[:, count:stop], emitted, tokens[:, stop - 1])
            batch.max_emitted = count = stop
        logits = drafter.root_logits(batch)[:, None]
        for j in range(UNROLLED):
            trained = apply_cfg(levels[j][:, stop - 1], CFG)
            is_drafted = trained > -100
            assert is_drafted.any(0).nonzero()[:, 0].tolist() == layer.ids.tolist()
            torch.testing.assert_close(
                logits[:, 0][is_drafted], trained[is_drafted], atol=1e-4, rtol=1e-4
            )
            logits = drafter.expand(batch, tokens[:, stop + j, None], None)


def test_the_loss_is_the_published_one() -> None:
    """Cross-entropy over the codes that are drafted, only where the likeliest code is one of them;
    no other terms.
    """
    target = toy_target(config=SIZES["LlamaGen"])
    layer, data = toy_eagle3(SIZES["LlamaGen"]), random_examples(target, 5)
    config = Distillation(cross_entropy=1.0, noise=0.0, caption_dropout=0.0)
    loss = drafter_loss(target, layer, data, config)(torch.arange(5), torch.Generator())
    captions, tokens = data.pick(torch.arange(5), target.device)
    inputs = encode_pairs(target, captions, tokens, layer.taps)
    with torch.no_grad():
        teacher = head_logits(target, inputs.labels)[:5].double()
        expected = 0.0
        for j, (logits, predicted) in enumerate(draft_levels(target, layer, inputs)):
            assert predicted is None
            q, p = (
                teacher[:, j:, layer.ids].softmax(-1),
                logits[:5, :, layer.ids].double().softmax(-1),
            )
            counts = torch.isin(teacher[:, j:].argmax(-1), layer.ids)
            assert 0.2 < counts.double().mean() < 0.95
            expected -= 0.8**j * float(((q * p.log()).sum(-1) * counts).mean())
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert torch.equal(
        drafted_probs(new_eagle3(target, 0), teacher.softmax(-1)), teacher.softmax(-1)
    )


def test_gradients_flow_through_all_levels() -> None:
    target = toy_target(config=SIZES["LlamaGen"])
    for make in (drafter_loss, guided_loss):
        layer, data = new_eagle3(target, 0, torch.arange(0, 24, 2)), random_examples(target, 3)
        config = GuidedDistillation() if make is guided_loss else Distillation(noise=0.0)
        loss = make(target, layer, data, config)  # type: ignore[arg-type]
        value: Tensor = loss(torch.arange(3), torch.Generator().manual_seed(0))
        assert 0 < float(value) < 100
        value.backward()  # type: ignore[no-untyped-call]
        for name, weight in layer.named_parameters():
            assert weight.grad is not None, name
            assert weight.grad.isfinite().all(), name
            assert weight.grad.abs().sum() > 0, name


def test_the_most_frequent_codes_are_drafted() -> None:
    tokens = torch.tensor([[7, 7, 7, 2, 2, 9], [9, 9, 9, 2, 2, 0]])
    assert frequent_codes(tokens, 24, 3).tolist() == [2, 7, 9]


@pytest.mark.parametrize("draft_vocab", [None, 12])
def test_training_helps_and_the_file_decodes(tmp_path: Path, draft_vocab: int | None) -> None:
    target = toy_target(config=SIZES["LlamaGen"])
    recipe = DrafterRecipe.of(
        "eagle3", batch=8, steps=60, save_every=20, rate=4e-3, draft_vocab=draft_vocab
    )
    assert (recipe.noise, recipe.cross_entropy) == (0.0, 1.0)
    captions = [Caption(i, "abcdefgh"[i % 8 :]) for i in range(40)]
    tokens = sample_images(target, captions, tmp_path / "images", identity="toy", log=quiet)
    data = Examples([c.text for c in captions], tokens)
    ids = None if draft_vocab is None else frequent_codes(tokens[:38], 24, draft_vocab)
    before = evaluate_drafter(target, new_eagle3(target, 0, ids), data.split(2)[1], scales=(1.0,))
    path = train_by_recipe(target, "eagle3", data, tmp_path, recipe, log=quiet)
    drafter = load_drafter(target, "eagle3", path)
    assert isinstance(drafter, Eagle3Drafter)
    after = evaluate_drafter(target, drafter.layer, data.split(2)[1], scales=(1.0,))
    assert after["TV"] < before["TV"] - 0.05
    assert after["TV level 7"] < before["TV level 7"]
    assert len(drafter.layer.ids) == (draft_vocab or 24)
    engine = Engine(target, DecodingConfig(Eagle3(), Chain(3)), drafter, batch_size=3)
    lengths = [
        r.statistics.mean_accepted_length
        for r in engine.run(Request(i, c) for i, c in enumerate(CAPTIONS))
    ]
    assert sum(lengths) / 3 > 1.05


def test_a_resumed_run_equals_an_undisturbed_one(tmp_path: Path) -> None:
    target = toy_target(config=SIZES["LlamaGen"])
    data, recipe = random_examples(target, 12), replace(QUICK, draft_vocab=10, noise=0.0)
    train_by_recipe(target, "eagle3", data, tmp_path / "whole", recipe, log=quiet)

    class Killed(Exception): ...

    def kill(line: str) -> None:
        if "step 16/24" in line:
            raise Killed

    with pytest.raises(Killed):
        train_by_recipe(target, "eagle3", data, tmp_path / "broken", recipe, log=kill)
    train_by_recipe(target, "eagle3", data, tmp_path / "broken", recipe, resume=True, log=quiet)
    whole, broken = (tmp_path / name / "eagle3.safetensors" for name in ("whole", "broken"))
    assert whole.read_bytes() == broken.read_bytes()
