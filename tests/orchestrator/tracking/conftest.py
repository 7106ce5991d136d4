"""An empty MLflow database to copy: creating its tables takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.mlflow_processes import sync_in_child
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage


@pytest.fixture(autouse=True)
def _no_tracking_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Created by a `sync`, which must print nothing, not even while it creates the tables."""
    folder = tmp_path_factory.mktemp("empty")
    write_sweep(folder / "none", 0, failed=())
    printed = sync_in_child(Storage(str(folder / "none")), folder / "output")
    assert printed == "SyncResult(logged=0, already=0)"
    return folder / "mlflow.db"
