"""The benchmark of settings that no paper has, on made-up sweeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import combinations
from benchmarks.combinations import LIMIT, PUBLISHED, SEARCHES
from benchmarks.judged import Volume
from orchestrator.store.sweep import Sweep
from search_spaces.modulations import NO_MODULATION
from search_spaces.presets import CATALOGUE
from search_spaces.sweep import SweepConfig
from search_spaces.trial import Sampling
from tests.fakes.synthetic_sweeps import write_sweep


def test_the_four_sweeps_are_what_the_benchmark_says(tmp_path: Path) -> None:
    sweeps = {
        name: SweepConfig.read(str(combinations.write_sweep(tmp_path, name, 5)), {})
        for name in (PUBLISHED, *SEARCHES)
    }
    published = sweeps[PUBLISHED]
    assert [entry.label for entry in published.enqueue] == list(CATALOGUE)
    assert published.budget.trials == len(CATALOGUE)
    for name in SEARCHES:
        sweep = sweeps[name]
        assert sweep.budget.trials == 5
        assert (sweep.captions, sweep.seed) == (published.captions, published.seed)
        for branch in sweep.space.branches():
            lowest = branch.config([leaf.domain.corners[0] for leaf in branch.leaves], Sampling())
            is_modulated = lowest.acceptance.modulation != NO_MODULATION
            assert is_modulated == (name == "modulated")


def test_what_a_sweep_recommends_is_described_by_the_last_one(tmp_path: Path) -> None:
    write_sweep(tmp_path / "one", 8, failed=())
    sweep = Sweep.open(tmp_path / "one")
    batch = sweep.identity.timing_batch
    found = list(combinations.recommended(sweep, batch))
    assert {choice.choice for choice in found} <= {"lossless", LIMIT}
    assert found
    for choice in found:
        row = combinations.described(sweep, choice)
        record = combinations.record_of(sweep, choice.config)
        assert row["fid"][0] == record.metrics["fid"].value
        assert row["setting"] == sweep.names.name(choice.config)
    with pytest.raises(LookupError, match="batch 999"):
        combinations.at_batch(sweep, 999)


def test_the_table_has_a_row_for_each_front_and_each_choice(tmp_path: Path) -> None:
    write_sweep(tmp_path / "one", 8, failed=())
    sweep = Sweep.open(tmp_path / "one")
    (choice, *_) = combinations.recommended(sweep, sweep.identity.timing_batch)
    found = {
        "volumes": [
            {"sweep": name, "batch": 1, "members": 3, **Volume(2.0, 1.0, 0.1, 0.02)._asdict()}
            for name in SEARCHES
        ],
        "choices": [combinations.described(sweep, choice)],
    }
    lines = combinations.table(found).splitlines()
    assert (
        sum(line.startswith("| 1 |") and "1.000 ± 0.100 | 0.020 |" in line for line in lines) == 3
    )
    assert choice.sweep == sweep.name
    assert sweep.names.name(choice.config) in lines[-1]
