"""Codec training at toy size: the loss falls, codes come alive, a resumed run ends where an
undisturbed one does.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recipes.optimisers import CosineConfig
from recipes.tokenizer import (
    TokenizerLoss,
    TokenizerTraining,
    scene_images,
    tokenize_scenes,
    train_tokenizer,
)
from workers.models.vq import VQConfig, load_vq
from workers.scenes.captions import caption
from workers.scenes.images import render, sample_attributes

TINY = VQConfig(
    codebook_size=32,
    code_dim=4,
    channels=8,
    multipliers=(1, 1, 2),
    encoder_blocks=1,
    decoder_blocks=1,
    z_channels=8,
    groups=4,
    level_attention=False,
    mid_attention=False,
)
CONFIG = CosineConfig(
    steps=40,
    batch=8,
    warmup=5,
    rate=5e-3,
    betas=(0.9, 0.98),
    weight_decay=1e-4,
    ema=0.0,
    log_every=5,
    save_every=10,
    bf16=False,
)


def patches(indices: Tensor) -> Tensor:
    """Any source of images will do: 16x16 pieces of scenes."""
    return render(sample_attributes(0, indices), 0, indices)[:, :, 16:32, 16:32]


def silent(_line: str) -> None:
    pass


class Stopped(Exception):
    pass


def test_the_loss_falls_and_codes_are_used(tmp_path: Path) -> None:
    path = train_tokenizer(patches, 800, replace(CONFIG, steps=80), tmp_path, vq=TINY, log=silent)
    losses = [
        json.loads(line)["loss"]
        for line in (tmp_path / "tokenizer.journal.jsonl").read_text().splitlines()
    ]
    assert len(losses) == 80
    assert losses[-1] < 0.85 * losses[0]
    with torch.no_grad():
        ids = load_vq(path).encode(patches(torch.arange(800, 808)) * 2 - 1)
    shares = ids.flatten().bincount() / ids.numel()
    codes_used, perplexity = (
        int(shares.count_nonzero()),
        float(torch.special.entr(shares).sum().exp()),
    )
    assert codes_used > 8
    assert 1 < perplexity <= codes_used + 1e-4


def test_a_resumed_run_equals_an_undisturbed_one(tmp_path: Path) -> None:
    calls = 0

    def interrupted(indices: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 9:
            raise Stopped
        return patches(indices)

    config = replace(CONFIG, seed=1, steps=20, save_every=5)
    whole = train_tokenizer(patches, 800, config, tmp_path / "whole", vq=TINY, log=silent)
    with pytest.raises(Stopped):
        train_tokenizer(interrupted, 800, config, tmp_path / "broken", vq=TINY, log=silent)
    assert not (tmp_path / "broken" / whole.name).exists(), (
        "half-trained weights are not for other components"
    )
    resumed = train_tokenizer(
        patches, 800, config, tmp_path / "broken", vq=TINY, resume=True, log=silent
    )
    ours, theirs = load_vq(resumed).state_dict(), load_vq(whole).state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_finished_run_is_exported_again(tmp_path: Path) -> None:
    config = replace(CONFIG, steps=4)
    path = train_tokenizer(patches, 800, config, tmp_path, vq=TINY, log=silent)
    exported = path.read_bytes()
    path.unlink()
    train_tokenizer(patches, 800, config, tmp_path, vq=TINY, resume=True, log=silent)
    assert path.read_bytes() == exported


def test_the_step_is_counted_on_the_host() -> None:
    model = TokenizerTraining(TINY, TokenizerLoss(), 10)
    model(patches(torch.arange(4)) * 2 - 1, torch.Generator())
    assert model.steps == 1
    assert not any(name == "steps" for name, _ in model.named_buffers()), (
        "a device's buffer would be waited for"
    )
    other = TokenizerTraining(TINY, TokenizerLoss(), 10)
    other.load_state_dict(model.state_dict())
    assert other.steps == 1


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    config = replace(CONFIG, steps=10)
    train_tokenizer(patches, 800, config, tmp_path, vq=TINY, log=silent)
    with pytest.raises(ValueError, match="another seed"):
        train_tokenizer(
            patches, 800, replace(config, seed=1), tmp_path, vq=TINY, resume=True, log=silent
        )


def test_tokenized_scenes_do_not_depend_on_the_chunk(tmp_path: Path) -> None:
    config = replace(CONFIG, steps=2, batch=4)
    codec = load_vq(train_tokenizer(scene_images(0), 100, config, tmp_path, vq=TINY, log=silent))
    one, two = (
        tokenize_scenes(codec, 0, range(20), chunk=8),
        tokenize_scenes(codec, 0, range(10, 20), chunk=20),
    )
    assert one.tokens.shape == (20, 144)
    assert one.tokens.dtype == torch.int16
    assert one.captions[10:] == two.captions
    # Convolutions may sum in another order for another batch size, so a tie between codes may fall
    # otherwise.
    assert (one.tokens[10:] == two.tokens).float().mean() > 0.99
    assert one.captions == [caption(row) for row in sample_attributes(0, range(20)).tolist()]
