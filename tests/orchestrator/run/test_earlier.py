"""What a new sweep takes over from earlier ones, as it is stored and as its search is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.store import EARLIER
from orchestrator.results.sweep import Sweep
from orchestrator.run.earlier import Earlier, EarlierSweepError
from orchestrator.run.study import Search
from search_spaces.sweep import SweepConfig
from tests.fakes.synthetic_sweeps import IMAGES, SAMPLING, write_sweep
from workers.data.shards import FORMAT, Experiment
from workers.data.storage import Storage

SPACE: dict[str, Any] = {
    "name": "wider",
    "sampling": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "cfg": 1.5},
    "objectives": ["step_compression", "fid"],
    "enqueue": ["vanilla"],
    "space": {
        "drafter": "eagle",
        "tree": [
            {"policy": "dynamic", "depth": 5, "width": {"values": [8, 10]}, "nodes": 58},
            {"policy": "chain", "length": {"low": 1, "high": 9}},
        ],
        "acceptance": ["exact", {"neighbourhood": "additive", "k": {"low": 2, "high": 1000}, "delta": 0.2}],
    },
}


def facts(sweep: Sweep, **changed: Any) -> dict[str, Any]:
    """What a worker of the new sweep reports."""
    identity = sweep.identity
    return {
        "models": identity.models, "extractors": identity.extractors, "captions": dict(identity.captions),
        "reference": dict(identity.reference or {}), "timing_device": "", **changed,
    }  # fmt: skip


@pytest.fixture
def earlier(tmp_path: Path) -> Sweep:
    write_sweep(tmp_path / "mine", name="mine", shards=True, failed=(7,), stopped={9: 2}, repeated={8: 5}, samples=1)
    return Sweep.open(tmp_path / "mine")


def test_the_front_runs_and_the_other_trials_are_told(earlier: Sweep) -> None:
    config = SweepConfig.from_mapping(SPACE)
    taken = Earlier.read([earlier.storage.uri], config)
    front = {record.config for record in earlier.front_records}
    assert {entry.config for entry in taken.front} == {c for c in front if c is not None and not c.is_vanilla}
    extended = taken.extend(config)
    assert extended.enqueue[1:] == taken.front
    assert extended.budget.trials == config.budget.trials + len(taken.front)
    (source,) = taken.sources
    told = {record.number: record for record in source.results(config, facts(earlier))}
    others = {r.number for r in earlier.records if r.config not in front and r.config and not r.config.is_vanilla}
    assert told.keys() == others - {8}
    assert told[7].state == "failed"
    whole, vanilla = dict(earlier.records[0].metrics), dict(earlier.records[0].history)[IMAGES // 2]
    stopped = earlier.records[9].metrics["fid"].value
    assert told[9].metrics["fid"].value == pytest.approx(stopped - vanilla["fid"].value + whole["fid"].value)


def test_what_was_taken_over_is_stored(earlier: Sweep, tmp_path: Path) -> None:
    storage = Storage(tmp_path / "wider")
    assert Earlier.stored(storage) is None
    taken = Earlier.read([earlier.storage.uri], SweepConfig.from_mapping(SPACE))
    storage.write(EARLIER, taken.to_json())
    assert Earlier.stored(storage) == taken
    storage.write(EARLIER, taken.to_json()[:-20])
    with pytest.raises(ValueError, match=EARLIER):
        Earlier.stored(storage)


@pytest.mark.parametrize(
    "changed",
    [{"captions": {"count": IMAGES, "hash": "other"}}, {"reference": None}],
    ids=["captions", "reference"],
)
def test_values_that_cannot_be_compared_are_not_told(earlier: Sweep, changed: dict[str, Any]) -> None:
    config = SweepConfig.from_mapping(SPACE)
    (source,) = Earlier.read([earlier.storage.uri], config).sources
    assert source.results(config, facts(earlier))
    assert source.results(config, facts(earlier, **changed)) == []


def test_speeds_are_told_on_the_same_device_and_batch_alone(earlier: Sweep) -> None:
    timed = {**SPACE, "objectives": ["speedup", "fid"]}
    config = SweepConfig.from_mapping(timed)
    (source,) = Earlier.read([earlier.storage.uri], config).sources
    source = replace(source, hardware="a processor", facts={**source.facts, "timing": {"batch": 1}})
    assert source.results(config, facts(earlier, timing_device="a processor"))
    assert not source.results(config, facts(earlier, timing_device="another"))
    other = SweepConfig.from_mapping({**timed, "timing": {"batch": 8}})
    assert not source.results(other, facts(earlier, timing_device="a processor"))


@pytest.mark.parametrize("part", ["models", "extractors", "seed", "format", "precision"])
def test_other_images_are_refused_by_what_differs(earlier: Sweep, part: str) -> None:
    identity = earlier.identity
    new = Experiment(identity.models, "new captions", 0, identity.extractors, "float32")
    (source,) = Earlier.read([earlier.storage.uri], SweepConfig.from_mapping(SPACE)).sources
    same = replace(new, captions=source.facts["captions"]["hash"]).digest()
    source = replace(source, facts={**source.facts, "experiment": same, "format": FORMAT})
    known = facts(earlier)
    source.check(new, known)
    if part == "format":
        source = replace(source, facts={**source.facts, "experiment": "older", "format": FORMAT - 1})
    elif part == "precision":
        new = replace(new, precision="bfloat16")
    elif part == "seed":
        new = replace(new, seed=3)
    else:
        known = facts(earlier, **{part: {"target": "other"}})
        new = replace(new, models={"target": "other"})
    with pytest.raises(EarlierSweepError, match="dtype" if part == "precision" else part):
        source.check(new, known)


def test_a_sweep_is_taken_once(earlier: Sweep) -> None:
    with pytest.raises(EarlierSweepError, match="twice"):
        Earlier.read([earlier.storage.uri] * 2, SweepConfig.from_mapping(SPACE))


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
def test_the_search_knows_what_it_was_told(earlier: Sweep, sampler: str) -> None:
    """It proposes as one that ran these trials itself; those outside of the space are left out."""
    config = SweepConfig.from_mapping({**SPACE, "search": {"sampler": sampler}}).resolve(SAMPLING)
    (source,) = Earlier.read([earlier.storage.uri], config).sources
    told = source.results(config, facts(earlier))
    found = [(record, record.config and config.space.params_of(record.config, SAMPLING)) for record in told]
    inside = [(record, params) for record, params in found if params is not None]
    search = Search(config, ("maximize", "minimize"), earlier=told)
    trials = search._study.trials
    assert 0 < len(inside) < len(told)
    assert [trial.state.name for trial in trials] == ["FAIL" if r.state == "failed" else "COMPLETE" for r, _ in inside]
    for trial, (record, params) in zip(trials, inside, strict=True):
        assert trial.params == params
        if record.state != "failed":
            assert trial.values == [record.metrics[name].value for name in ("step_compression", "fid")]
    assert search.propose(0).label == "vanilla"
