"""The tiny CLIP: its tokens, its cosines, the built-in weights on held-out scenes, and wrong
input.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recipes.scene_nets import altered
from tests.fakes.metric_inputs import mean_score
from workers.metrics.clip_score import (
    BUILTIN,
    PAD,
    START,
    STOP,
    WORDS,
    ClipConfig,
    SceneClip,
    load_clip,
)
from workers.models.checkpoint_files import WeightsError
from workers.models.own_files import save
from workers.scenes.captions import caption
from workers.scenes.images import render, sample_attributes

TINY = ClipConfig(dim=8, heads=2, ffn_dim=8, vision_layers=1, text_layers=1, patch=16, projection=4)


@cache
def held_out(n: int = 128) -> tuple[Tensor, Tensor]:
    rows = sample_attributes(1, range(n))
    return rows, render(rows, 1, range(n))


def test_every_caption_fits() -> None:
    model = SceneClip(TINY)
    captions = [caption(row) for row in sample_attributes(3, range(2000)).tolist()]
    ids, mask = model.tokens(captions)
    assert ids.shape == (2000, TINY.text_len)
    assert (ids[:, 0] == START).all()
    assert ((ids == STOP).sum(1) == 1).all()
    assert ((ids == PAD) == (mask == 0)).all()
    for row, text in zip(ids[:50].tolist(), captions, strict=False):
        assert " ".join(WORDS[i] for i in row if i > STOP) == text


def test_wording_does_not_matter() -> None:
    model = SceneClip(TINY)
    one, _ = model.tokens(["a large red circle on a smooth grey background"])
    two, _ = model.tokens(["Red disc"])
    assert torch.equal(one, two)


def test_embeddings_pool_at_the_end_of_the_caption() -> None:
    """Padding must not matter: fewer padding tokens give the same embedding."""
    model = SceneClip(TINY).eval()
    ids, mask = model.tokens(["a small red ring on a smooth grey background"])
    length = int(mask.sum())
    padded, cut = (
        model.embed_tokens(ids, mask),
        model.embed_tokens(ids[:, :length], mask[:, :length]),
    )
    torch.testing.assert_close(padded, cut, rtol=1e-4, atol=1e-5)


def test_cosines_are_those_of_each_image_and_its_caption() -> None:
    model = SceneClip(TINY).eval()
    _, images = held_out()
    captions = ["a red circle", "a large blue star on the left", "a green ring above a red cross"]
    seen, said = model.embed_images(images[:3]), model.embed_captions(captions)
    expected = torch.nn.functional.cosine_similarity(seen, said).detach()
    torch.testing.assert_close(model.cosines(images[:3], captions), expected, rtol=1e-4, atol=1e-5)


def test_altered_captions_differ_in_one_attribute() -> None:
    rows = sample_attributes(4, range(500))
    changed = altered(rows, torch.Generator().manual_seed(0))
    assert ((changed != rows).sum(1) == 1).all()
    for before, after in zip(rows.tolist(), changed.tolist(), strict=True):
        assert caption(before) != caption(after)


def test_builtin_prefers_the_right_caption() -> None:
    rows, images = held_out()
    model = load_clip()
    captions = [caption(row) for row in rows.tolist()]
    changed = [caption(row) for row in altered(rows, torch.Generator().manual_seed(0)).tolist()]
    texts = (captions, changed, captions[1:] + captions[:1])
    right, near, far = (mean_score("clip_score", model.cosines(images, text)) for text in texts)
    assert right.value - near.value > 3 * (right.error + near.error)
    assert near.value - far.value > 3 * (near.error + far.error)
    assert BUILTIN.stat().st_size <= 1_200_000
    assert model.identity.startswith("scenes-clip@")


def test_wrong_input_is_refused(tmp_path: Path) -> None:
    model = SceneClip(TINY)
    _, images = held_out()
    with pytest.raises(ValueError, match="dragon"):
        model.cosines(images[:1], ["a red dragon"])
    with pytest.raises(ValueError, match=r"images \[n, 3, 48, 48\]"):
        model.cosines(images[:1, :, :32, :32], ["a red circle"])
    save(tmp_path / "words.safetensors", model, asdict(TINY) | {"words": ["<pad>", "cat"]})
    with pytest.raises(WeightsError, match="vocabulary"):
        load_clip(tmp_path / "words.safetensors")
    save(tmp_path / "other.safetensors", model, {"dim": 8, "colour": "red"})
    with pytest.raises(WeightsError, match="does not describe a scenes CLIP"):
        load_clip(tmp_path / "other.safetensors")
