"""What would tell trials apart: by simulation of the effort that is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchestrator.front.front import Front, front_of
from orchestrator.front.joint import JointErrors, VarianceParts
from orchestrator.front.what_next import _least, what_next
from orchestrator.store.sweep import Sweep
from specfrontier import Sweep as NotebookSweep
from tests.fakes.command_line import specfrontier
from tests.fakes.synthetic_sweeps import write_sweep


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
        (VarianceParts(4.0, 0.0, 0.0), 1.0, "images"),
        (VarianceParts(0.01, 4.0, 0.0), 1.0, "sessions"),
        (VarianceParts(0.01, 0.1, 4.0), 1.0, "days"),
        (VarianceParts(4.0, 4.0, 4.0), 1.0, None),  # each alone leaves too much
        (VarianceParts(4.0, 0.0, 0.0), 0.0, None),  # they are equal
        (VarianceParts(4.0, 0.0, 0.0), 1e-3, None),  # millions of images
    ],
)
def test_the_effort_is_the_one_whose_part_is_too_large(
    part: VarianceParts, difference: float, effort: str | None
) -> None:
    found = _least(part, difference)
    assert (found and found[0]) == effort
    if found is not None:
        falls = {
            "images": part.images,
            "sessions": part.sessions,
            "days": part.sessions + part.sittings,
        }[found[0]]
        left = sum(part) - falls + falls / found[1]
        assert difference / left**0.5 == pytest.approx(1.96, abs=0.01)


def test_parts_add_up_to_the_variance(front: Front) -> None:
    joint = front.joint_errors
    for other in range(1, len(front.candidates)):
        _, errors, _ = joint.difference(0, other)
        for metric, error in enumerate(errors):
            assert sum(joint.variance_parts(0, other, metric)) == pytest.approx(error**2)


def test_what_sittings_differ_in_is_apart_from_sessions() -> None:
    zeros = np.zeros((2, 1))
    joint = JointErrors(
        values=zeros,
        effects=np.array([[[1.0, 2.0, 3.0]], [[0.0, 0.0, 0.0]]]),
        groups=np.array([-1, 0, 1]),
        group_dof=np.array([2.0, 2.0]),
        group_is_sitting=np.array([False, True]),
        own=zeros,
        dof=zeros + np.inf,
        own_dof=zeros + np.inf,
    )
    assert joint.variance_parts(0, 1, 0) == (1.0, 4.0, 9.0)


def test_so_many_images_tell_the_trials_apart(front: Front) -> None:
    """With an error that is smaller by the root of the factor, the difference is significant."""
    found = [each for each in what_next(front).separations if each.effort == "images"]
    assert found
    trials = {trial.name: trial for trial in front.candidates}
    for each in found:
        pair = [trials[each.first], trials[each.second]]
        metric = front.sweeps["synthetic"].metric(each.metric)
        assert each.images is not None
        assert each.images >= each.factor * pair[0].record.images

        def significance(shrink: float) -> float:
            records = []
            for trial in pair:  # noqa: B023
                entry = trial.metrics[metric.name]  # noqa: B023
                replicates = entry.value + (np.array(entry.replicates) - entry.value) * shrink
                shrunk = replace(
                    entry, error=entry.error * shrink, replicates=tuple(replicates.tolist())
                )
                records.append(replace(trial.record, metrics={metric.name: shrunk}))  # noqa: B023
            value, error, _ = JointErrors.of(records, [metric]).difference(0, 1)  # noqa: B023
            return float(abs(value[0]) / error[0])

        assert significance(1.0) < 2.1
        assert significance(each.factor**-0.5) == pytest.approx(1.96, abs=0.02)


def test_it_is_shown_on_request(folder: Path) -> None:
    text = specfrontier("pareto", str(folder), "--next").out
    facts = json.loads(specfrontier("pareto", str(folder), "--next", "--json").out)
    found = NotebookSweep.open(folder).what_next()
    assert facts["next"] == found.to_mapping()
    for line in found.lines:
        assert line in text
    assert "next" not in specfrontier("pareto", str(folder), "--json").json
