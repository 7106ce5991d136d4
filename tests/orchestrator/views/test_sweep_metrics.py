"""How the front of a sweep's run grows in MLflow with its trials."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.entities import Metric

from orchestrator.front.choice import best_within, default_limit, recommend
from orchestrator.front.front import front_of
from orchestrator.front.questions import front_records
from orchestrator.store.records import write_trial
from orchestrator.store.sweep import Sweep
from orchestrator.views.mlflow_runs import different_steps, metrics, sweep_metrics
from tests.fakes.synthetic_sweeps import METRICS, NEEDS, write_sweep
from workers.data.storage import Storage
from workers.metrics.estimate import Estimate


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    folder: Path = tmp_path_factory.mktemp("sweeps") / "one"
    write_sweep(folder, trials=12, stopped={9: 3})
    return Sweep.open(Storage(str(folder)))


def test_the_last_values_are_those_of_the_finished_sweep(sweep: Sweep) -> None:
    found = sweep_metrics(sweep, 0)
    assert list(found) == list(range(1, 13))
    front, last = front_of([sweep]), found[12]
    assert {name: last[name] for name in ("trials", "failed", "stopped", "front")} == {
        "trials": 12, "failed": 1, "stopped": 1, "front": len(front.members),
    }  # fmt: skip
    assert last["knee"] == recommend(front).choices.get("knee").record.number  # type: ignore[union-attr]
    best = best_within(front, ["fid<=1.2*vanilla"])
    assert best is not None
    assert last["best/speedup"] == best.record.metrics["speedup"].value
    vanilla = [sweep.records[0].metrics[name].value for name in ("speedup", "fid")]
    assert last["hypervolume"] == pytest.approx(
        front.hypervolume([vanilla[0] / 2, 2 * vanilla[1]])[0]
    )


def test_a_front_never_shrinks_with_more_trials(sweep: Sweep) -> None:
    found = sweep_metrics(sweep, 0)
    for name in ("hypervolume", "best/speedup"):
        values = [found[count][name] for count in sorted(found)]
        assert values == sorted(values)
    assert sweep_metrics(sweep, 10) == {count: found[count] for count in (11, 12)}


def test_trials_count_by_their_place_where_a_lost_one_has_no_record(sweep: Sweep) -> None:
    lost = replace(sweep, records=tuple(record for record in sweep.records if record.number != 5))
    last = sweep_metrics(lost, 10)[11]
    assert last["front"] == len(front_records(lost))
    late = replace(front_records(sweep)[-1], number=99)
    alone = replace(sweep, records=(sweep.records[0], late))
    assert sweep_metrics(alone, 1)[2]["front"] == len(front_records(alone))
    assert late in front_records(alone)


def test_what_has_its_number_of_trials_is_whole(sweep: Sweep) -> None:
    assert {list(metrics)[-1] for metrics in sweep_metrics(sweep, 0).values()} == {"trials"}


def test_without_vanilla_there_is_no_scale(sweep: Sweep) -> None:
    found = sweep_metrics(replace(sweep, records=sweep.records[1:]), 9)
    assert "front" in found[11]
    assert not {"hypervolume", "best/speedup"} & found[11].keys()


@pytest.mark.parametrize(
    "objectives", ["fid speedup", "speedup clip_score", "speedup drift", "speedup fid clip_score"]
)
def test_the_best_is_that_of_the_default_bar(objectives: str, tmp_path: Path) -> None:
    """The one that commands and report recommend; none where they have no default bar."""
    names = objectives.split()
    axes = [{"metric": name, "direction": METRICS[name]["direction"]} for name in names]
    write_sweep(tmp_path, trials=12, objectives=axes)
    sweep = Sweep.open(tmp_path)
    if len(names) == 3:  # a third objective has no bar
        awful = {"clip_score": Estimate(0.0, 0.1, 9)}
        records = [
            replace(r, metrics={**r.metrics, **awful}) if r.number and r.metrics else r
            for r in sweep.records
        ]
        sweep = replace(sweep, records=tuple(records))
    front = front_of([sweep])
    limit = default_limit(front)
    best = best_within(front, [limit]) if limit else None
    found = sweep_metrics(sweep, 11)[12].get(f"best/{names[0]}")
    assert found == (best and best.record.metrics[names[0]].value)
    assert (best is None) == (names[1] in ("speedup", "drift"))


def test_a_value_that_ceases_to_exist_is_nan(tmp_path: Path) -> None:
    """MLflow keeps metrics for ever: a knee of earlier values would stay."""
    write_sweep(tmp_path, trials=2, failed=())
    sweep = Sweep.open(tmp_path)
    assert "knee" not in recommend(front_of([sweep])).choices
    assert "knee" not in sweep_metrics(sweep, 1)[2]
    found = sweep_metrics(sweep, 1, {"knee": 5.0, "seconds": 3.0, "best/latency": math.nan})[2]
    assert math.isnan(found["knee"])
    assert not {"seconds", "best/latency"} & found.keys()


def test_a_lossless_trials_own_value_is_logged_too(tmp_path: Path) -> None:
    gain = {
        "direction": "minimize",
        "unit": "",
        "about": "fid minus vanilla's",
        "needs": ["features", "reference", "baseline"],
        "is_gain": True,
    }
    known = {key: {**entry, "needs": NEEDS[key]} for key, entry in METRICS.items()}
    records = write_sweep(tmp_path, trials=4, failed=(), metrics={**known, "fid_gain": gain})
    for record in records:
        gains = {"fid_gain": replace(record.metrics["fid"], value=0.1 * record.number)}
        write_trial(Storage(str(tmp_path)), replace(record, metrics={**record.metrics, **gains}))
    sweep = Sweep.open(tmp_path)
    found = [
        {metric.key: metric.value for metric in metrics(record, 0, sweep.identity)}
        for record in sweep.records
    ]
    assert found[1]["own/fid"] == records[1].metrics["fid"].value
    assert found[1]["fid"] == sweep.records[1].metrics["fid"].value != found[1]["own/fid"]
    assert found[1]["own/fid_gain"] == pytest.approx(0.1)
    assert found[1]["fid_gain"] == 0
    assert sweep.records[3].own, "its gain is over the group of vanilla"
    assert not {"own/fid", "own/fid_gain"} & found[3].keys(), "it is lossy"


def test_all_steps_of_the_front_have_final_values() -> None:
    """Those that MLflow has already, by the latest point at a step, are not logged again."""
    logged = [
        Metric("knee", 3.0, 1, 1),
        Metric("knee", 5.0, 1, 2),
        Metric("hypervolume", 0.4, 1, 1),
        Metric("hypervolume", 0.5, 2, 1),
        Metric("hypervolume", 0.6, 1, 2),
        Metric("knee", math.nan, 1, 3),
        Metric("failed", 1.0, 1, 1),
    ]
    final = [
        Metric("hypervolume", 0.4, 9, 1),
        Metric("hypervolume", 0.6, 9, 2),
        Metric("knee", 3.0, 9, 1),
    ]
    found = {(m.key, m.step): m.value for m in different_steps(final, logged, 9)}
    assert found.pop(("hypervolume", 1)) == 0.4
    assert math.isnan(found.pop(("knee", 2)))
    assert found == {}
