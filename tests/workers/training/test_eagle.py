"""Training an EAGLE drafter for any target: what the layer reads is what it will read when drafting, the loss is the
published one, shares of a batch add up to the batch, and a run that was killed comes to the same curve.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from search_spaces.trees import Chain
from search_spaces.trial import DecodingConfig, Eagle, Sampling
from tests.fakes.tiny_models import captions_file, tiny_folder
from tests.fakes.toys import BASE, ROW_ENDS, toy_target
from tests.oracles.drafter_rounds import CAPTIONS, open_batch
from workers.data.captions import Caption, read_captions
from workers.decoding.engine import Engine
from workers.decoding.row_ends import teacher_forced
from workers.decoding.state import Request
from workers.drafters.eagle import EagleDrafter, EagleLayer
from workers.drafters.files import load_eagle
from workers.models.target import Prompt, Target
from workers.models.transformer import TransformerConfig
from workers.models.weights import read_config
from workers.training import eagle
from workers.training.eagle import (
    CHECKPOINT,
    JOURNAL,
    Drawn,
    EagleRecipe,
    eagle_loss,
    figures,
    head,
    new_layer,
    prompt_filler,
    slots,
    train_eagle,
)
from workers.training.jobs import RECORDED, DrafterJob
from workers.training.process_group import ProcessGroup
from workers.training.recording import record

CONFIGS: dict[str, TransformerConfig] = {
    "LlamaGen's": replace(BASE, prompt_rope="zero"),
    "Chameleon's": replace(BASE, rope="line", qk_norm=True),
    "Lumina's": replace(ROW_ENDS, qk_norm=True),
}
QUICK = EagleRecipe(batch=4, steps=24, rate=2e-3, save_every=8)


def quiet(_: str) -> None: ...


def examples(target: Target, count: int = 12) -> Drawn:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(target.vocab_size, (count, target.grid.tokens), generator=generator)
    return Drawn([CAPTIONS[i % len(CAPTIONS)] for i in range(count)], tokens.int())


@pytest.mark.parametrize("name", CONFIGS)
def test_a_teacher_forced_pass_gives_the_features_of_decoding(name: str) -> None:
    """At temperature 0 each token is the likeliest after what the pass says of the tokens before it, padding or not."""
    target = toy_target(config=CONFIGS[name], sampling=Sampling(temperature=0.0, cfg=1.0))
    jobs = [Request(i, caption) for i, caption in enumerate(CAPTIONS)]
    drawn = {result.request: result.tokens for result in Engine(target, DecodingConfig(), batch_size=3).run(jobs)}
    tokens = torch.stack([drawn[job] for job in jobs]).clone()
    features = teacher_forced(target, target.encode(CAPTIONS, guided=False), tokens[:, :-1])
    assert torch.equal(target.head(features[:, target.prompt_len - 1 :]).argmax(-1), tokens)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_layer_is_trained_on_what_it_drafts_from(name: str) -> None:
    """The logits after any number of tokens are those of the drafter that has committed as many."""
    target = toy_target(config=CONFIGS[name])
    layer, data = new_layer(target, 0), examples(target, len(CAPTIONS))
    captions, tokens = data.pick(torch.arange(len(data)), target.device)
    prompt = target.encode(captions, guided=True)
    given = slots(target, prompt, tokens.repeat(2, 1))
    with torch.no_grad():
        trained = head(target, given.predicted(layer))  # [R, N - 1, V]: entry n is the law of token n + 1
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


def spelled_out(target: Target, data: Drawn, layer: EagleLayer, *, null: bool) -> float:
    """SmoothL1 + 0.1 CE over all examples, without noise, slot by slot."""
    captions, tokens = data.pick(torch.arange(len(data)), target.device)
    prompt = target.encode(captions, guided=True)
    rows = slice(len(data), None) if null else slice(0, len(data))
    given = slots(target, Prompt(prompt.embeds[rows], prompt.valid[rows]), tokens)
    total, count = 0.0, 0
    with torch.no_grad():
        out = given.predicted(layer)
        for predicted, true in zip(out.flatten(0, 1).double(), given.wanted.flatten(0, 1).double(), strict=True):
            gap = (predicted - true).abs()
            distance = torch.where(gap < 1, gap.square() / 2, gap - 0.5).mean()
            weight = target.head.weight.double()
            law, mine = (weight @ true).softmax(0), (weight @ predicted).softmax(0)
            total += float(distance - 0.1 * (law * mine.log()).sum())
            count += 1
    return total / count


@pytest.mark.parametrize("null", [False, True])
def test_the_loss_is_the_published_one(null: bool) -> None:
    target = toy_target()
    layer, data = new_layer(target, 0), examples(target, 5)
    plain = replace(QUICK, noise=0.0, dropped=1.0 if null else 0.0)
    loss = eagle_loss(target, layer, data, plain)(torch.arange(5), torch.Generator())
    assert loss.item() == pytest.approx(spelled_out(target, data, layer, null=null), rel=1e-5)


def test_shares_of_a_batch_come_to_the_whole_batch() -> None:
    target = toy_target()
    data, indices = examples(target), torch.tensor([7, 0, 3, 11])

    def gradient(group: ProcessGroup) -> tuple[float, Tensor]:
        layer = new_layer(target, 0)
        loss = eagle_loss(target, layer, data, replace(QUICK, dropped=0.5), group)
        value = loss(indices, torch.Generator().manual_seed(9))
        value.backward()  # type: ignore[no-untyped-call]
        assert layer.fc.weight.grad is not None
        return value.item(), layer.fc.weight.grad

    whole, one, two = gradient(ProcessGroup()), gradient(ProcessGroup(0, 2)), gradient(ProcessGroup(1, 2))
    assert one[0] != pytest.approx(two[0], rel=1e-3)
    assert (one[0] + two[0]) / 2 == pytest.approx(whole[0], rel=1e-6)
    torch.testing.assert_close((one[1] + two[1]) / 2, whole[1], atol=1e-6, rtol=1e-4)
    with pytest.raises(ValueError, match="batch of 4 cannot be shared evenly by 3 workers"):
        ProcessGroup(0, 3).share(4)


def test_noise_is_uniform_and_an_examples_own() -> None:
    like = torch.zeros(20, 3000)
    noise = eagle._noise(like, 5, 0.2)
    most = 0.1 * 512 / 20
    assert float(noise.abs().max()) == pytest.approx(most, rel=1e-2)
    assert float(noise.var()) == pytest.approx((2 * most) ** 2 / 12, rel=2e-2)
    assert torch.equal(noise, eagle._noise(like, 5, 0.2))
    assert not torch.equal(noise, eagle._noise(like, 6, 0.2))


def test_figures_count_hits_under_the_law_asked_for() -> None:
    """A layer that predicts the target's own features hits everywhere; a layer of zeros as chance has it."""
    target = toy_target(sampling=Sampling(cfg=3.0))
    data, layer = examples(target, 6), new_layer(target, 0)
    found = figures(target, layer, data, batch=4)
    assert list(found) == ["top-1", "top-1 cfg 3", "top-3", "top-3 cfg 3"]
    captions, tokens = data.pick(torch.arange(6), target.device)
    given = slots(target, target.encode(captions, guided=True), tokens.repeat(2, 1))
    with torch.no_grad():
        mine, true = (head(target, f).view(2, -1, target.vocab_size) for f in (given.predicted(layer), given.wanted))
    for words, scale in (("", 1.0), (" cfg 3", 3.0)):
        p, q = (logits[1] + scale * (logits[0] - logits[1]) for logits in (mine, true))
        ranks = (p > p.gather(1, q.argmax(1, keepdim=True))).sum(1)
        assert found[f"top-1{words}"] == pytest.approx(float((ranks == 0).float().mean()))
        assert found[f"top-3{words}"] == pytest.approx(float((ranks < 3).float().mean()))


def lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_training_helps_and_keeps_the_best(tmp_path: Path) -> None:
    target, recipe = toy_target(), replace(QUICK, steps=120, save_every=20, batch=8)
    captions = [Caption(i, "abcdefgh"[i % 8 :]) for i in range(40)]
    data = Drawn([c.text for c in captions], record(target, captions, tmp_path / "r", identity="toy", tell=quiet))
    before = figures(target, new_layer(target, 0), Drawn(data.captions[-2:], data.tokens[-2:]))
    path = train_eagle(target, data, tmp_path, recipe, tell=quiet)
    curve = lines(tmp_path / JOURNAL)
    losses = [entry["loss"] for entry in curve if "loss" in entry]
    held_out = [entry["top-3"] for entry in curve if "top-3" in entry]
    assert len(losses) == 120
    assert len(held_out) == 6
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])
    header = read_config(path)
    assert header["held_out"]["top-3"] == max(held_out) > before["top-3"] + 0.1
    drafter = load_eagle(path, target)
    jobs = [Request(i, caption) for i, caption in enumerate(CAPTIONS)]
    emitted = [r.statistics.mean_accepted_length for r in Engine(target, SETTING, drafter, batch_size=3).run(jobs)]
    untrained = EagleDrafter(target, new_layer(target, 0)).eval().requires_grad_(False)
    chance = [r.statistics.mean_accepted_length for r in Engine(target, SETTING, untrained, batch_size=3).run(jobs)]
    assert sum(emitted) > sum(chance)


SETTING = DecodingConfig(Eagle(), Chain(2))


def test_a_resumed_run_equals_an_undisturbed_one(tmp_path: Path) -> None:
    target = toy_target()
    data = examples(target)
    train_eagle(target, data, tmp_path / "whole", QUICK, tell=quiet)

    class Killed(Exception): ...

    def kill(line: str) -> None:
        if "step 16/24" in line:  # between two checkpoints: those eight steps are done again
            raise Killed

    with pytest.raises(Killed):
        train_eagle(target, data, tmp_path / "broken", QUICK, tell=kill)
    train_eagle(target, data, tmp_path / "broken", QUICK, resume=True, tell=quiet)
    whole, broken = ((tmp_path / name) for name in ("whole", "broken"))
    assert (whole / JOURNAL).read_bytes() == (broken / JOURNAL).read_bytes()
    assert (whole / eagle.WEIGHTS).read_bytes() == (broken / eagle.WEIGHTS).read_bytes()
    states = [torch.load(folder / CHECKPOINT, weights_only=True)["model"] for folder in (whole, broken)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


# the job


def job(tmp_path: Path, recipe: EagleRecipe = QUICK, captions: int = 70) -> DrafterJob:
    weights = tiny_folder(tmp_path / "weights")
    found = read_captions(captions_file(tmp_path / "captions.txt", captions))
    return DrafterJob(weights=str(weights), captions=tuple(found), out=tmp_path / "out", recipe=recipe)


def test_a_job_draws_once_and_says_what_it_was_begun_with(tmp_path: Path) -> None:
    wanted, said = job(tmp_path), list[str]()
    cpu = torch.device("cpu")
    path = wanted.run(cpu, tell=said.append)
    drawn = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "out" / RECORDED).iterdir()}
    assert len(drawn) == 2, "70 images, 64 of them in a file"
    assert said[0].startswith("drew images: 1 of 2 files")
    first, said = path.read_bytes(), []
    assert wanted.run(cpu, tell=said.append).read_bytes() == first
    assert not any(line.startswith("drew") for line in said)
    assert {file.name: file.stat().st_mtime_ns for file in (tmp_path / "out" / RECORDED).iterdir()} == drawn
    other = replace(wanted, recipe=replace(QUICK, rate=1e-3))
    with pytest.raises(ValueError, match=r"eagle.job.json: .* another rate \(0.002, now 0.001\)"):
        other.run(cpu, resume=True, tell=quiet)
    fewer = replace(wanted, captions=wanted.captions[:9])
    with pytest.raises(ValueError, match="another captions"):
        fewer.run(cpu, resume=True, tell=quiet)


def test_the_drafter_of_a_job_loads_into_its_target(tmp_path: Path) -> None:
    from workers.loading.models import load_models

    done = job(tmp_path, captions=12).run(torch.device("cpu"), tell=quiet)
    done.replace(tmp_path / "weights" / "eagle.safetensors")
    models = load_models(tmp_path / "weights", torch.device("cpu"))
    (result,) = Engine(models.target, SETTING, models.drafters["eagle"]).run([Request(0, "red small star")])
    assert result.statistics.mean_accepted_length >= 1


def test_two_captions_are_the_least(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1 captions are too few"):
        QUICK.split(1)
    assert (QUICK.split(2), QUICK.split(1000)) == (1, 50)


def test_the_schedule_is_the_published_one() -> None:
    config = EagleRecipe().schedule(95_000, torch.device("cuda"))
    assert (config.steps, config.batch, config.warmup) == (118_750, 16, 2000)
    assert (config.optimiser, config.other_lr, config.clip_value, config.clip) == ("adamw", 1e-4, 0.5, 0.0)
    assert (config.bf16, EagleRecipe().schedule(95_000, torch.device("cpu")).bf16) == (True, False)
