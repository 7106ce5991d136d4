"""What a resumed sweep must share with the one that started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.store.identity import IdentityError, check_unchanged
from tests.fakes.synthetic_sweeps import identity
from workers.data.storage import Storage
from workers.metrics.definition import Metric


def test_a_metric_that_means_something_else_is_refused(tmp_path: Path) -> None:
    """Its values would be told to the search as those of one metric."""
    storage = Storage(str(tmp_path))
    own = Metric("sharpness", "maximize", needs=("images",), definition="torchmetrics 1: Sharp()")
    stored = identity("mine")
    stored = replace(stored, metrics={**stored.metrics, "sharpness": own})
    check_unchanged(storage, stored, stored.to_mapping(), ["seed"])
    for changed in (
        replace(own, definition="torchmetrics 2: Sharp()"),
        replace(own, needs=("images", "baseline")),
    ):
        now = replace(stored, metrics={**stored.metrics, "sharpness": changed})
        with pytest.raises(IdentityError, match=r"metrics\.sharpness"):
            check_unchanged(storage, stored, now.to_mapping(), ["seed"])


def test_other_words_and_other_metrics_change_nothing(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    stored = identity("mine")
    more = {
        name: replace(metric, about="in other words") for name, metric in stored.metrics.items()
    }
    del more["drift"]
    more["kid"] = Metric("kid", "minimize", needs=("features", "reference"))
    now = replace(stored, metrics=more)
    check_unchanged(storage, stored, now.to_mapping(), ["seed"])
    with pytest.raises(IdentityError, match="seed"):  # what is asked for is still compared
        check_unchanged(storage, stored, replace(now, seed=7).to_mapping(), ["seed"])
