"""The parts of the benchmark of images that are not drawn, on made-up sweeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import lossless_images
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


@pytest.mark.parametrize("copy", [False, True])
def test_the_second_sweep_copies_images_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy: bool
) -> None:
    launched = []

    def launch(space: str, folder: Path, name: str, *options: str) -> Sweep:
        if name == "joint-judge":
            raise InterruptedError
        launched.append(options)
        write_sweep(folder / name, 4, failed=())
        return Sweep.open(folder / name)

    monkeypatch.setattr(lossless_images, "launch", launch)
    with pytest.raises(InterruptedError):
        lossless_images.compare("joint", tmp_path, 3, 24, ["quality.shard=12"], copy=copy)
    before, after = launched
    given = ("--set", "quality.shard=12", "--trials", "3", "--set")
    copied = ("--from", str(tmp_path / "joint-before")) if copy else ()
    assert before == (*given, "quality.lossless=measure")
    assert after == (*given, "quality.lossless=check", *copied)
