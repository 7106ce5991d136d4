"""No test here is meant to reach the MLflow server of whoever runs it."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_tracking_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
