"""`Sweep` on made-up sweeps: what is read, what may be on a front, what is said where there is
nothing to read.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import QueryError
from orchestrator.front.choice import best_within, recommend
from orchestrator.front.front import front_of
from orchestrator.front.questions import objectives_of
from orchestrator.shown.plots import front_plot
from orchestrator.store.files import NoSweepError, command, find_sweep, location
from orchestrator.store.records import TrialRecord, write_trial
from specfrontier import Sweep
from tests.fakes.synthetic_sweeps import BASELINE, CAPTIONS, METRICS, write_sweep
from workers.data.storage import Storage
from workers.metrics.estimate import Estimate


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    folder = tmp_path_factory.mktemp("sweeps") / "one"
    write_sweep(folder, trials=24, repeated={10: 6, 15: 6}, shards=True)
    return Sweep.open(folder)


def better(a: TrialRecord, b: TrialRecord, metrics: tuple[str, ...]) -> bool:
    """Whether a dominates b."""
    signs = [1 if METRICS[name]["direction"] == "maximize" else -1 for name in metrics]
    gains = [
        s * (a.metrics[m].value - b.metrics[m].value) for s, m in zip(signs, metrics, strict=True)
    ]
    return min(gains) >= 0 and max(gains) > 0


def numbers(table: Any) -> list[int]:
    return [int(number) for number in table["number"].to_pylist()]


@settings(max_examples=60, deadline=None)
@given(
    st.permutations(list(METRICS)).map(lambda names: tuple(names[:3])),
    st.sampled_from([2, 3]),
    st.sampled_from([(), ("drift<=1.2",), ("fid<=vanilla+1", "clip_score>=0.95*vanilla")]),
    st.sampled_from(
        [(), ("acceptance.neighbourhood=additive",), ("drafter.kind!=none", "tree.policy=chain")]
    ),
)
def test_the_front_is_the_brute_force_front(
    sweep: Sweep, names: tuple[str, ...], m: int, limits: tuple[str, ...], where: tuple[str, ...]
) -> None:
    vanilla = sweep.records[0]
    held = {
        "drift<=1.2": lambda r: r.metrics["drift"].value <= 1.2,
        "fid<=vanilla+1": lambda r: r.metrics["fid"].value <= vanilla.metrics["fid"].value + 1,
        "clip_score>=0.95*vanilla": lambda r: (
            r.metrics["clip_score"].value >= 0.95 * vanilla.metrics["clip_score"].value
        ),
        "acceptance.neighbourhood=additive": lambda r: (
            r.config.acceptance.neighbourhood.kind == "additive"
        ),
        "drafter.kind!=none": lambda r: r.config.drafter.kind != "none",
        "tree.policy=chain": lambda r: r.config.policy.kind == "chain",
    }
    able = [
        r
        for r in sweep.records
        if r.feasible and r.duplicate_of is None and all(held[t](r) for t in (*limits, *where))
    ]
    expected = {r.number for r in able if not any(better(other, r, names[:m]) for other in able)}
    x, y, z = (*names[:2], names[2] if m == 3 else None)
    found = sweep.front(x, y, z, where=where, subject_to=limits)
    assert set(numbers(found)) == expected
    assert found[names[0]].to_pylist() == sorted(found[names[0]].to_pylist())
    everything = sweep.front(x, y, z, where=where, subject_to=limits, everything=True)
    assert set(numbers(everything)) == {r.number for r in able}
    marks = zip(numbers(everything), everything["on_front"].to_pylist(), strict=True)
    assert {number for number, member in marks if member} == expected


def test_the_values_of_a_number_of_images_stand_once_in_a_trials_file(sweep: Sweep) -> None:
    record = sweep.records[2].measured
    assert record.history[-1] == (record.images, record.metrics)
    data = record.to_json()
    assert b"\n" not in data
    (_, first), (images, last) = json.loads(data)["history"]
    assert first.keys() == record.metrics.keys()
    assert (images, last) == (record.images, None)
    assert TrialRecord.from_json(data).history == record.history


def test_trials_are_all_of_them(sweep: Sweep) -> None:
    table = sweep.trials()
    assert numbers(table) == list(range(24))
    assert numbers(sweep.trials(where=["state=failed"])) == [7]
    assert sweep.trials(columns=["label", "fid"]).column_names == ["label", "fid"]
    with pytest.raises(QueryError, match="'fidd': unknown column; did you mean 'fid'"):
        sweep.trials(columns=["fidd"])
    with pytest.raises(QueryError, match=r"columns=\['fid'\]"):
        sweep.trials(columns="fid")


def test_repetitions_and_failures_are_not_on_fronts(sweep: Sweep) -> None:
    assert not {7, 10, 15} & set(numbers(sweep.front(everything=True)))


def test_front_is_a_column_of_all_trials(sweep: Sweep, tmp_path: Path) -> None:
    assert numbers(sweep.trials(where=["front"])) == sorted(numbers(sweep.front()))
    write_sweep(tmp_path, objectives=[])
    assert "front" not in Sweep.open(tmp_path).table.column_names


def test_the_sweeps_own_constraints_hold_unless_waived(tmp_path: Path) -> None:
    write_sweep(tmp_path, constraints=["drift <= 0"])
    sweep = Sweep.open(tmp_path)
    assert numbers(sweep.front(everything=True)) == [0]
    assert 3 not in numbers(sweep.front(everything=True))
    assert 3 in numbers(sweep.front(everything=True, feasible=False))
    assert numbers(sweep.trials(["front"])) == sorted(numbers(sweep.front()))


def test_vanilla_is_the_baselines_setting(sweep: Sweep) -> None:
    assert sweep.baseline is not None
    assert (sweep.baseline.number, sweep.baseline.config) == (0, BASELINE)
    others = dataclasses.replace(sweep, records=sweep.records[1:])
    assert others.baseline is None  # vanilla at another temperature is not it
    with pytest.raises(QueryError, match="has not measured vanilla's fid"):
        others.front(subject_to=["fid<=vanilla"])
    called = dataclasses.replace(sweep.records[4], label="vanilla")
    assert dataclasses.replace(sweep, records=(called,)).baseline == called


def test_objectives_are_the_sweeps_own(tmp_path: Path) -> None:
    write_sweep(
        tmp_path,
        objectives=[
            {"metric": "step_compression", "direction": "maximize"},
            {"metric": "drift", "direction": "minimize"},
        ],
    )
    sweep = Sweep.open(tmp_path)
    assert [axis.name for axis in objectives_of(sweep)] == ["step_compression", "drift"]
    assert [axis.name for axis in objectives_of(sweep, z="fid")] == [
        "step_compression",
        "drift",
        "fid",
    ]
    assert [axis.direction for axis in objectives_of(sweep, "latency", "clip_score")] == [
        "minimize",
        "maximize",
    ]
    given = [("drift", None), ("latency", None), (None, "step_compression"), (None, "fid")]
    chosen = [tuple(axis.name for axis in objectives_of(sweep, x, y)) for x, y in given]
    assert chosen == [
        ("drift", "step_compression"),
        ("latency", "drift"),
        ("drift", "step_compression"),
        ("step_compression", "fid"),
    ]
    with pytest.raises(QueryError, match="each must be a different metric"):
        objectives_of(sweep, "fid", "fid")
    with pytest.raises(QueryError, match="'fud': unknown metric; did you mean 'fid'"):
        sweep.front("speedup", "fud")


def test_what_the_front_says_of_its_rows(sweep: Sweep) -> None:
    front = sweep.front("speedup", "fid")
    assert front["on_front"].to_pylist() == [True] * front.num_rows
    rows = {row["number"]: row for row in front.to_pylist()}
    ordered = numbers(front)
    assert rows[ordered[-1]]["distinct_from_next"] is None
    for number, following in pairwise(ordered):
        a, b = (sweep.records[row].metrics for row in (number, following))
        independent = 1.959964 * np.hypot(a["speedup"].error or 0, b["speedup"].error or 0)
        left_out = np.subtract(a["fid"].replicates, b["fid"].replicates)
        paired = 2.06866 * np.sqrt(23 / 24 * np.square(left_out - left_out.mean()).sum())
        assert paired < 0.8 * 2.06866 * np.hypot(a["fid"].error or 0, b["fid"].error or 0)
        distinct = [
            metric
            for metric, beyond in (("speedup", independent), ("fid", paired))
            if abs(a[metric].value - b[metric].value) > beyond
        ]
        assert rows[number]["distinct_from_next"] == distinct
        assert (str(following) in rows[number]["within_error_of"]) == (not distinct)
    assert all(str(number) not in rows[number]["within_error_of"] for number in ordered)
    assert all(0 < row["confidence"] <= 1 for row in rows.values())


def test_the_best_within_limits(sweep: Sweep) -> None:
    fastest = sorted(
        (r for r in sweep.records if r.feasible), key=lambda r: -r.metrics["speedup"].value
    )
    vanilla = sweep.records[0].metrics["fid"].value
    for limits, drift, fid in (
        ((), np.inf, np.inf), (("drift<=1",), 1.0, np.inf), (("drift<=1", "fid<=vanilla"), 1.0, vanilla),
        (("fid<=0",), np.inf, 0.0),
    ):  # fmt: skip
        within = [
            r
            for r in fastest
            if r.metrics["drift"].value <= drift and r.metrics["fid"].value <= fid
        ]
        best = best_within(front_of([sweep], "speedup", "fid"), limits)
        assert (best and best.record) == (within[0] if within else None)
    found = best_within(front_of([sweep], "latency", "fid"))
    assert found is not None
    assert found.record == fastest[0], "the lowest latency"


few = st.sampled_from([0.0, 1.0, 2.0, math.nan])  # few values, so that ties are common


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(few, few, few), min_size=8, max_size=8),
    st.sampled_from(["speedup", "latency"]),
)
def test_the_best_of_ties_and_of_unmeasured_trials(
    sweep: Sweep, values: list[tuple[float, float, float]], metric: str
) -> None:
    """The first one in the front's order: by the first objective, then the second, then the number.
    NaN: no value.
    """
    records = []
    for record, numbers in zip(sweep.records, values, strict=False):
        measured = zip((metric, "fid", "drift"), numbers, strict=True)
        metrics = {
            name: Estimate(value, math.inf, 1) for name, value in measured if not math.isnan(value)
        }
        records.append(
            dataclasses.replace(record, metrics=metrics, state="complete", constraints={})
        )
    found = best_within(
        front_of([dataclasses.replace(sweep, records=tuple(records))], metric, "fid"), ["drift<=1"]
    )
    allowed = [n for n, (x, y, drift) in enumerate(values) if not math.isnan(x + y) and drift <= 1]
    sign = -1 if metric == "speedup" else 1
    best = min(allowed, key=lambda n: (sign * values[n][0], values[n][1], n), default=None)
    assert (None if found is None else found.record.number) == best


@pytest.mark.parametrize(("metric", "value"), [("speedup", 1.1), ("latency", 0.9)])
def test_how_sure_a_trial_is_better_than_vanilla(sweep: Sweep, metric: str, value: float) -> None:
    """One standard error ahead: Phi(1) = 0.841 (3 errors: 0.035) of normal draws, 0.789 of
    Student's t with two degrees of freedom, as of three timings.
    """

    def gain(entry: Estimate, vanilla: Estimate | None) -> float | None:
        fid, records = {"fid": Estimate(4.0, math.inf, 9)}, []
        for record, own in zip(sweep.records, (vanilla, entry), strict=False):
            records.append(
                dataclasses.replace(record, metrics=fid if own is None else fid | {metric: own})
            )
        front = front_of([dataclasses.replace(sweep, records=tuple(records))], metric, "fid")
        shares = {candidate.number: candidate.gain_probability for candidate in front.candidates}
        assert shares.get(0) is None, "vanilla itself"
        return shares[1]

    vanilla = Estimate(1.0, 0.0, 9)
    assert gain(Estimate(value, 0.1, 9), vanilla) == pytest.approx(0.841, abs=0.035)
    assert gain(Estimate(value, 0.1, 9, error_dof=2), vanilla) == pytest.approx(0.789, abs=0.039)
    assert gain(Estimate(2 - value, 0.1, 9), vanilla) == pytest.approx(0.159, abs=0.035)
    assert gain(Estimate(value, 0.1, 9), None) is None


def test_the_best_lossless_setting(sweep: Sweep) -> None:
    exact = {r.number for r in sweep.records if r.config and not r.config.acceptance.is_relaxed}
    cooler = next(r.number for r in sweep.records if r.label == "vanilla, cooler")
    assert {0, 1, cooler} < exact < set(range(24))
    assert set(numbers(sweep.trials(where=["lossless=true"]))) == exact - {cooler}, (
        "it samples from other probs"
    )
    fastest = max(
        (r for r in sweep.records if r.number in exact - {cooler} and r.feasible),
        key=lambda r: r.metrics["speedup"].value,
    )
    for axis in ("speedup", "latency", "step_compression"):
        found = recommend(front_of([sweep], axis, "fid")).choices.get("best_lossless")
        assert found is not None
        assert axis == "step_compression" or found.record == fastest
    assert recommend(front_of([sweep], "fid", "speedup")).choices.get("best_lossless") is None, (
        "there it would be luck"
    )
    assert (
        recommend(front_of([sweep], where=["lossless=false"])).choices.get("best_lossless") is None
    )
    assert (
        recommend(front_of([sweep], where=["drafter.kind=none"])).choices.get("best_lossless")
        is None
    ), "vanilla itself"


def test_hypervolume_grows_with_what_is_allowed(sweep: Sweep) -> None:
    reference = front_of([sweep]).reference_point()
    trees = ("chain", "dynamic", "none", "static")
    fronts = [front_of([sweep], where=[f"tree.policy={tree}"]) for tree in trees]
    assert all(front.reference_point() == reference for front in fronts), (
        "the default depends on no filter"
    )
    parts = [front.hypervolume(reference)[0] for front in fronts]
    assert max(parts) < front_of([sweep]).hypervolume(reference)[0] <= sum(parts)


def test_images_of_one_trial_and_of_all(sweep: Sweep) -> None:
    one = sweep.images(5, columns=["caption", "tokens"])
    assert one.column_names == ["number", "caption", "tokens"]
    assert one["caption"].to_pylist() == list(CAPTIONS)
    assert set(numbers(one)) == {5}
    assert set(numbers(sweep.images(10))) == {10}  # the images of trial 6, whose setting it repeats
    every = sweep.images(columns=["latency"])
    assert set(numbers(every)) == {
        r.number for r in sweep.records if r.shards and r.duplicate_of is None
    }
    assert sweep.images(7).num_rows == 0
    with pytest.raises(QueryError, match="no finished trial 99"):
        sweep.images(99)
    for number in (5, 7):  # with images, and without
        with pytest.raises(
            QueryError, match=r"'token': unknown column; did you mean 'tokens'.*caption_id"
        ):
            sweep.images(number, columns=["caption", "token"])
        with pytest.raises(QueryError, match=r"columns=\['tokens'\]"):
            sweep.images(number, columns="tokens")


def test_a_broken_shard_is_named(tmp_path: Path) -> None:
    records = write_sweep(tmp_path, trials=3, shards=True)
    (tmp_path / records[1].shards[0]).write_bytes(b"PAR1 nothing")
    with pytest.raises(ValueError, match=records[1].shards[0]):
        Sweep.open(tmp_path).images(1)


def test_a_sweep_by_bare_name_and_by_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sweep(tmp_path / "sweeps" / "mine", trials=3, name="mine")
    monkeypatch.chdir(tmp_path)
    assert Sweep.open("mine").name == "mine"
    assert Sweep.open(f"file://{tmp_path}/sweeps/mine").name == "mine"
    with pytest.raises(NoSweepError, match=r"nine: no sweep here .*; ./sweeps has mine"):
        Sweep.open("nine")


def test_a_command_names_the_sweep_so_that_it_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("sweeps/mine", "sweeps/my own", "elsewhere", "sweeps/both", "both"):
        write_sweep(tmp_path / place, trials=1)
    names = {
        "sweeps/mine": "mine",
        "sweeps/my own": "my own",
        "elsewhere": "elsewhere",
        "sweeps/both": None,
    }
    for place, name in names.items():
        storage = Storage(place)
        assert location(storage) == (name or storage.display_name)
        assert find_sweep(location(storage)).uri == storage.uri
        assert shlex.split(command(storage, "pareto", "--best", "fid <= 5")) == [
            "specfrontier", "pareto", location(storage), "--best", "fid <= 5"
        ]  # fmt: skip


def test_a_broken_identity_is_named(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=2)
    (tmp_path / "identity.json").write_text('{"name": "x"}')
    with pytest.raises(
        ValueError, match=r"identity\.json: written by another version of specfrontier"
    ):
        Sweep.open(tmp_path)


def test_a_sweep_without_trials_has_an_empty_front(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=0)
    sweep = Sweep.open(tmp_path)
    assert sweep.trials(where=["fid<=4"]).num_rows == 0
    assert sweep.front(subject_to=["fid<=4"]).num_rows == 0
    assert sweep.baseline is None
    assert front_plot(front_of([sweep])).startswith(b"\x89PNG")


def test_a_failed_trial_without_a_setting_does_no_harm(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=6)
    write_trial(Storage(str(tmp_path)), TrialRecord(6, "", "failed", None, cause="no such setting"))
    sweep = Sweep.open(tmp_path)
    assert sweep.trials().num_rows == 7
    assert 6 not in numbers(sweep.front(everything=True))


def test_metrics_that_some_trials_lack(tmp_path: Path) -> None:
    records = write_sweep(tmp_path)
    lacking = {name: entry for name, entry in records[4].metrics.items() if name != "fid"}
    write_trial(Storage(str(tmp_path)), dataclasses.replace(records[4], metrics=lacking))
    sweep = Sweep.open(tmp_path)
    assert 4 not in numbers(sweep.front("speedup", "fid", everything=True))
    assert 4 in numbers(sweep.front("speedup", "drift", everything=True))


def test_the_picture_shows_every_family(sweep: Sweep) -> None:
    from PIL import Image

    for axes in (("speedup", "fid"), ("latency", "clip_score"), ("speedup", "fid", "drift")):
        data = front_plot(front_of([sweep], *axes), "a $ title")
        picture = Image.open(io.BytesIO(data)).convert("RGB")
        assert picture.width > 600
        colours = {colour for _, colour in picture.getcolors(1 << 24) or []}
        assert {(0, 114, 178), (213, 94, 0), (34, 34, 34)} <= colours  # two rules, and vanilla


def test_a_trial_that_stopped_early_is_in_the_table_and_on_no_front(tmp_path: Path) -> None:
    records = write_sweep(tmp_path, 12, failed=(7,), stopped={9: 2})
    sweep = Sweep.open(tmp_path)
    complete = [record for record in records if record.number != 9]
    other = Sweep.of(sweep.storage, sweep.identity, complete)
    found = front_of([sweep])
    assert (found.left_out["failed"], found.left_out["stopped early"]) == (1, 1)
    fast = [candidate.record.number for candidate in found.candidates]
    assert 9 not in fast, "it has a speed-up of 99, on half of the images"
    assert [m.record.number for m in found.members] == [
        m.record.number for m in front_of([other]).members
    ]
    assert found.reference_point() == front_of([other]).reference_point()
    (row,) = sweep.trials(where=["state=stopped"]).to_pylist()
    assert (row["number"], row["images"], row["feasible"]) == (9, records[0].images // 2, False)
    assert row["cause"].startswith("trial 2 ")
