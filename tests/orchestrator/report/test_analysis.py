"""The hypervolume over the images spent."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.front.front import front_of
from orchestrator.report.sections.analysis import hypervolumes
from orchestrator.store.sweep import Sweep
from tests.fakes.searched_sweeps import write_searched_sweep


def test_the_hypervolume_grows_to_that_of_the_front(tmp_path: Path) -> None:
    records = write_searched_sweep(tmp_path, 30)
    front = front_of([Sweep.open(tmp_path)])
    (curve,) = hypervolumes(front)
    assert curve["images"] == [192 * count for count in range(1, len(records) + 1)]
    assert curve["volume"] == sorted(curve["volume"])
    assert curve["volume"][-1] == pytest.approx(
        front.hypervolume(front.reference_point())[0], rel=1e-4
    )
