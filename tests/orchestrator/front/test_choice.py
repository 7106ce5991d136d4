"""What a front recommends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchestrator.cli.text import choice_lines
from orchestrator.errors import NoChoiceError, QueryError
from orchestrator.front.choice import (
    NOTHING_RECOMMENDED,
    best_within,
    default_limit,
    example_limit,
    recommend,
)
from orchestrator.front.front import Front, front_of
from orchestrator.front.joint import JointErrors
from orchestrator.front.trial import Trial
from orchestrator.store.sweep import Sweep
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.synthetic_sweeps import write_sweep
from workers.metrics.estimate import Estimate


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Front:
    folder: Path = tmp_path_factory.mktemp("sweeps") / "one"
    write_sweep(folder, trials=12)
    return front_of([Sweep.open(folder)])


def test_each_kind_of_choice(front: Front) -> None:
    limit = default_limit(front)
    assert limit == "fid <= 1.2 * vanilla"
    found = recommend(front)
    assert found.limits == (limit,)
    best = best_within(front, [limit])
    assert best is not None
    assert found.choices["best"].record is best.record
    assert best.choice == f"fastest within {limit}"
    assert best.probability == best.limit_probability([limit]) is not None
    assert found.choices["best_lossless"].probability is None, "by its setting, whatever the errors"
    knee = found.choices["knee"]
    assert front.knee is not None
    assert knee.record is front.knee.record
    assert knee.probability == front.knee_confidence(knee)
    assert "trial" not in found.choices
    assert recommend(front, ["fid<=0"]).choices.keys() == {"best_lossless", "knee"}
    lossless = recommend(front, ["fid<=1000"], lossless=True).choices["best"]
    assert lossless.record is found.choices["best_lossless"].record


def test_a_trial_that_is_asked_for_is_a_choice(front: Front) -> None:
    """Whatever its values, and whether or not it may be on the front."""
    (sweep,) = front.sweeps.values()
    for record in sweep.records:
        choice = recommend(front, trial=front.trial(record.number)).require("trial")
        assert choice.record is record
        assert choice.choice == "chosen by number"
    with pytest.raises(NoChoiceError, match="no finished trial 99"):
        front.trial(99)


def test_constraints_that_leave_no_trial_are_named(tmp_path: Path) -> None:
    """Whatever is asked for, the message says what to add, and with it the command works."""
    place = str(tmp_path / "strict")
    limits = ["clip_score >= 9 * vanilla"]
    write_sweep(tmp_path / "strict", trials=6, failed=(), constraints=limits)
    for words in (["--best", "fid <= 1.2 * vanilla"], ["--lossless"], ["--knee"]):
        for command in (
            ["export", place],
            ["generate", "", "--from", place],
            ["pareto", place, "--config", "c.yaml"],
        ):
            assert "6 are outside; --infeasible includes them" in error_of(*command, *words, code=1)
    assert "--infeasible" in error_of("generate", "", "--from", place, code=1)
    shown = specfrontier("pareto", place)
    assert "--infeasible" in shown.out
    assert "--infeasible" in specfrontier("pareto", place, "--json").json["warnings"][0]
    assert "--infeasible" not in specfrontier("pareto", place, "--infeasible").out
    assert "a caption is empty" in error_of("generate", "", "--from", place, "--infeasible", code=2)
    out = str(tmp_path / "out")
    assert (
        specfrontier(
            "export", place, "--best", "fid <= 9 * vanilla", "--infeasible", "--out", out
        ).code
        == 0
    )
    with pytest.raises(NoChoiceError, match="outside"):
        recommend(front_of([Sweep.open(place)]), []).require("best")
    assert "add --from" in error_of("generate", "a ring", "--infeasible", code=2)


def with_speeds(front: Front, speeds: Mapping[int, Estimate]) -> Front:
    """The front with other speed-ups, and the others of its trials left out."""
    (sweep,) = front.sweeps.values()
    records = [r for r in sweep.records if r.number in {0, *speeds}]
    speeds = {0: Estimate(1.0, 0.0, 9), **speeds}
    return front_of(
        [
            replace(
                sweep,
                records=tuple(
                    replace(r, metrics={**r.metrics, "speedup": speeds[r.number]}) for r in records
                ),
            )
        ]
    )


def test_the_fastest_is_the_one_that_is_surely_fast(front: Front) -> None:
    """Also where a narrowly better value dominates it."""
    lossy = next(
        trial.number for trial in front.candidates if trial.record.label == "vanilla, cooler"
    )
    other = next(trial.number for trial in front.candidates if trial.config.acceptance.is_relaxed)
    found = best_within(
        with_speeds(front, {lossy: Estimate(2.7, 3.8, 9), other: Estimate(1.435, 0.022, 9)}),
        ["fid <= 100"],
    )
    assert found is not None
    assert found.number == other
    assert found.bound == pytest.approx(1.407, abs=0.005)
    assert [trial.number for trial in found.alternatives or ()] == [lossy]
    assert found.preferred_to is None
    assert found.basis[0].endswith(f"90 % sure, here {found.bound:.3f}")
    assert found.basis[1] == f"within error of it in speedup: {lossy} (vanilla, cooler)"
    assert found.basis[1] in repr(found)
    assert found.basis[1] in found._repr_html_()


def test_a_lossless_setting_is_preferred_within_error(front: Front) -> None:
    lossy = next(trial.number for trial in front.members if not trial.is_lossless)
    lossless = next(
        trial.number for trial in front.candidates if trial.is_lossless and not trial.is_vanilla
    )
    near = with_speeds(front, {lossy: Estimate(2.0, 0.05, 9), lossless: Estimate(1.97, 0.05, 9)})
    found = recommend(near, ["fid <= 100"]).to_mapping()
    assert found["best"]["number"] == lossless
    assert (found["best_within_error_of"], found["best_preferred_to"]) == ([str(lossy)], str(lossy))
    assert found["best_bound"] == pytest.approx(1.906, abs=0.01)
    assert (found["best_lossless_within_error_of"], found["best_lossless_preferred_to"]) == (
        [],
        None,
    )
    assert [trial.number for trial in recommend(near).decisive] == [lossless, lossy], (
        "rivals too, but not vanilla"
    )
    far = best_within(
        with_speeds(front, {lossy: Estimate(2.0, 0.05, 9), lossless: Estimate(1.7, 0.05, 9)})
    )
    assert far is not None
    assert (far.number, far.alternatives) == (lossy, ())


def test_a_gain_that_is_not_sure_leaves_vanilla(front: Front) -> None:
    number = next(
        trial.number for trial in front.candidates if trial.is_lossless and not trial.is_vanilla
    )
    unsure = with_speeds(front, {number: Estimate(1.1, 0.2, 9)})
    best = best_within(unsure)
    assert best is not None
    assert best.is_vanilla
    assert [trial.number for trial in best.alternatives or ()] == [number]
    assert recommend(unsure).choices.get("best_lossless") is None
    with pytest.raises(NoChoiceError, match="faster than vanilla in 90 % of draws"):
        recommend(unsure).require("best_lossless")


def test_an_unknown_error_makes_nothing_sure(front: Front) -> None:
    (sweep,) = front.sweeps.values()
    records = tuple(
        replace(
            record,
            metrics={
                name: replace(entry, error=math.inf) for name, entry in record.metrics.items()
            },
        )
        for record in sweep.records
    )
    unknown = front_of([replace(sweep, records=records)])
    found = recommend(unknown, ["fid <= 1.2 * vanilla"]).choices
    assert found["best"].probability is None
    assert found["best"].gain_probability is None


def test_a_change_is_the_paired_difference_in_per_cent_of_vanilla(front: Front) -> None:
    trial, fid = next(t for t in front.members if t.number), front.metrics[1]
    vanilla = trial.sweep.baseline
    assert vanilla is not None
    found = trial.changes["fid"]
    own, base = trial.record.metrics["fid"], vanilla.metrics["fid"]
    assert found[0] == pytest.approx(100 * (own.value / base.value - 1))
    draws = JointErrors.of([trial.record, vanilla], [fid]).covariance()
    paired = np.sqrt(draws[0, 0] + draws[1, 1] - 2 * draws[0, 1])
    assert found[1] == pytest.approx(100 * paired / base.value)
    assert not front.trial(vanilla.number).changes
    (sweep,) = front.sweeps.values()
    almost = replace(vanilla, metrics={**vanilla.metrics, "fid": replace(base, value=1e-320)})
    near_zero = front_of([replace(sweep, records=(almost, *sweep.records[1:]))])
    assert near_zero.trial(trial.number).changes.keys() == {"speedup"}, "it would be infinite"


def test_there_is_no_default_bar_on_a_speed_or_on_a_value_that_may_be_negative(
    front: Front,
) -> None:
    (sweep,) = front.sweeps.values()
    assert default_limit(front_of([sweep], "fid", "speedup")) is None
    assert example_limit(front_of([sweep], "fid", "speedup")) == "speedup >= X"
    first, *others = sweep.records
    # drift compares with vanilla's own images
    for metric, value in (("fid", 0.0), ("fid", -1.0), ("drift", 1.0)):
        itself = replace(first, metrics={**first.metrics, metric: Estimate(value, 0.0, 192)})
        assert (
            default_limit(front_of([replace(sweep, records=(itself, *others))], "speedup", metric))
            is None
        )


def test_as_plain_data(front: Front) -> None:
    recommended = recommend(front, ["fid <= 1.2 * vanilla"])
    found = recommended.to_mapping()
    assert found["limits"] == ["fid <= 1.2 * vanilla"]
    assert found["best"]["digest"] == recommended.choices["best"].record.digest
    assert found["best_change"].keys() == {"speedup", "fid"}
    assert found["knee_confidence"] == recommended.choices["knee"].probability
    assert found["best_lossless_confidence"] is None
    nothing = front_of(list(front.sweeps.values()), where=["label=nobody"])
    assert recommend(nothing).to_mapping() == NOTHING_RECOMMENDED


def test_vanilla_may_miss_a_limit_in_numbers(front: Front) -> None:
    """By its errors, as any other trial; never one that is relative to its own value."""
    (sweep,) = front.sweeps.values()
    assert sweep.baseline is not None
    alone = front_of([sweep], where=["label=vanilla"])
    limit = f"fid <= {sweep.baseline.metrics['fid'].value}"
    share = recommend(alone, [limit]).choices["best"].probability
    assert share == pytest.approx(0.5, abs=0.1)
    assert recommend(alone, [limit, "fid <= vanilla"]).choices["best"].probability == share
    assert recommend(alone, ["fid <= 1.2 * vanilla"]).choices["best"].probability is None


def test_a_tie_with_vanilla_is_no_gain(front: Front) -> None:
    (sweep,) = front.sweeps.values()
    one = Estimate(1.0, 0.0, 192)
    records = [
        replace(r, metrics={**r.metrics, "speedup": one} if r.metrics else {})
        for r in sweep.records
    ]
    equal = front_of([replace(sweep, records=tuple(records))])
    assert {trial.gain_probability for trial in equal.candidates} == {None, 0.0}


def test_a_sweep_without_results_leaves_the_choices_of_the_others(
    front: Front, tmp_path: Path
) -> None:
    """It has no vanilla yet, and needs none."""
    write_sweep(tmp_path, trials=1, name="new", failed=(0,))
    (sweep,) = front.sweeps.values()
    both = front_of([sweep, Sweep.open(tmp_path)])
    limit = default_limit(both)
    assert limit is not None
    assert limit == default_limit(front)
    found = [recommend(asked, [limit]).choices for asked in (both, front)]
    numbers = [{kind: choice.number for kind, choice in choices.items()} for choices in found]
    assert numbers[0] == numbers[1] != {}
    with pytest.raises(QueryError, match="unknown"):
        best_within(front_of([Sweep.open(tmp_path)]), ["nonsense <= 3"])


def test_a_front_of_lossless_trials_has_no_knee(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They differ in quality by chance alone, so none is a compromise."""
    sweeps = list(front.sweeps.values())
    fronts = [front_of(sweeps), front_of(sweeps, "speedup", "step_compression")]
    before = [recommend(found).choices.get("knee") for found in fronts]
    assert before[0] is not None
    monkeypatch.setattr(Trial, "is_lossless", property(lambda self: True))
    assert recommend(fronts[0]).choices.get("knee") is None
    after = recommend(fronts[1]).choices.get("knee")
    assert (after is None) == (before[1] is None), "counts differ by more than chance"


def test_a_choice_that_the_front_does_not_have_says_so(front: Front) -> None:
    others = [trial for trial in front.candidates if not trial.is_vanilla]
    for on_front in (True, False):
        trial = next(trial for trial in others if trial.on_front == on_front)
        choice = recommend(front, trial=front.trial(trial.number)).require("trial")
        (line,) = (line for line in choice_lines([choice]) if trial.title in line)
        assert ("(not on the front)" in line) == (not on_front)
