"""What would tell trials apart: by simulation of the effort that is named."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as student

from orchestrator.front.front import Front, front_of
from orchestrator.front.joint import JointErrors
from orchestrator.front.what_next import WhatNext, _least, _Parts, _parts, what_next
from orchestrator.store.sweep import Sweep
from specfrontier import Sweep as NotebookSweep
from tests.fakes.command_line import specfrontier
from tests.fakes.synthetic_sweeps import write_sweep
from tests.orchestrator.front.test_same_settings import timed_sweeps


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("next")
    write_sweep(folder, trials=24)
    return folder


@pytest.fixture(scope="module")
def front(folder: Path) -> Front:
    return front_of([Sweep.open(folder)])


@pytest.mark.parametrize(
    ("part", "difference", "effort"),
    [
        (_Parts(4.0, 0.0, 0.0, 0), 1.0, "images"),
        (_Parts(0.01, 4.0, 0.0, 1), 1.0, "sessions"),
        (_Parts(0.01, 0.1, 4.0, 1), 1.0, "days"),
        (_Parts(4.0, 4.0, 4.0, 1), 1.0, None),  # each alone leaves too much
        (_Parts(4.0, 0.0, 0.0, 0), 0.0, None),  # they are equal
        (_Parts(4.0, 0.0, 0.0, 0), 1e-3, None),  # millions of images
    ],
)
def test_the_effort_is_the_one_whose_part_is_too_large(
    part: _Parts, difference: float, effort: str | None
) -> None:
    found = _least(part, difference, dof=20.0)
    assert (found and found[0]) == effort
    if found is None or effort == "days":
        return
    falls = part.images if effort == "images" else part.sessions
    left = part.total - falls + falls / found[1]
    assert difference / left**0.5 == pytest.approx(student.ppf(0.975, 20))


def test_so_many_days_are_the_fewest_that_do() -> None:
    """What is assumed of a first day has two degrees of freedom, each further day adds one."""
    part = _Parts(0.01, 0.1, 4.0, 1)
    found = _least(part, 3.0, dof=2.0)
    assert found is not None
    days = round(found[1])
    assert days > 2

    def significance(days: int) -> float:
        return float(3.0 / np.sqrt(0.01 + 4.1 / days) / student.ppf(0.975, 1 + days))

    assert significance(days) > 1 > significance(days - 1)
    assert _least(part, 0.1, dof=2.0) is None, "more than a hundred"


def test_parts_add_up_to_the_variance(front: Front) -> None:
    joint = front.joint_errors
    for other in range(1, len(front.candidates)):
        _, errors, _ = joint.difference(0, other)
        for place, (metric, error) in enumerate(zip(front.metrics, errors, strict=True)):
            part = _parts(joint, (0, other), place, metric)
            assert part is not None
            assert part.total == pytest.approx(error**2)


def test_an_unknown_error_gets_no_advice(front: Front) -> None:
    joint = front.joint_errors
    unknown = replace(joint, own=np.full_like(joint.own, np.nan))
    assert _parts(unknown, (0, 1), 0, front.metrics[0]) is None


@pytest.mark.parametrize("metric", ["speedup", "latency"])
def test_what_days_differ_in_is_apart_from_sessions(tmp_path: Path, metric: str) -> None:
    """As timing sessions have it, in one sweep and in two that share a day."""
    sweeps = timed_sweeps(tmp_path, [(1, 0, "node"), (2, 0, "node")], [(2, 30, "node")])
    for chosen in (sweeps[:1], sweeps):
        front = front_of(chosen, metric, "fid", feasible=False)
        own = [each for each in front.candidates if each.origin == sweeps[0].name]
        pair = [next(each for each in own if each.number == number) for number in (0, 1)]
        places = (front.candidates.index(pair[0]), front.candidates.index(pair[1]))
        part = _parts(front.joint_errors, places, 0, front.metrics[0])
        assert part is not None
        assert part.days == 2
        assert part.sittings > part.sessions > 0


def test_a_quality_that_lossless_settings_share_needs_images(tmp_path: Path) -> None:
    """Without replicates, its error is a noise, as those of costs are."""
    write_sweep(tmp_path, trials=24)
    found = what_next(front_of([Sweep.open(tmp_path)], "clip_score", "fid"))
    assert {each.effort for each in found.separations if each.metric == "clip_score"} <= {"images"}
    assert found.separations


def test_so_many_images_tell_the_trials_apart(front: Front) -> None:
    """With an error that is smaller by the root of the factor, the difference is significant."""
    found = [each for each in what_next(front).separations if each.effort == "images"]
    assert found
    trials = {trial.name: trial for trial in front.candidates}
    for each in found:
        pair = [trials[each.first], trials[each.second]]
        metric = front.sweeps["synthetic"].metric(each.metric)
        assert each.count == math.ceil(each.factor * 192)

        def significance(shrink: float) -> float:
            records = []
            for trial in pair:  # noqa: B023
                entry = trial.metrics[metric.name]  # noqa: B023
                replicates = entry.value + (np.array(entry.replicates) - entry.value) * shrink
                shrunk = replace(
                    entry, error=entry.error * shrink, replicates=tuple(replicates.tolist())
                )
                records.append(replace(trial.record, metrics={metric.name: shrunk}))  # noqa: B023
            value, error, dof = JointErrors.of(records, [metric]).difference(0, 1)  # noqa: B023
            return float(abs(value[0]) / error[0] / student.ppf(0.975, dof[0]))

        assert significance(1.0) < 1
        assert significance(each.factor**-0.5) == pytest.approx(1)


def test_a_front_whose_trials_all_differ_says_so() -> None:
    assert "differ in every metric" in WhatNext([], 0, [], []).lines[0]
    assert "2 more differences" in WhatNext([], 2, [], []).lines[0]


def test_it_is_shown_on_request(folder: Path) -> None:
    text = specfrontier("pareto", str(folder), "--next").out
    facts = json.loads(specfrontier("pareto", str(folder), "--next", "--json").out)
    found = NotebookSweep.open(folder).what_next()
    assert facts["next"] == found.to_mapping()
    for line in found.lines:
        assert line in text
    assert "next" not in specfrontier("pareto", str(folder), "--json").json
