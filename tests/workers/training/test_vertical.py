"""The loss of a vertical branch against its formula, and what a training changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from search_spaces.drafters import Vertical
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.toys import toy_branch, toy_target
from tests.oracles import diagonals
from workers.decoding.build import load_drafter
from workers.decoding.engine import Engine
from workers.decoding.row_ends import teacher_forced
from workers.decoding.state import Request
from workers.models.own_files import read_config
from workers.models.target import Target
from workers.models.vertical import VerticalBranch
from workers.training.drafters import evaluate_drafter
from workers.training.examples import Examples
from workers.training.job import DrafterRecipe, train_by_recipe
from workers.training.vertical import VerticalTraining, new_vertical, token_logits, vertical_loss

CAPTIONS = ["abcde", "fghij", "klmno"]  # prompts without padding


def random_examples(target: Target, count: int) -> Examples:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(target.vocab_size, (count, target.grid.tokens), generator=generator)
    return Examples([CAPTIONS[n % len(CAPTIONS)] for n in range(count)], tokens.int())


def random_branch(target: Target) -> VerticalBranch:
    torch.manual_seed(4)
    return toy_branch(target)


def expected_loss(target: Target, branch: VerticalBranch, data: Examples, *, null: bool) -> float:
    """CE + 0.2 * 2^2 KL(target's probs || probs), both at temperature 2, + 0.05 CE of the tokens
    that have an upper neighbour, and of the first, under the vertical logits.
    """
    captions, tokens = data.pick(torch.arange(len(data)), target.device)
    prompt = target.encode(captions, guided=True)
    cols = target.grid.cols
    mixed, distilled, vertical = [], [], []
    for number, image in enumerate(tokens):
        row = number + null * len(data)
        embeds = prompt.embeds[row]
        logits = diagonals.token_logits(target, branch, embeds, image.tolist(), rounded=False)
        _, below = diagonals.predictions(target, branch, embeds, image.tolist(), rounded=False)
        features = teacher_forced(
            target, type(prompt)(embeds[None], prompt.valid[row, None]), image[None, :-1]
        )
        true = target.head(features[0, target.prompt_len - 1 :]).double()
        for cell, token in enumerate(image.tolist()):
            mixed.append(-float(logits[cell].log_softmax(0)[token]))
            q, p = (true[cell] / 2).softmax(0), (logits[cell] / 2).softmax(0)
            distilled.append(float((q * (q / p).log()).sum()))
            if cell == 0 or cell >= cols:
                entry = 0 if cell == 0 else cell - cols + 1
                vertical.append(-float(below[entry].log_softmax(0)[token]))
    return sum(
        weight * sum(values) / len(values)
        for weight, values in ((1.0, mixed), (0.8, distilled), (0.05, vertical))
    )


@pytest.mark.parametrize("null", [False, True])
@torch.no_grad()
def test_the_loss_is_the_published_one(null: bool) -> None:
    target = toy_target()
    branch, data = random_branch(target), random_examples(target, 3)
    loss = vertical_loss(target, branch, data, VerticalTraining(caption_dropout=float(null)))
    expected = expected_loss(target, branch, data, null=null)
    assert loss(torch.arange(3), torch.Generator()).item() == pytest.approx(expected, rel=1e-5)


def test_the_scalar_gate_is_trained_apart() -> None:
    """Nothing but the scalar sees its loss."""
    target = toy_target()
    data, gradients = random_examples(target, 2), list[dict[str, Tensor]]()
    for shift in (0.0, 1.0):
        branch = random_branch(target)
        branch.gate.scalar.data += shift
        vertical_loss(target, branch, data, VerticalTraining())(
            torch.arange(2), torch.Generator()
        ).backward()  # type: ignore[no-untyped-call]
        gradients.append({n: p.grad for n, p in branch.named_parameters() if p.grad is not None})
    first, second = gradients
    assert first.keys() == dict(branch.named_parameters()).keys()
    assert {name for name in first if not torch.equal(first[name], second[name])} == {"gate.scalar"}


def test_a_new_branch_starts_as_the_target() -> None:
    """Its layer, norm and head are the target's last ones, and nothing of the target is changed."""
    target = toy_target()
    branch = new_vertical(target, 0)
    own, last = branch.decoder.state_dict(), target.transformer.state_dict()
    assert all(torch.equal(own[name], last[name.replace("layers.0", "layers.1")]) for name in own)
    assert torch.equal(branch.head.weight, last["head.weight"])
    captions, tokens = random_examples(target, 2).pick(torch.arange(2), target.device)
    prompt = target.encode(captions, guided=False)
    found = [
        token_logits(target, made, prompt, tokens).right
        for made in (branch, new_vertical(target, 0, rank=0))
    ]
    torch.testing.assert_close(*found)


def test_training_helps_and_its_file_decodes(tmp_path: Path) -> None:
    target = toy_target(sampling=Sampling(cfg=1.0))
    before = {name: value.clone() for name, value in target.state_dict().items()}
    engine = Engine(target, DecodingConfig(sampling=Sampling()), batch_size=24)
    images = {
        r.request.caption_id: r.tokens
        for r in engine.run(Request(n, CAPTIONS[n % 3]) for n in range(24))
    }
    data = Examples(
        [CAPTIONS[n % 3] for n in range(24)], torch.stack([images[n] for n in range(24)])
    )
    recipe = DrafterRecipe.of("vertical", batch=8, steps=30, save_every=15, rate=3e-3)
    path = train_by_recipe(target, "vertical", data, tmp_path, recipe, log=lambda line: None)
    header = read_config(path)
    untrained = evaluate_drafter(target, new_vertical(target, 0), data.split(1)[1], scales=(1.0,))
    assert header["held_out"]["TV"] < untrained["TV"]
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())
    drafter = load_drafter(target, "vertical", path)
    (result,) = Engine(target, DecodingConfig(Vertical()), drafter).run([Request(0, "abc")])
    assert result.statistics.step_compression == pytest.approx(16 / 7)
