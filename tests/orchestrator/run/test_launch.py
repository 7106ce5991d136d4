"""What a resumed sweep must share with its start, whatever its own file says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.store import SWEEP, read_identity
from orchestrator.run.launch import IdentityError, keep_identity
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.synthetic_sweeps import identity
from workers.data.storage import Storage

NEW = identity("kept")


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A store whose sweep has just started."""
    store = Storage(tmp_path / "kept")
    assert keep_identity(store, SweepConfig.read("quickstart"), NEW) == NEW
    return store


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("experiment", "f" * 20),
        ("target", "another"),
        ("models", {"target.safetensors": "00" * 8}),
        ("extractors", {"features": "another"}),
        ("captions", {"count": 3, "hash": "00" * 8, "source": "scenes"}),
        ("reference", None),
        ("baseline", DecodingConfig(sampling=Sampling(cfg=7.5))),
        ("seed", 1),
        ("device", "another"),
    ],
)
def test_a_resumed_sweep_with_other_facts_is_refused(key: str, other: Any, storage: Storage) -> None:
    before = storage.read(SWEEP)
    with pytest.raises(IdentityError, match=f"{key}.* changed") as refused:
        keep_identity(storage, SweepConfig.read("cool"), replace(NEW, **{key: other}))
    assert "--name" in str(refused.value)
    assert storage.read(SWEEP) == before
    assert read_identity(storage) == NEW


def test_versions_and_threads_may_change(storage: Storage) -> None:
    assert keep_identity(storage, SweepConfig.read("quickstart"), replace(NEW, versions={}, threads=7)) == NEW
