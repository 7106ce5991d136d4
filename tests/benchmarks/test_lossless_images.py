"""The parts of the benchmark of images that are not drawn, on made-up sweeps."""

from __future__ import annotations

from pathlib import Path

from benchmarks.lossless_images import images_drawn
from orchestrator.store.sweep import Sweep
from search_spaces.trial import Sampling
from tests.fakes.synthetic_sweeps import IMAGES, write_sweep


def test_images_are_counted_once(tmp_path: Path) -> None:
    records = write_sweep(tmp_path, 8, failed=(), repeated={6: 1})
    total, lossless = images_drawn(Sweep.open(tmp_path))
    assert total == 7 * IMAGES
    kept = [record for record in records if record.duplicate_of is None]
    exact = [
        record.number
        for record in kept
        if record.config is not None
        and not record.config.is_vanilla
        and record.config.is_lossless(Sampling(1.0, 0, 1.0, 1.5))
    ]
    assert exact
    assert lossless == len(exact) * IMAGES
