"""The sweep that several integration tests compare with; it runs once in a test session."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from tests.fakes.real_sweeps import SWEEP, SweepRun


@pytest.fixture(scope="session")
def small(shared_folder: Path) -> SweepRun:
    """The small sweep, not interrupted, with one worker in the test's own process.

    The first test process that asks for it runs it for all of them.
    """
    run = SweepRun(shared_folder / "small", SWEEP)
    finished = run.folder / "finished"
    with FileLock(shared_folder / "small.lock"):
        if not finished.exists():
            assert not run.folder.exists(), (
                "the small sweep failed in another test process; see its error"
            )
            run.run_locally("--no-mlflow")
            finished.touch()
    return run
