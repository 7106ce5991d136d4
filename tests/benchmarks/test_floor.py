"""The minimum of a step is what can be counted by hand."""

from __future__ import annotations

import torch

from benchmarks.floor import copy_bandwidth, pass_bytes, pass_s, round_bytes
from benchmarks.random_models import published_shape, with_usual_drafter
from search_spaces.presets import preset
from workers.loading.models_yaml import load_folder


def test_the_floor_is_the_bytes_counted_by_hand() -> None:
    """Width 64, 2 layers, feed-forward 128, 2048 codes; numbers of 4 bytes; 10 columns of the
    cache.
    """
    target = published_shape("llamagen-3b-c2i", torch.float32, tiny=True)
    layer, norms, head = 4 * 64 * 64 + 3 * 64 * 128, 2 * 64, 2048 * 64
    vanilla = 4 * (2 * (layer + norms) + 64 + head) + 4 * 10 * 2 * 2 * 64
    assert pass_bytes(target.transformer, 10) == vanilla
    models = with_usual_drafter(target, preset("eagle1"))
    # the EAGLE layer has one norm, and joins embedding and feature before it
    level = 4 * (layer + 64 + (2 * 64 * 64 + 64) + head) + 4 * 10 * 2 * 64
    assert round_bytes(models, 10, 3) == vanilla + 3 * level
    assert round_bytes(with_usual_drafter(target, preset("sjd")), 10, 15) == vanilla
    half = published_shape("llamagen-3b-c2i", torch.bfloat16, tiny=True)
    assert 2 * pass_bytes(half.transformer, 10) == vanilla
    assert copy_bandwidth(torch.device("cpu")) > 1e6


def test_passes_of_every_width_are_timed() -> None:
    models = load_folder()
    assert all(0 < pass_s(models, width, passes=2) < 10 for width in (1, 64))
